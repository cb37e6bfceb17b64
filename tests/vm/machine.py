"""A virtual machine that can be switched off like a real one.

QEMU runs Debian from a disk image of its own; scripts run in it through QEMU's guest agent. There is nothing of the
host in the machine but the folder `/host`, read-only, and a network that ends at the host's loopback (10.0.2.2).
"""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENT = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"]


def has_kvm():
    """Whether the processor runs virtual machines by itself. A /dev/kvm alone does not say so: behind it may be a
    software that runs only kernels made for it."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return os.access("/dev/kvm", os.W_OK) and ("vmx" in flags or "svm" in flags)


KVM = has_kvm()
# Seconds; without KVM the processor is emulated, at a tenth of its speed.
BOOT = 60 if KVM else 300
# IA32_ARCH_CAPABILITIES: not to be set where the host is a virtual machine itself. Five-level paging is slow to emulate.
CPU = "max,arch-capabilities=off" if KVM else "max,la57=off"


class MachineError(Exception):
    """The machine did not do what was asked."""


class Result:
    """What a script in the machine printed, and its exit status."""

    def __init__(self, status, output, errors):
        self.status, self.output, self.errors = status, output, errors


class Machine:
    """One machine: its disk and its logs are in `folder`, which this object makes."""

    def __init__(self, folder, image, share):
        self.folder, self.image, self.share = Path(folder), Path(image), Path(share)
        self.folder.mkdir(parents=True)
        self.disk = self.folder / "root.img"
        subprocess.run(["cp", "--sparse=always", self.image / "root.img", self.disk], check=True)
        self.console = self.folder / "console.log"
        self.qemu = None
        self.lossy = None
        self.agent = None

    def boot(self, lossy=None, wait=True):
        """Switches on and waits until scripts can run; returns the seconds that took. With `lossy`, a seed, the disk
        has a cache that is lost with the power (see `lossy_disk.py`). Without `wait`, all that can follow is a cut."""
        begun = time.monotonic()
        drive = f"format=raw,file={self.disk},cache=writeback"
        if lossy is not None:
            self.lossy = subprocess.Popen(
                [sys.executable, HERE / "lossy_disk.py", "root.img", "disk.sock", str(lossy)],
                cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            if self.lossy.stdout.readline() != "ready\n":
                raise MachineError("the lossy disk does not start")
            drive = "driver=nbd,server.type=unix,server.path=disk.sock,export=disk,cache.writeback=on"
        arguments = [
            "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none",
            "-machine", "q35,sata=off", "-accel", "kvm" if KVM else "tcg,thread=multi", "-cpu", CPU, "-smp", "2", "-m", "2048",
            "-kernel", self.image / "vmlinuz", "-initrd", self.image / "initrd",
            "-append", "root=/dev/vda rw quiet loglevel=4 console=ttyS0 panic=10 systemd.show_status=no mitigations=off apparmor=0 "
            "audit=0 selinux=0 nokaslr net.ifnames=0 modprobe.blacklist=kvm_amd,kvm_intel,psmouse,iTCO_wdt,lpc_ich,i2c_i801",
            "-chardev", "file,id=console,path=console.log,append=on", "-serial", "chardev:console",
            "-drive", f"if=virtio,{drive}",
            "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
            "-chardev", "socket,id=agent,path=agent.sock,server=on,wait=off",
            "-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
            "-chardev", "file,id=accepted,path=accepted.log,append=on",
            "-device", "virtserialport,chardev=accepted,name=edgeopt.accepted",
            "-chardev", "file,id=said,path=said.log,append=on",
            "-device", "virtserialport,chardev=said,name=edgeopt.said",
            "-virtfs", f"local,path={self.share},mount_tag=host,security_model=none,readonly=on",
            "-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net",
        ]
        with open(self.folder / "qemu.log", "ab") as log:
            self.qemu = subprocess.Popen([str(a) for a in arguments], cwd=self.folder, stdin=subprocess.DEVNULL,
                                         stdout=log, stderr=log)
        if wait:
            self._connect(begun + BOOT)
        return time.monotonic() - begun

    def _connect(self, deadline):
        # A path in a Unix socket's address may have 107 bytes only, whatever this folder is called.
        folder = os.open(self.folder, os.O_PATH)
        try:
            while True:
                if self.qemu.poll() is not None:
                    raise self._ended()
                try:
                    self.agent = socket.socket(socket.AF_UNIX)
                    self.agent.connect(f"/proc/self/fd/{folder}/agent.sock")
                    break
                except OSError:
                    self.agent.close()
                    if time.monotonic() > deadline:
                        raise MachineError("QEMU opens no socket")
                    time.sleep(0.02)
        finally:
            os.close(folder)
        self.buffer = b""
        self._synchronize(deadline)

    def _synchronize(self, deadline):
        """Waits for the guest's agent, and forgets answers to earlier questions."""
        number = time.monotonic_ns() & 0x7FFFFFFF
        while True:
            number += 1
            try:
                self._send({"execute": "guest-sync", "arguments": {"id": number}})
                until = time.monotonic() + 0.2
                while True:
                    if self._receive(until).get("return") == number:
                        return
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise MachineError("the machine does not come up; its console:\n" + self.tail()) from None

    def _send(self, message):
        try:
            self.agent.sendall(json.dumps(message).encode() + b"\n")
        except ConnectionError:
            raise self._ended() from None

    def _receive(self, deadline):
        while b"\n" not in self.buffer:
            self.agent.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                received = self.agent.recv(1 << 16)
            except ConnectionError:
                received = b""
            if not received:
                raise self._ended()
            self.buffer += received
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line.lstrip(b"\xff"))

    def _ended(self):
        return MachineError(f"QEMU ended: {(self.folder / 'qemu.log').read_text()[-2000:]}")

    def _ask(self, command, deadline, **arguments):
        self._send({"execute": command, "arguments": arguments})
        answer = self._receive(deadline)
        if "error" in answer:
            raise MachineError(f"{command}: {answer['error']['desc']}")
        return answer["return"]

    def start(self, script, timeout=60):
        """Starts a bash script as root; the number is for `finish`."""
        return self._ask("guest-exec", time.monotonic() + 20, path="/usr/bin/timeout",
                         arg=["--kill-after=5", str(timeout), "/bin/bash", "-c", script],
                         env=ENVIRONMENT, **{"capture-output": True})["pid"]

    def finish(self, pid, timeout=60, meanwhile=lambda: None):
        """Waits for a script."""
        deadline, pause = time.monotonic() + timeout + 20, 0.01
        while True:
            state = self._ask("guest-exec-status", deadline, pid=pid)
            if state["exited"]:
                text = lambda field: base64.b64decode(state.get(field, "")).decode(errors="replace")
                return Result(state.get("exitcode", 128 + state.get("signal", 0)), text("out-data"), text("err-data"))
            if time.monotonic() > deadline:
                raise MachineError("a script in the machine does not end")
            meanwhile()
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    def run(self, script, timeout=60):
        """Runs a bash script as root; `timeout` in seconds ends it (status 124)."""
        return self.finish(self.start(script, timeout), timeout)

    def must(self, script, timeout=60):
        """What a script prints; an error if its status is not 0."""
        result = self.run(script, timeout)
        if result.status != 0:
            raise MachineError(f"status {result.status} of: {script}\n{result.output}{result.errors}")
        return result.output

    def reboot(self):
        """An orderly restart; returns its seconds."""
        boot = "cat /proc/sys/kernel/random/boot_id"
        before, begun = self.must(boot), time.monotonic()
        self._send({"execute": "guest-shutdown", "arguments": {"mode": "reboot"}})
        while time.monotonic() - begun < 2 * BOOT:
            time.sleep(0.2)
            self._synchronize(begun + 2 * BOOT)
            try:
                if self.must(boot, 10) != before:
                    return time.monotonic() - begun
            except (MachineError, TimeoutError):
                continue
        raise MachineError("the machine does not restart; its console:\n" + self.tail())

    def cut(self):
        """The power goes. What the guest has not written to its disk is lost, and with a lossy disk also what the
        disk was not told to flush; returns what that disk says."""
        said = self._close_disk("cut")
        self.qemu.send_signal(signal.SIGKILL)
        self.qemu.wait()
        if self.agent is not None:
            self.agent.close()
        return said

    def off(self):
        """An orderly end."""
        self._send({"execute": "guest-shutdown", "arguments": {"mode": "powerdown"}})
        try:
            self.qemu.wait(2 * BOOT)
        except subprocess.TimeoutExpired:
            self.cut()
            raise MachineError("the machine does not switch off; its console:\n" + self.tail()) from None
        self.agent.close()
        self._close_disk("close")

    def _close_disk(self, how):
        if self.lossy is None:
            return ""
        said, _ = self.lossy.communicate(how + "\n", timeout=60)
        if self.lossy.returncode != 0:
            raise MachineError("the lossy disk failed")
        self.lossy = None
        return said.strip()

    def destroy(self):
        """Ends what runs, whatever its state."""
        for process in (self.qemu, self.lossy):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def tail(self, lines=60):
        """The end of the serial console."""
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def journal(self, lines=60):
        """The guest's journal, or its console where it does not answer."""
        try:
            return self.run(f"journalctl -b --no-pager -o short-monotonic | grep -v qemu-ga | tail -n {lines}", 20).output
        except (MachineError, OSError) as error:
            return f"(no journal: {error})\n{self.tail()}"
