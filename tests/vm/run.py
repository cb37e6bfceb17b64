#!/usr/bin/env python3
"""Runs edgeopt-agent in a virtual machine and checks it: `make test-vm`, or see README.md beside this file."""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cuts  # noqa: E402
from machine import HERE, Machine, MachineError  # noqa: E402

ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "vm"


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

    def script(self, name, timeout=300):
        """Runs `checks/<name>.sh` in the machine, whose lines are checks."""
        print(f"-- {name}", flush=True)
        result = self.machine.run(f"bash /host/checks/{name}.sh", timeout)
        print(result.output, end="", flush=True)
        lines = result.output.splitlines()
        self.passed += sum(line.startswith("ok ") for line in lines)
        failed = sum(line.startswith("FAILED ") for line in lines)
        if failed == 0 and result.status != 0:
            self.say(False, f"{name}: status {result.status}", result.errors)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checks", nargs="*", help="names of scripts in checks/, without .sh")
    parser.add_argument("--script", type=Path, help="a bash script of yours, run in the machine after the installation")
    parser.add_argument("--bare", action="store_true", help="without the installation")
    parser.add_argument("--cuts", type=int, default=0, metavar="N", help="power cuts")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the cuts; a new one each time")
    parser.add_argument("--keep", action="store_true", help="keep the machine's disk")
    arguments = parser.parse_args()
    suite = Suite(arguments.keep)
    begun = time.monotonic()
    try:
        suite.prepare()
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
        if arguments.cuts:
            print(f"-- power cuts (seed {arguments.seed})", flush=True)
            cuts.run(suite, arguments.cuts, arguments.seed)
        else:
            suite.machine.off()
    except (MachineError, OSError, subprocess.SubprocessError) as error:
        suite.say(False, "the virtual machine", str(error))
        if suite.machine is not None:
            print(suite.machine.journal())
    finally:
        suite.close()
    print(f"{suite.passed} passed, {suite.failed} failed, {time.monotonic() - begun:.0f} s")
    sys.exit(suite.failed != 0)


main()
