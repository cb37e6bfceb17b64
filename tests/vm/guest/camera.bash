# What the checks of cameras have in common: after checks.bash. The camera is the kernel's virtual one, vivid; the model
# says the mean red, green and blue that it is shown.
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
    [ -n "$b" ] || return 1
    for pair in "$r $1" "$g $2" "$b $3"; do
        set -- $pair
        [ $(($1 - $2)) -le 3 ] && [ $(($2 - $1)) -le 3 ] || return 1
    done
}


# prepare: a bundle of the model, and no camera yet.
prepare() {
    cp -p /etc/edgeopt/agent.toml "$work/agent.toml"
    check "a model of colours" edgeopt build "$work/colour.onnx" -o "$work/colour.edge" --precision fp32 \
        --task "$work/colour.json" --name colour --model-version 1
    check "signed" edgeopt sign "$work/colour.edge" --key /host/fleet.key
    systemctl stop edgeopt-agent
    rmmod vivid 2>/dev/null
    true
}
deployed() { edgeopt fleet deploy "$work/colour.edge" --device device --slot colour --timeout 120; }
# As it was before.
tidy() {
    systemctl stop edgeopt-agent
    cp -p "$work/agent.toml" /etc/edgeopt/agent.toml
    rmmod vivid
    systemctl start edgeopt-agent
}
