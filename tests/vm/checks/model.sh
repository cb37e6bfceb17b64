# A model comes over MQTT and answers on every way in.
. /host/guest/checks.bash

# Instead of an error that a library may get over: a system call outside the unit's filter ends the daemon.
mkdir -p /run/systemd/system/edgeopt-agent.service.d
printf '[Service]\nSystemCallErrorNumber=kill\n' >/run/systemd/system/edgeopt-agent.service.d/strict.conf
systemctl daemon-reload
systemctl restart edgeopt-agent

deploy() { edgeopt fleet deploy "/host/digits-$1.edge" --device device --slot digits --timeout 120; }
digit() { contains "\"classes\":[{\"index\":$1," "${@:2}"; }
answers_as() { contains "\"version\":\"$1\"" predict; }

check "version 1 is deployed over MQTT" deploy 1
check "answers on the Unix socket: a 0" digit 0 predict /host/digits/0000.png
check "answers over MQTT" by_mqtt

by_folder() {
    edgeopt fleet listen --device device --slot digits --count 3 --seconds 20 --json >/tmp/heard &
    local listener=$!
    sleep 1
    for file in 0001 0002 0003; do
        runuser -u technician -- cp "/host/digits/$file.png" /var/lib/edgeopt/in/
    done
    wait $listener
    for file in 0001 0002 0003; do
        contains "$file.png" cat /tmp/heard || return
    done
    is "$(ls /var/lib/edgeopt/in)" ""
}
useradd --system --groups edgeopt technician 2>/dev/null
check "a member of the group puts files into the folder; they go, their results come" by_folder

while_asked() {
    (while predict >>/tmp/under-load 2>&1; do echo >>/tmp/under-load; done) &
    local asker=$!
    deploy 2
    local status=$?
    sleep 1
    kill -0 $asker || { tail -n 3 /tmp/under-load; return 1; }
    kill $asker
    return $status
}
check "version 2 replaces it; no request fails meanwhile" while_asked
check "version 2 answers" answers_as 2
check "no system call outside the unit's filter was tried" is "$(field NRestarts) $(field ActiveState)" "0 active"
rm /run/systemd/system/edgeopt-agent.service.d/strict.conf
systemctl daemon-reload
systemctl restart edgeopt-agent
