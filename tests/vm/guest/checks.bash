# What the scripts of checks have in common: `. /host/guest/checks.bash`, then `check` and `eventually`.
# A script's status is 1 if one of its checks failed.
export EDGEOPT_BROKER=mqtt://127.0.0.1
failed=0
trap 'status=$?; [ $status = 0 ] || { echo "FAILED  the script ended with status $status"; exit $status; }; exit $failed' EXIT

# check TEXT COMMAND…: does the command succeed? Its output is shown if not.
check() {
    local text=$1 output
    shift
    local status=0
    output=$("$@" 2>&1) || status=$?
    if [ $status = 0 ]; then
        echo "ok      $text"
    else
        failed=1
        echo "FAILED  $text"
        echo "        $*: status $status"
        sed 's/^/        /' <<<"$output" | tail -n 20
    fi
}

# eventually SECONDS COMMAND…: repeats the command until it succeeds; its last output.
eventually() {
    local until=$((SECONDS + $1)) output
    shift
    while ! output=$("$@" 2>&1); do
        if [ $SECONDS -ge "$until" ]; then
            echo "$output"
            return 1
        fi
        sleep 0.1
    done
    echo "$output"
}

# contains TEXT COMMAND…: does the output hold the text?
contains() {
    local text=$1 output
    shift
    output=$("$@" 2>&1)
    echo "$output"
    [[ $output == *"$text"* ]]
}

# Asks the model over the local interface; prints the result.
predict() {
    curl --silent --show-error --fail-with-body --max-time 20 --unix-socket /run/edgeopt/http.sock \
        --data-binary "@${1:-/host/digits/0000.png}" "http://localhost/v1/slots/${2:-digits}/predict"
}

# Sends a digit over MQTT and prints the results that come within so many seconds.
by_mqtt() {
    edgeopt fleet listen --device device --slot digits --count 1 --seconds 20 --json >/tmp/heard &
    local listener=$!
    sleep 1
    edgeopt fleet send /host/digits/0000.png --device device --slot digits
    wait $listener
    cat /tmp/heard
    grep -q '"prediction"' /tmp/heard
}

pid() { systemctl show --value --property MainPID edgeopt-agent; }
field() { systemctl show --value --property "$1" edgeopt-agent; }
is() { [ "$1" = "$2" ] || { echo "is '$1', not '$2'"; return 1; }; }
at_least() { [ "$1" -ge "$2" ] || { echo "$1 is less than $2"; return 1; }; }
