# Cameras, with the kernel's virtual one (vivid): colours of each format, rates, damage, another reader, unplugging.
. /host/guest/checks.bash

export EDGEOPT_BROKER=mqtt://127.0.0.1
work=$(mktemp -d)
python3 /host/guest/mean_colour.py "$work"
plug() { modprobe vivid n_devs=1 node_types=0x1 num_inputs=1 input_types=0x0 && udevadm settle; }
unplug() { rmmod vivid; }
control() { v4l2-ctl --device /dev/video0 --set-ctrl "$1" >/dev/null; }
# configure LINE…: the slot `colour` with a camera set so.
configure() {
    local line
    cp -p "$work/agent.toml" /etc/edgeopt/agent.toml
    printf '[slots.colour]\ninputs = []\n[slots.colour.camera]\ndevice = "/dev/video0"\n' >>/etc/edgeopt/agent.toml
    for line in "$@"; do echo "$line" >>/etc/edgeopt/agent.toml; done
    if [ "$(field ActiveState)" = active ]; then systemctl reload edgeopt-agent; else systemctl start edgeopt-agent; fi
}
# The camera's line in the status, and what is wrong with it.
status() { edgeopt-agent status | grep -A 2 '^  camera '; }
# A counter in that line.
camera() { status | sed -nE "s/.* ([0-9]+) $1[,].*/\1/p"; }
says() { contains "$1" status; }
streams() { contains "  streaming, ${1:-}" status; }
# Waits for the third result from now: its colours, rounded, then the whole.
colour() {
    local result
    result=$(timeout 30 mosquitto_sub -t edgeopt/v1/device/models/colour/result -C 3 | tail -n 1)
    contains '"stream":"camera"' echo "$result" >/dev/null || { echo "$result"; return 1; }
    sed -E 's/.*"values":\[([^]]*)\].*/\1/' <<<"$result" | tr ',' '\n' | awk '{ printf "%.0f ", $1 }'
    echo "$result"
}
# sees R G B: within three steps of these.
sees() {
    local r g b rest
    read -r r g b rest < <(colour)
    echo "$r $g $b $rest, expected $*"
    for pair in "$r $1" "$g $2" "$b $3"; do
        set -- $pair
        [ $(($1 - $2)) -le 3 ] && [ $(($2 - $1)) -le 3 ] || return 1
    done
}

cp -p /etc/edgeopt/agent.toml "$work/agent.toml"
check "a model of colours" edgeopt build "$work/colour.onnx" -o "$work/colour.edge" --precision fp32 --task "$work/colour.json" \
    --name colour --model-version 1
check "signed" edgeopt sign "$work/colour.edge" --key /host/fleet.key
systemctl stop edgeopt-agent
rmmod vivid 2>/dev/null

configure 'width = 640' 'height = 360' 'fps = 10.0'
check "without the camera the check says so" contains "/dev/video0: it is not there" runuser -u edgeopt -- edgeopt-agent check
check "without the camera the daemon is ready" contains " ready, up" eventually 30 edgeopt-agent status
check "the model is deployed" edgeopt fleet deploy "$work/colour.edge" --device device --slot colour --timeout 120
check "and says that it is not there" eventually 20 says "it is not there"
pid=$(pid)
check "a camera appears" plug
check "it streams" eventually 30 streams
check "the check has nothing to say" runuser -u edgeopt -- edgeopt-agent check
control osd_text_mode=2
edgeopt-agent status

for format in yuyv uyvy nv12 rgb24 bgr24 grey; do
    configure 'width = 640' 'height = 360' 'fps = 10.0' "format = \"$format\""
    check "$format: it streams" eventually 30 streams "$format 640x360"
    # Patterns of one colour: red, green, blue, white.
    for pattern in "7 255 0 0 76" "8 0 255 0 150" "9 0 0 255 29" "6 255 255 255 255"; do
        set -- $pattern
        control test_pattern=$1
        [ $format = grey ] && set -- "$1" "$5" "$5" "$5"
        check "$format: $2 $3 $4 is seen" sees "$2" "$3" "$4"
    done
done
control test_pattern=0

# BT.709 of full range, as the driver declares it.
control colorspace=1,ycbcr_encoding=2,quantization=1
configure 'width = 640' 'height = 360' 'fps = 10.0' 'format = "yuyv"'
control test_pattern=7
check "BT.709, full range: red is seen" sees 255 0 0
control colorspace=2,ycbcr_encoding=0,quantization=0,test_pattern=0

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

# more FIELD COMMAND…: does the counter rise after the command?
more() {
    local counter=$1 before
    before=$(camera "$counter")
    shift
    "$@" || return
    rises() { at_least "$(camera "$counter")" $((before + 1)); }
    eventually 20 rises
}
check "a damaged frame is counted" more bad control inject_v4l2_buf_flag_error=1
check "frames that the driver loses are counted" more lost control percentage_of_dropped_buffers=50
control percentage_of_dropped_buffers=0
check "and it still streams" streams
check "a fatal error of the driver: the camera is opened anew" bash -c '
    v4l2-ctl --device /dev/video0 --set-ctrl inject_fatal_streaming_error=1'
check "and it streams again" eventually 40 streams
check "with frames" more taken true

chmod 600 /dev/video0
systemctl reload edgeopt-agent
configure 'width = 320' 'height = 180' 'fps = 15.0'
check "no permission: the group is named" eventually 20 says 'group `video`'
chmod 660 /dev/video0
check "with it: it streams" eventually 40 streams

systemctl stop edgeopt-agent
v4l2-ctl --device /dev/video0 --stream-mmap --stream-count=100000 >/dev/null 2>&1 &
other=$!
sleep 3
systemctl start edgeopt-agent
check "another program has it: that is said" eventually 20 says "something else uses it"
kill $other
check "when it ends: it streams" eventually 40 streams

pid=$(pid)
check "it is unplugged while it streams" control disconnect=1
check "that is said" eventually 20 says "unplugged"
check "the daemon lets go of it" eventually 20 unplug
check "plugged in again" plug
check "it streams again" eventually 40 streams
check "results come again" colour
check "the same process all the while" is "$(pid)" "$pid"
lines() { journalctl -u edgeopt-agent -b --no-pager | grep -c 'camera /dev/video0'; }
journalctl -u edgeopt-agent -b --no-pager -o cat | grep -i camera
check "the journal has some lines about it, and no flood" test "$(lines)" -le 60
stops() {
    local begun=$SECONDS
    systemctl stop edgeopt-agent
    at_least 20 $((SECONDS - begun)) && is "$(field Result) $(field ExecMainStatus)" "success 0"
}
check "it stops in time while the camera streams" stops
cp -p "$work/agent.toml" /etc/edgeopt/agent.toml
rmmod vivid
systemctl start edgeopt-agent
