# A camera that appears while the daemon runs; the colours of each format; a rate.
. /host/guest/checks.bash
. /host/guest/camera.bash
prepare

configure 'width = 320' 'height = 180' 'fps = 10.0'
check "without the camera the check says so" contains "/dev/video0: it is not there" runuser -u edgeopt -- edgeopt-agent check
check "without the camera the daemon is ready" contains " ready, up" eventually 30 edgeopt-agent status
check "the model is deployed" deployed
check "and says that it is not there" eventually 20 says "it is not there"
check "a camera appears" plug
check "it streams" eventually 30 streams
check "the check has nothing to say" runuser -u edgeopt -- edgeopt-agent check
control osd_text_mode=2
status

for format in yuyv uyvy nv12 rgb24 bgr24 grey; do
    configure 'width = 320' 'height = 180' 'fps = 10.0' "format = \"$format\""
    check "$format: it streams" eventually 30 streams "$format 320x180"
    # Patterns of one colour: red, green, blue, white; and as luma, which is BT.709 of full range there.
    for pattern in "7 255 0 0 54" "8 0 255 0 182" "9 0 0 255 18" "6 255 255 255 255"; do
        set -- $pattern
        control test_pattern=$1
        [ $format = grey ] && set -- "$1" "$5" "$5" "$5"
        check "$format: $2 $3 $4 is seen" sees "$2" "$3" "$4"
    done
done
control test_pattern=0

# BT.709 of full range, as the driver declares it.
control colorspace=1,y_cbcr_encoding=2,quantization=1
configure 'width = 320' 'height = 180' 'fps = 10.0' 'format = "yuyv"'
control test_pattern=7
check "BT.709, full range: it streams" eventually 30 streams "yuyv 320x180"
check "BT.709, full range: the driver declares it" contains "Full Range" v4l2-ctl --device /dev/video0 --get-fmt-video
check "BT.709, full range: red is seen" sees 255 0 0
control colorspace=2,y_cbcr_encoding=0,quantization=0,test_pattern=0

check "what it does not offer is refused with what it does" contains "it offers" bash -c \
    "sed 's/format = .*/format = \"mjpeg\"/' /etc/edgeopt/agent.toml >$work/mjpeg.toml; edgeopt-agent --config $work/mjpeg.toml check"

configure 'width = 320' 'height = 180' 'fps = 15.0' 'rate = 2.0'
check "a rate: it streams" eventually 30 streams
rate() {
    local before after
    before=$(camera taken)
    sleep 10
    after=$(camera taken)
    echo "$((after - before)) in 10 s"
    [ $((after - before)) -ge 15 ] && [ $((after - before)) -le 22 ]
}
check "two inferences per second of fifteen frames" rate
check "the others are passed over" at_least "$(camera skipped)" 50

tidy
