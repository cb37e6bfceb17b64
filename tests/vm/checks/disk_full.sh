# The disk is full: the daemon lives, says so, and goes on when there is room.
. /host/guest/checks.bash
systemctl start edgeopt-agent
check "a model answers before" eventually 20 predict

fill() {
    local free
    free=$(df --output=avail -B1 /var/lib/edgeopt | tail -n 1)
    fallocate -l "$free" /var/filler 2>&1
    # What fallocate leaves, and what is root's alone stays free for the rest of the system.
    runuser -u edgeopt -- sh -c 'cat /dev/zero >/var/lib/edgeopt/filler' 2>&1
    contains "No space left" runuser -u edgeopt -- cp /host/digits/0000.png /var/lib/edgeopt/probe
}
check "the disk is full" fill
before=$(pid)
check "inference on the local interface answers" predict
# Small ones still fit into the last block of the spool's file.
waits() {
    cp /host/digits/*.png /var/lib/edgeopt/in/
    sleep 8
    at_least "$(ls /var/lib/edgeopt/in | wc -l)" 1
}
check "files whose results find no room stay" waits
check "the journal says what is full" contains "free on disk: 0 B" journalctl -u edgeopt-agent -b --no-pager -n 30
refused() {
    local output
    output=$(edgeopt fleet deploy /host/digits-3.edge --device device --slot digits --timeout 30 2>&1) && return 1
    contains "No space left on device" echo "$output"
}
check "a deployment waits, and the operator hears what for" refused
check "the same process all the while, and ready" is "$(field ActiveState) $(pid)" "active $before"
check "the model still answers" predict

rm /var/filler /var/lib/edgeopt/filler /var/lib/edgeopt/probe
gone() { is "$(ls /var/lib/edgeopt/in)" ""; }
check "with room again the files get their results" eventually 60 gone
check "and the deployment succeeds" edgeopt fleet deploy /host/digits-3.edge --device device --slot digits --timeout 120
