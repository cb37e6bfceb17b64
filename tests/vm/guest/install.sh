#!/usr/bin/env bash
# Installs the daemon as systemd/README.md says, with the configuration beside this file; in the machine.
set -euo pipefail
cd /host
install -m 755 bin/edgeopt bin/edgeopt-agent /usr/bin/
install -m 644 onnxruntime/libonnxruntime.so.* /usr/lib/
ldconfig
install -m 644 systemd/edgeopt-agent.service /usr/lib/systemd/system/
install -m 644 systemd/edgeopt.sysusers.conf /usr/lib/sysusers.d/edgeopt.conf
install -m 644 systemd/edgeopt.tmpfiles.conf /usr/lib/tmpfiles.d/edgeopt.conf
systemd-sysusers edgeopt.conf && systemd-tmpfiles --create edgeopt.conf
install -m 640 -g edgeopt guest/agent.toml /etc/edgeopt/
install -m 640 -g edgeopt fleet.pub /etc/edgeopt/
runuser -u edgeopt -- edgeopt-agent check
systemctl daemon-reload
systemctl enable edgeopt-agent
