"""Writes a model for windows of a sensor and samples for it: `motion_model.py MODEL.onnx FOLDER`. From float32
[1, 8, 3] (eight samples of three channels) it gives the largest value of each channel, [1, 3]."""

import struct
import sys
from pathlib import Path

FLOAT, INT, INTS = 1, 2, 7  # onnx.proto: TensorProto.DataType, AttributeProto.AttributeType


def varint(value):
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(number, value):
    """A field of a protobuf message: a number, or text or a message with its length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(name, *lengths):
    shape = b"".join(field(1, field(1, length)) for length in lengths)
    return field(1, name) + field(2, field(1, field(1, FLOAT) + field(2, shape)))


axes = field(1, "axes") + field(8, 1) + field(20, INTS)
keep = field(1, "keepdims") + field(3, 0) + field(20, INT)
node = field(1, "window") + field(2, "largest") + field(3, "largest") + field(4, "ReduceMax") + field(5, axes) + field(5, keep)
graph = field(1, node) + field(2, "motion") + field(11, tensor("window", 1, 8, 3)) + field(12, tensor("largest", 1, 3))
Path(sys.argv[1]).write_bytes(field(1, 8) + field(7, graph) + field(8, field(2, 13)))

folder = Path(sys.argv[2])
folder.mkdir(exist_ok=True)
header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 8, 3), }".ljust(117) + "\n"
for sample in range(4):
    values = [((7 * sample + 3 * index) % 11 - 5) / 4 for index in range(24)]
    (folder / f"{sample}.npy").write_bytes(
        b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack("<24f", *values))
