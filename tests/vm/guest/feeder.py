"""Puts digits into the daemon's folder for ever, in the machine. A name goes to the host once the file is safe from a
power cut: written, synchronized, renamed into place, and the folder synchronized. From then on its result must come."""

import os
import time

FOLDER = "/var/lib/edgeopt/in/"
digits = []
for digit in sorted(os.listdir("/host/digits")):
    with open("/host/digits/" + digit, "rb") as file:
        digits.append(file.read())
with open("/proc/sys/kernel/random/boot_id") as file:
    boot = file.read()[:8]
os.umask(0o007)
directory = os.open(FOLDER, os.O_RDONLY)
with open("/dev/virtio-ports/edgeopt.accepted", "w", buffering=1) as host:
    for number in range(1 << 30):
        name = f"{boot}-{number}.png"
        with open(FOLDER + "." + name, "wb") as file:
            file.write(digits[number % len(digits)])
            file.flush()
            os.fsync(file.fileno())
        os.rename(FOLDER + "." + name, FOLDER + name)
        os.fsync(directory)
        host.write(name + "\n")
        time.sleep(0.2)
