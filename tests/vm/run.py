#!/usr/bin/env python3
"""Runs edgeopt-agent in a virtual machine and checks it: `make test-vm`, or see README.md beside this file."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cuts  # noqa: E402
from machine import HERE, Machine, MachineError  # noqa: E402

ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "vm"
# Each may use what the ones before have left: a running daemon, a model. Further scripts come after these.
ORDER = ["service", "model", "staying_up", "disk_full", "devices"]


class Suite:
    """A machine with the daemon installed, and what the checks said."""

    def __init__(self, keep):
        self.keep, self.failed, self.passed = keep, 0, 0
        self.image = Path(subprocess.run([HERE / "image.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
        self.folder = CACHE / f"run-{os.getpid()}"
        self.folder.mkdir(parents=True)
        self.share = self.folder / "share"
        self.share.mkdir()
        self.machine = None

    def prepare(self):
        subprocess.run([HERE / "share.sh", self.share], check=True)

    def new_machine(self, name):
        if self.machine is not None:
            self.machine.destroy()
        self.machine = Machine(self.folder / name, self.image, self.share)
        return self.machine

    def say(self, good, text, detail=""):
        """One line for a check that ran here."""
        print(f"{'ok     ' if good else 'FAILED '} {text}", flush=True)
        self.passed += good
        self.failed += not good
        if not good and detail:
            print("        " + detail.strip().replace("\n", "\n        "), flush=True)

    def script(self, name, timeout=800):
        """Runs `checks/<name>.sh` in the machine, whose lines are checks, and shows them as they come."""
        print(f"-- {name}", flush=True)
        log = self.machine.folder / "said.log"
        with open(log, errors="replace") as said:
            said.seek(0, os.SEEK_END)
            shown = []

            def show():
                shown.append(said.read())
                print(shown[-1], end="", flush=True)

            pid = self.machine.start(f"exec >/dev/virtio-ports/edgeopt.said 2>&1; bash /host/checks/{name}.sh", timeout)
            result = self.machine.finish(pid, timeout, show)
            show()
        lines = "".join(shown).splitlines()
        self.passed += sum(line.startswith("ok ") for line in lines)
        failed = sum(line.startswith("FAILED ") for line in lines)
        if failed == 0 and (result.status != 0 or not lines):
            self.say(False, f"{name}: status {result.status}, {len(lines)} lines")
        self.failed += failed
        if failed or result.status:
            print(f"   the machine's journal:\n{self.machine.journal()}", flush=True)

    def close(self):
        if self.machine is not None:
            self.machine.destroy()
        if self.keep or self.failed:
            print(f"disk and logs: {self.folder}")
        if not self.keep:
            for disk in self.folder.glob("*/root.img"):
                disk.unlink()
            if not self.failed:
                shutil.rmtree(self.folder)


def boot_and_install(suite, name="device"):
    machine = suite.new_machine(name)
    suite.say(True, f"boots in {machine.boot():.1f} s")
    result = machine.run("bash /host/guest/install.sh", 120)
    suite.say(result.status == 0, "installs as systemd/README.md says", result.output + result.errors)
    return machine


def reboot(suite):
    print("-- reboot", flush=True)
    seconds = suite.machine.reboot()
    answer = suite.machine.run("""
        . /host/guest/checks.bash
        eventually 60 predict && is "$(field ActiveState) $(field NRestarts)" "active 0" """, 120)
    suite.say(answer.status == 0, f"after a reboot ({seconds:.1f} s) the model answers without an operator",
              answer.output + answer.errors)


def everything(suite):
    """All there is but the power cuts, in one machine."""
    boot_and_install(suite)
    for name in ORDER:
        suite.script(name)
        if name == "staying_up":
            reboot(suite)
    for name in sorted(path.stem for path in (HERE / "checks").glob("*.sh")):
        if name not in ORDER:
            suite.script(name)


def some(suite, arguments):
    if arguments.bare:
        suite.new_machine("device").boot()
    else:
        boot_and_install(suite)
    if arguments.script:
        result = suite.machine.run(arguments.script.read_text(), 600)
        print(result.output + result.errors, end="")
        suite.failed += result.status != 0
    for name in arguments.checks:
        suite.script(name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checks", nargs="*", help="names of scripts in checks/, without .sh")
    parser.add_argument("--all", action="store_true", help="all scripts in checks/, and a reboot")
    parser.add_argument("--script", type=Path, help="a bash script of yours, run in the machine after the installation")
    parser.add_argument("--bare", action="store_true", help="without the installation")
    parser.add_argument("--cuts", type=int, metavar="N", default=0, help="power cuts, in a machine of their own")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the cuts; a new one each time")
    parser.add_argument("--keep", action="store_true", help="keep the machine's disk")
    arguments = parser.parse_args()
    # Ended by a signal, it still ends its machine.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    suite = Suite(arguments.keep)
    begun = time.monotonic()
    try:
        suite.prepare()
        if arguments.all:
            everything(suite)
            suite.machine.off()
        elif arguments.checks or arguments.script or arguments.bare:
            some(suite, arguments)
            suite.machine.off()
        if arguments.cuts:
            print(f"-- power cuts (seed {arguments.seed})", flush=True)
            boot_and_install(suite, "cuts")
            cuts.run(suite, arguments.cuts, arguments.seed)
    except (MachineError, OSError, subprocess.SubprocessError) as error:
        suite.say(False, "the virtual machine", str(error))
        if suite.machine is not None:
            print(suite.machine.journal())
    finally:
        suite.close()
    print(f"{suite.passed} passed, {suite.failed} failed, {time.monotonic() - begun:.0f} s")
    sys.exit(suite.failed != 0)


main()
