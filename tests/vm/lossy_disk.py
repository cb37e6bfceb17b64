"""A disk whose cache is lost with the power: an NBD server for one client.

    lossy_disk.py IMAGE SOCKET SEED

What is written goes to a cache in memory; a flush (or a write with FUA) brings it to the image. On `cut` at standard
input, a power cut, the image gets some of the unflushed writes: none, all, or any blocks among them, as a drive that
reorders its writes may leave it. Most cuts wait up to a second for such writes: between them and their flush is the
moment that hurts. A block of 4 KiB survives as a whole or not at all. On `close` everything is written.
Protocol: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md (fixed newstyle, one export, simple replies).
"""

import os
import random
import socket
import struct
import sys
import threading
import time

BLOCK = 4096
OPTION_MAGIC = 0x49484156454F5054  # "IHAVEOPT"
REPLY_MAGIC = 0x3E889045565A9
OPT_ABORT, OPT_INFO, OPT_GO = 2, 6, 7
REP_ACK, REP_INFO, REP_UNSUPPORTED = 1, 3, (1 << 31) + 1
HAS_FLAGS, SEND_FLUSH, SEND_FUA = 1, 4, 8
READ, WRITE, DISCONNECT, FLUSH = 0, 1, 2, 3
FUA = 1
EINVAL = 22


class Disk:
    """The image and the blocks that were written since the last flush."""

    def __init__(self, path):
        self.file = os.open(path, os.O_RDWR)
        self.size = os.fstat(self.file).st_size
        self.cache = {}
        self.flushes = 0

    def read(self, offset, length):
        data = os.pread(self.file, length, offset)
        if self.cache:
            first, last = offset // BLOCK, (offset + length - 1) // BLOCK
            cached = [b for b in range(first, last + 1) if b in self.cache]
            if cached:
                whole = bytearray(data)
                for block in cached:
                    start = max(block * BLOCK, offset)
                    end = min((block + 1) * BLOCK, offset + length)
                    whole[start - offset:end - offset] = self.cache[block][start - block * BLOCK:end - block * BLOCK]
                data = bytes(whole)
        return data

    def write(self, offset, data, through):
        position = 0
        while position < len(data):
            block, within = divmod(offset + position, BLOCK)
            part = data[position:position + BLOCK - within]
            if len(part) < BLOCK:
                old = bytearray(self.read(block * BLOCK, BLOCK))
                old[within:within + len(part)] = part
                part = bytes(old)
            if through:
                self.cache.pop(block, None)
                os.pwrite(self.file, part, block * BLOCK)
            else:
                self.cache[block] = part
            position += BLOCK - within

    def flush(self, blocks=None):
        for block in self.cache if blocks is None else blocks:
            os.pwrite(self.file, self.cache[block], block * BLOCK)
        self.cache.clear()
        self.flushes += 1


def exactly(connection, length):
    data = bytearray(length)
    view, have = memoryview(data), 0
    while have < length:
        count = connection.recv_into(view[have:])
        if count == 0:
            raise EOFError
        have += count
    return bytes(data)


def negotiate(connection, disk):
    connection.sendall(struct.pack(">8sQH", b"NBDMAGIC", OPTION_MAGIC, 1))
    exactly(connection, 4)
    while True:
        magic, option, length = struct.unpack(">QII", exactly(connection, 16))
        if magic != OPTION_MAGIC:
            raise ValueError("no NBD client")
        exactly(connection, length)
        reply = lambda kind, data=b"": connection.sendall(struct.pack(">QIII", REPLY_MAGIC, option, kind, len(data)) + data)
        if option in (OPT_GO, OPT_INFO):
            reply(REP_INFO, struct.pack(">HQH", 0, disk.size, HAS_FLAGS | SEND_FLUSH | SEND_FUA))
            reply(REP_ACK)
            if option == OPT_GO:
                return
        elif option == OPT_ABORT:
            reply(REP_ACK)
            raise EOFError
        else:
            reply(REP_UNSUPPORTED)


def serve(connection, disk, lock):
    negotiate(connection, disk)
    while True:
        _, flags, kind, handle, offset, length = struct.unpack(">IHHQQI", exactly(connection, 28))
        data, error = b"", 0
        with lock:
            if kind == READ:
                data = disk.read(offset, length)
            elif kind == WRITE:
                disk.write(offset, exactly(connection, length), flags & FUA)
            elif kind == FLUSH:
                disk.flush()
            elif kind == DISCONNECT:
                return
            else:
                error = EINVAL
        connection.sendall(struct.pack(">IIQ", 0x67446698, error, handle) + data)


def accept(listener, disk, lock):
    while True:
        connection, _ = listener.accept()
        try:
            serve(connection, disk, lock)
        except (EOFError, ConnectionError):
            pass


def main():
    image, path, seed = sys.argv[1:]
    disk, lock, dice = Disk(image), threading.Lock(), random.Random(int(seed))
    if os.path.exists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1)
    threading.Thread(target=accept, args=(listener, disk, lock), daemon=True).start()
    print("ready", flush=True)
    how = sys.stdin.readline().strip()
    wanted = dice.choice((0, 1, 4, 16)) if how == "cut" else 0
    until = time.monotonic() + 1
    lock.acquire()
    while len(disk.cache) < wanted and time.monotonic() < until:
        lock.release()
        time.sleep(0.0005)
        lock.acquire()
    # The lock is kept: nothing is served after the cut.
    unflushed, flushes = sorted(disk.cache), disk.flushes
    share = dice.choice((0.0, 0.5, 0.9, 1.0)) if how == "cut" else 1.0
    survivors = [block for block in unflushed if dice.random() < share]
    disk.flush(survivors)
    print(f"{flushes} flushes, {len(unflushed)} blocks unflushed, {len(unflushed) - len(survivors)} lost", flush=True)
    os._exit(0)


main()
