# The unit under systemd: readiness, user, sandbox, limits.
. /host/guest/checks.bash

starts_when_ready() {
    systemctl start --no-block edgeopt-agent
    local state seen=
    for _ in $(seq 600); do
        state=$(field ActiveState)
        [ "$state" = activating ] && seen=yes
        [ "$state" = active ] && break
        sleep 0.02
    done
    # Asked at once: what systemd calls active answers.
    contains " ready, up" edgeopt-agent status && is "$seen" yes
}
check "systemctl start: activating, and active when the daemon is ready" starts_when_ready
check "systemctl status shows what it is doing" contains 'Status: "serving"' systemctl status --no-pager edgeopt-agent
check "nothing of it failed before" is "$(field NRestarts)" 0

pid=$(pid)
check "runs as the user edgeopt" is "$(ps -o user= -p "$pid")" edgeopt
check "no new privileges, no capabilities, a filter of system calls" \
    is "$(grep -E '^(NoNewPrivs|CapEff|CapBnd|Seccomp):' "/proc/$pid/status" | cut -f2 | paste -sd' ')" \
    "0000000000000000 0000000000000000 1 2"

# As root in the daemon's mounts: what fails here fails for everybody.
inside() { nsenter --mount --target "$pid" -- "$@"; }
for place in /etc /usr /boot /etc/edgeopt /var /sys/class; do
    check "$place cannot be written" contains "Read-only file system" inside touch "$place/x"
done
check "the kernel's settings cannot be changed" \
    contains "Read-only file system" inside sh -c 'echo 60 >/proc/sys/vm/swappiness'
check "its own folders can be written" inside touch /var/lib/edgeopt/x /var/cache/edgeopt/x /run/edgeopt/x
inside rm /var/lib/edgeopt/x /var/cache/edgeopt/x /run/edgeopt/x
touch /tmp/of-another
check "/tmp is its own" contains "No such file" inside ls /tmp/of-another
check "/root is hidden" contains "Permission denied" inside runuser -u edgeopt -- ls /root
check "other users' processes are hidden" contains "No such file" inside runuser -u edgeopt -- cat /proc/1/stat

# In the daemon's control group, where devices are allowed or not.
group=/sys/fs/cgroup$(field ControlGroup)
as_the_daemon() { bash -c "echo \$\$ >$group/cgroup.procs; $1"; }
check "the disk cannot be opened" contains "Operation not permitted" as_the_daemon "head -c 1 /dev/vda"
check "/dev/null can" as_the_daemon "head -c 0 /dev/null"

check "its files are for the group edgeopt alone" \
    is "$(stat -c '%a %U %G' /var/lib/edgeopt /var/cache/edgeopt /run/edgeopt | sort -u)" "750 edgeopt edgeopt"
check "a stranger reads no configuration" contains "Permission denied" runuser -u nobody -- cat /etc/edgeopt/agent.toml
check "a stranger reaches no local interface" \
    contains "Permission denied" runuser -u nobody -- edgeopt-agent --config /host/guest/agent.toml status
useradd --system --groups edgeopt technician 2>/dev/null
check "a member of the group does" contains "ready" runuser -u technician -- edgeopt-agent status

memory=$(($(awk '/MemTotal/ { print $2 }' /proc/meminfo) * 1024 * 80 / 100 / 4096 * 4096))
check "80 % of memory at most" is "$(cat "$group/memory.max")" "$memory"
shown=$(awk "BEGIN { printf \"of %.2f GiB for models\", $memory / 2^30 }")
check "the daemon knows ($shown)" contains "$shown" edgeopt-agent status
score=$(systemd-analyze security --no-pager edgeopt-agent | sed -nE 's/.*exposure level.*: ([0-9.]+).*/\1/p')
check "systemd-analyze security: $score, 2.0 at most" test "${score/./}" -le 20
