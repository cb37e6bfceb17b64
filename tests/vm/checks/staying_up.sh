# Reload, crash, hang, stop, and a broker that goes.
. /host/guest/checks.bash
systemctl start edgeopt-agent
check "a model answers before" eventually 20 predict
first=$(pid)

reloads() {
    cp -p /etc/edgeopt/agent.toml /tmp/good.toml
    printf '[slots.spare]\ninputs = [{ kind = "http" }]\n' >>/etc/edgeopt/agent.toml
    systemctl reload edgeopt-agent
    eventually 30 contains "slot spare" edgeopt-agent status || return
    cp -p /tmp/good.toml /etc/edgeopt/agent.toml
    systemctl reload edgeopt-agent
    # While it is reloading, that is what systemd calls it.
    same() { is "$(field ActiveState) $(pid) $(edgeopt-agent status | grep -c spare)" "active $first 0" && predict; }
    eventually 30 same
}
check "systemctl reload: the same process, the new configuration" reloads
refuses() {
    cp -p /etc/edgeopt/agent.toml /tmp/good.toml
    echo 'nonsense' >>/etc/edgeopt/agent.toml
    systemctl reload edgeopt-agent
    sleep 2
    cp -p /tmp/good.toml /etc/edgeopt/agent.toml
    is "$(field ActiveState) $(pid)" "active $first" && predict &&
        contains "the configuration stays as it was: /etc/edgeopt/agent.toml:" journalctl -u edgeopt-agent -b --no-pager -n 5
}
check "a configuration that cannot be read changes nothing, and the journal says why" refuses

# comes_back SECONDS: another process is active and its model answers.
comes_back() {
    local old=$1
    another() { [ "$(field ActiveState)" = active ] && [ "$(pid)" != "$old" ]; }
    eventually "$2" another && eventually 30 predict
}
crash() {
    local old
    old=$(pid)
    kill -KILL "$old"
    comes_back "$old" 60
}
check "a crash (SIGKILL): started again, the model answers without an operator" crash
hang() {
    local old
    old=$(pid)
    kill -STOP "$old"
    comes_back "$old" 150 && contains "watchdog" journalctl -u edgeopt-agent -b --no-pager
}
check "a hang (SIGSTOP): the watchdog ends it, started again, the model answers" hang
check "systemd counts two restarts" is "$(field NRestarts)" 2

broker_restarts() {
    systemctl restart mosquitto
    eventually 60 contains "connected for" edgeopt-agent status && by_mqtt
}
check "the broker is restarted: the daemon connects again and answers" broker_restarts
broker_away() {
    systemctl stop mosquitto
    local before
    sleep 1
    before=$(ls /host/digits | head -n 10 | wc -l)
    cp $(ls /host/digits/*.png | head -n 10) /var/lib/edgeopt/in/
    eventually 20 is_empty /var/lib/edgeopt/in || return
    contains "$before waiting" edgeopt-agent status || contains "waiting" edgeopt-agent status || return
    systemctl start mosquitto
    eventually 90 contains "spool   0 waiting" edgeopt-agent status
}
is_empty() { is "$(ls "$1")" ""; }
check "results wait on disk while the broker is away, and go when it is back" broker_away

bad_configuration() {
    systemctl stop edgeopt-agent
    cp -p /etc/edgeopt/agent.toml /tmp/good.toml
    echo 'nonsense' >>/etc/edgeopt/agent.toml
    systemctl start edgeopt-agent
    sleep 12
    local state
    state="$(field ActiveState) $(field ExecMainStatus)"
    cp -p /tmp/good.toml /etc/edgeopt/agent.toml
    systemctl start edgeopt-agent
    is "$state" "failed 78" && eventually 30 predict
}
check "a configuration that cannot be read keeps it down (status 78); the right one starts it" bad_configuration

stops() {
    local begun=$SECONDS
    systemctl stop edgeopt-agent
    at_least 20 $((SECONDS - begun)) && is "$(field Result) $(field ExecMainStatus)" "success 0"
}
check "systemctl stop within 20 s, with success" stops
systemctl start edgeopt-agent
check "and started again: the model answers" eventually 30 predict
