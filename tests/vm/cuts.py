"""Power cuts: again and again, at any moment of serving, deploying and booting.

Broker, operator and observer are outside the machine and live on; the disk loses what was not flushed. In the machine,
files go into the daemon's folder all the time, while the operator deploys one version after the other.
"""

import json
import random
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from machine import BOOT, MachineError

VERSIONS = ("1", "2")
# Seconds after the boot until a result must have come; and for everything that waits at the end.
ANSWER = BOOT
# Share of the cuts that come before the daemon has answered; and of the others, before which the broker falls silent, so
# that results are on the device's disk and nowhere else.
EARLY = 0.25
SILENT = 0.5


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Outside:
    """What does not lose its power: broker, observer, operator."""

    def __init__(self, folder, programs):
        self.port, self.edgeopt = free_port(), programs / "edgeopt"
        self.results, self.deployed, self.problems = Path(folder) / "results.jsonl", 0, []
        configuration = Path(folder) / "mosquitto.conf"
        configuration.write_text(f"listener {self.port} 127.0.0.1\nallow_anonymous true\nuser root\n")
        self.broker = subprocess.Popen(["mosquitto", "-c", configuration], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=open(Path(folder) / "mosquitto.log", "wb"))
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            time.sleep(0.1)
        self.observer = subprocess.Popen(
            [self.edgeopt, "fleet", "listen", "--broker", self.address(), "--device", "device", "--json"],
            stdin=subprocess.DEVNULL, stdout=open(self.results, "wb"), stderr=open(Path(folder) / "observer.log", "wb"))
        self.ending, self.operator, self.command = threading.Event(), None, None

    def address(self):
        return f"mqtt://127.0.0.1:{self.port}"

    def deploy(self, bundle):
        self.command = subprocess.Popen(
            [self.edgeopt, "fleet", "deploy", bundle, "--broker", self.address(), "--device", "device",
             "--slot", "digits", "--timeout", "900"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        said, _ = self.command.communicate()
        return self.command.returncode, said

    def deploy_for_ever(self, share, dice):
        def work():
            while not self.ending.is_set():
                version = VERSIONS[self.deployed % 2]
                status, said = self.deploy(share / f"digits-{version}.edge")
                if self.ending.is_set():
                    return
                self.deployed += 1
                if status != 0:
                    self.problems.append(said)
                self.ending.wait(dice.uniform(0, 4))
        self.operator = threading.Thread(target=work, daemon=True)
        self.operator.start()

    def answers(self):
        """(name of the file, id, version) of each result so far."""
        found = []
        for line in self.results.read_text().splitlines():
            try:
                line = json.loads(line)
            except ValueError:  # being written
                continue
            if line["topic"].endswith("/result"):
                message = line["message"]
                found.append((message["stream"].rsplit("/", 1)[-1], message["id"], message["version"]))
        return found

    def stop_operator(self):
        """Waits for the deployment under way."""
        self.ending.set()
        if self.operator is not None:
            self.operator.join(120)
            if self.operator.is_alive():
                self.problems.append("the last deployment does not end")
                self.command.kill()

    def close(self):
        self.ending.set()
        for process in (self.command, self.observer, self.broker):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


def wait_for(condition, seconds):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True


def run(suite, count, seed):
    """`count` power cuts; what they did goes to `suite`."""
    dice = random.Random(seed)
    machine = suite.machine
    outside = Outside(machine.folder, suite.share / "bin")
    try:
        _run(suite, machine, outside, count, dice)
    finally:
        outside.close()


def _run(suite, machine, outside, count, dice):
    machine.must(f"""
        sed -i 's/^host = .*/host = "10.0.2.2"\\nport = {outside.port}/' /etc/edgeopt/agent.toml
        install -m 644 /host/guest/feeder.service /etc/systemd/system/
        systemctl daemon-reload
        systemctl disable --quiet --now mosquitto
        systemctl stop edgeopt-agent
        rm -rf /var/lib/edgeopt/store /var/lib/edgeopt/spool
        systemctl start edgeopt-agent
        systemctl enable --quiet feeder""")
    status, said = outside.deploy(suite.share / "digits-1.edge")
    suite.say(status == 0, "deployed by an operator outside", said)
    machine.off()

    outside.deploy_for_ever(suite.share, random.Random(dice.random()))
    boots, lost_blocks = [], 0
    for number in range(1, count + 1):
        before = len(outside.answers())
        begun = time.monotonic()
        if dice.random() < EARLY:
            machine.boot(lossy=dice.randrange(1 << 30), wait=False)
            time.sleep(dice.uniform(0, 1.3 * min(boots, default=BOOT / 6)))
            moment = f"{time.monotonic() - begun:.1f} s after power on"
        else:
            boots.append(machine.boot(lossy=dice.randrange(1 << 30)))
            answered = wait_for(lambda: len(outside.answers()) > before, ANSWER)
            answer = time.monotonic() - begun
            result = machine.run("bash /host/guest/after_cut.sh")
            suite.say(answered and result.status == 0, f"up in {boots[-1]:.1f} s, answers after {answer:.1f} s",
                      result.output + result.errors + ("" if answered else "no answer\n" + machine.journal()))
            after, silence = dice.uniform(0, 8), dice.uniform(0.5, 4) if dice.random() < SILENT else 0
            time.sleep(after)
            if silence:
                outside.broker.send_signal(signal.SIGSTOP)
                time.sleep(silence)
            moment = f"{time.monotonic() - begun:.1f} s after power on, {after:.1f} s of serving"
            moment += f", {silence:.1f} s with a silent broker" if silence else ""
        disk = machine.cut()
        outside.broker.send_signal(signal.SIGCONT)
        # What the broker still had is from before the cut.
        time.sleep(1)
        lost_blocks += int(disk.split()[-2])
        print(f"        cut {number}: {moment}; disk: {disk}", flush=True)

    boots.append(machine.boot(lossy=0))
    result = machine.run("bash /host/guest/after_cut.sh")
    suite.say(result.status == 0, "nothing wrong on the disk or in the journal at the end", result.output + result.errors)
    machine.must("systemctl disable --quiet --now feeder")
    outside.stop_operator()
    accepted = (machine.folder / "accepted.log").read_text().split()
    wait_for(lambda: not set(accepted) - {name for name, _, _ in outside.answers()}, ANSWER)
    answers = outside.answers()
    missing = set(accepted) - {name for name, _, _ in answers}
    suite.say(not missing, f"{len(accepted)} files accepted, {len(missing)} without a result",
              "\n".join(sorted(missing)[:20]) + "\n" + machine.run("ls -la /var/lib/edgeopt/in; edgeopt-agent status").output)
    twice = len(answers) - len({name for name, _, _ in answers})
    versions = ", ".join(f"{sum(v == version for _, _, v in answers)} by version {version}" for version in VERSIONS)
    suite.say(len({number for _, number, _ in answers}) == len(answers), f"{len(answers)} results, {twice} of them a "
              f"repetition, no id twice: {versions}")
    suite.say(not outside.problems, f"{outside.deployed} deployments, none refused", "\n".join(outside.problems))
    machine.off()
    check = subprocess.run(["e2fsck", "-fn", machine.disk], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    suite.say(check.returncode == 0, "e2fsck finds nothing", check.stdout)
    print(f"        {count} cuts, {lost_blocks} blocks lost; a boot takes {min(boots):.1f} to {max(boots):.1f} s")
    if lost_blocks == 0 and count >= 5:
        suite.say(False, "the disk lost nothing: these were no power cuts")
