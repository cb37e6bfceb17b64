# What can go wrong with a camera: damage, loss, errors, no permission, another reader, unplugging.
. /host/guest/checks.bash
. /host/guest/camera.bash
prepare
plug
configure 'width = 320' 'height = 180' 'fps = 15.0'
check "the model is deployed" deployed
check "it streams" eventually 40 streams

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
configure 'width = 320' 'height = 180' 'fps = 10.0'
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
tidy
