"""Puts digits into the daemon's folder for ever, in the machine. A name goes to the host once the file is safe from a
power cut: written, synchronized, renamed into place, and the folder synchronized. From then on its result must come."""

import os
import time
import uuid
from pathlib import Path

FOLDER = Path("/var/lib/edgeopt/in")
digits = [file.read_bytes() for file in sorted(Path("/host/digits").glob("*.png"))]
boot = uuid.uuid4().hex[:8]
os.umask(0o007)
directory = os.open(FOLDER, os.O_RDONLY)
with open("/dev/virtio-ports/edgeopt.accepted", "w", buffering=1) as host:
    for number in range(1 << 30):
        name = f"{boot}-{number}.png"
        part = FOLDER / f".{name}"
        with open(part, "wb") as file:
            file.write(digits[number % len(digits)])
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, FOLDER / name)
        os.fsync(directory)
        host.write(name + "\n")
        time.sleep(0.2)
