"""Writes an ONNX model that says the mean red, green and blue of an image, 0 to 255: what a camera sees, in numbers.
Usage: mean_colour.py FOLDER, for `colour.onnx` and its task `colour.json`. ONNX is written by hand (onnx.proto3)."""

import sys
from pathlib import Path

SIDE = 64


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def field(number, value):
    """A protobuf field: a number, a text or a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(name, dims):
    shape = b"".join(field(1, field(1, dim)) for dim in dims)
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, shape)))


node = field(1, "image") + field(2, "colour") + field(3, "mean") + field(4, "GlobalAveragePool")
graph = (field(1, node) + field(2, "mean_colour") + field(11, tensor("image", [1, 3, SIDE, SIDE]))
         + field(12, tensor("colour", [1, 3, 1, 1])))
model = field(1, 8) + field(7, graph) + field(8, field(2, 17))
# The machine's Python has no `json`.
task = ('{"preprocessing": {"color": "rgb", "resize": {"mode": "stretch", "width": %d, "height": %d}, "scale": 1.0,'
        ' "mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0], "layout": "nchw"}}' % (SIDE, SIDE))
folder = Path(sys.argv[1])
(folder / "colour.onnx").write_bytes(model)
(folder / "colour.json").write_text(task)
