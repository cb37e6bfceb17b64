#!/usr/bin/env python3
"""Trains the small digit classifier of the zoo and writes everything the tests and the demo use of it.

usage: models/zoo/fetch.py mnist && python3 models/zoo/mnist/train.py      (needs numpy; minutes on two cores)

Writes beside this file: mnist.onnx (with its BatchNormalization nodes unfolded: folding them is the optimizer's job),
calibration/ (digits of the training split) and heldout/ (digits the network never saw, with labels.csv). Seeded: the
same data and numpy give the same network.
"""
import json
import pathlib
import shutil
import struct
import zlib

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
DIGITS = HERE.parents[2] / ".cache" / "zoo" / "mnist" / "digits"
HELD_OUT, SHOWN, CALIBRATION = 2000, 500, 100
MEAN, STD = 0.1307, 0.3081
EPOCHS, BATCH = 14, 64
rng = np.random.default_rng(20)


def load():
    pixels, labels = [], []
    for digit in range(10):
        data = np.array(json.loads((DIGITS / f"{digit}.json").read_text())["data"], np.float32)
        data = data[: len(data) // 784 * 784].reshape(-1, 784)
        pixels.append(np.rint(data * 255).clip(0, 255).astype(np.uint8))
        labels += [digit] * len(data)
    order = rng.permutation(len(labels))
    return np.concatenate(pixels)[order].reshape(-1, 28, 28), np.array(labels)[order]


def normalize(pixels):
    return ((pixels.astype(np.float32) / 255 - MEAN) / STD)[:, None]


# --- layers: forward returns (output, what backward needs); 3x3 convolutions with padding 1, NCHW ------------------

def columns(x):
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    n, c, h, w = x.shape
    s = padded.strides
    view = np.lib.stride_tricks.as_strided(padded, (n, h, w, c, 3, 3), (s[0], s[2], s[3], s[1], s[2], s[3]))
    return view.reshape(n * h * w, c * 9)


def conv(x, weight):
    n, _, h, w = x.shape
    flat = columns(x)
    out = flat @ weight.reshape(len(weight), -1).T
    return out.reshape(n, h, w, -1).transpose(0, 3, 1, 2), (flat, x.shape, weight)


def conv_back(gradient, kept):
    flat, (n, c, h, w), weight = kept
    g = gradient.transpose(0, 2, 3, 1).reshape(n * h * w, -1)
    d_weight = (g.T @ flat).reshape(weight.shape)
    d_flat = (g @ weight.reshape(len(weight), -1)).reshape(n, h, w, c, 3, 3)
    d_x = np.zeros((n, c, h + 2, w + 2), np.float32)
    for i in range(3):
        for j in range(3):
            d_x[:, :, i:i + h, j:j + w] += d_flat[..., i, j].transpose(0, 3, 1, 2)
    return d_x[:, :, 1:-1, 1:-1], d_weight


def batch_norm(x, scale, shift, running, train):
    if train:
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
        running[0] += 0.1 * (mean - running[0])
        running[1] += 0.1 * (var - running[1])
    else:
        mean, var = running
    inverse = 1 / np.sqrt(var + 1e-5)
    hat = (x - mean[:, None, None]) * inverse[:, None, None]
    return hat * scale[:, None, None] + shift[:, None, None], (hat, inverse, scale)


def batch_norm_back(g, kept):
    hat, inverse, scale = kept
    count = g.size / g.shape[1]
    d_scale, d_shift = (g * hat).sum((0, 2, 3)), g.sum((0, 2, 3))
    spread = lambda v: v[:, None, None]
    return spread(scale * inverse) * (g - spread(d_shift / count) - hat * spread(d_scale / count)), d_scale, d_shift


def pool(x):
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // 2, 2, w // 2, 2)
    out = blocks.max((3, 5))
    return out, (blocks == out[:, :, :, None, :, None], x.shape)


def pool_back(g, kept):
    mask, shape = kept
    share = mask / mask.sum((3, 5), keepdims=True)
    return (share * g[:, :, :, None, :, None]).reshape(shape).astype(np.float32)


class Net:
    def __init__(self):
        he = lambda *shape: (rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)).astype(np.float32)
        ones, zeros = lambda n: np.ones(n, np.float32), lambda n: np.zeros(n, np.float32)
        self.p = dict(conv1=he(16, 1, 3, 3), scale1=ones(16), shift1=zeros(16),
                      conv2=he(32, 16, 3, 3), scale2=ones(32), shift2=zeros(32),
                      fc1=he(64, 1568), bias1=zeros(64), fc2=he(10, 64), bias2=zeros(10))
        self.running = [[zeros(16), ones(16)], [zeros(32), ones(32)]]

    def forward(self, x, train=False):
        p, kept = self.p, []
        for i in (1, 2):
            x, a = conv(x, p[f"conv{i}"])
            x, b = batch_norm(x, p[f"scale{i}"], p[f"shift{i}"], self.running[i - 1], train)
            positive = x > 0
            x, d = pool(x * positive)
            kept.append((a, b, positive, d))
        flat = x.reshape(len(x), -1)
        hidden = np.maximum(flat @ p["fc1"].T + p["bias1"], 0)
        return hidden @ p["fc2"].T + p["bias2"], (kept, flat, hidden, x.shape)

    def gradients(self, x, labels):
        p = self.p
        logits, (kept, flat, hidden, shape) = self.forward(x, train=True)
        probability = np.exp(logits - logits.max(1, keepdims=True))
        probability /= probability.sum(1, keepdims=True)
        g = probability
        g[np.arange(len(labels)), labels] -= 1
        g = (g / len(labels)).astype(np.float32)
        grad = dict(fc2=g.T @ hidden, bias2=g.sum(0))
        g = (g @ p["fc2"]) * (hidden > 0)
        grad.update(fc1=g.T @ flat, bias1=g.sum(0))
        g = (g @ p["fc1"]).reshape(shape)
        for i in (2, 1):
            a, b, positive, d = kept[i - 1]
            g = pool_back(g, d) * positive
            g, grad[f"scale{i}"], grad[f"shift{i}"] = batch_norm_back(g, b)
            g, grad[f"conv{i}"] = conv_back(g.astype(np.float32), a)
        return grad


def train(net, pixels, labels):
    moment = {k: (np.zeros_like(v), np.zeros_like(v)) for k, v in net.p.items()}
    steps, step = EPOCHS * (len(labels) // BATCH), 0
    for epoch in range(EPOCHS):
        order = rng.permutation(len(labels))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start:start + BATCH]
            images = pixels[chosen]
            dy, dx = rng.integers(-2, 3, 2)
            x = normalize(np.roll(images, (dy, dx), (1, 2)))
            grad = net.gradients(x, labels[chosen])
            step += 1
            rate = 2e-3 * 0.5 * (1 + np.cos(np.pi * step / steps))
            for k, g in grad.items():  # Adam
                m, v = moment[k]
                m += 0.1 * (g - m)
                v += 0.001 * (g * g - v)
                net.p[k] -= (rate * (m / (1 - 0.9 ** step)) / (np.sqrt(v / (1 - 0.999 ** step)) + 1e-8)).astype(np.float32)
        print(f"epoch {epoch + 1}/{EPOCHS}", flush=True)


def accuracy(net, pixels, labels):
    scores = [net.forward(normalize(pixels[i:i + 250]))[0].argmax(1) for i in range(0, len(labels), 250)]
    return float((np.concatenate(scores) == labels).mean())


# --- ONNX: the few protobuf fields this network needs (onnx.proto's numbers) --------------------------------------

def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(name, array):
    return b"".join(field(1, n) for n in array.shape) + field(2, 1) + field(8, name) + field(9, array.tobytes())


def ints(name, values):
    return field(1, name) + b"".join(field(8, v) for v in values) + field(20, 7)


def node(op, name, inputs, outputs, *attributes):
    return field(1, b"".join(field(1, i) for i in inputs) + b"".join(field(2, o) for o in outputs) + field(3, name)
                 + field(4, op) + b"".join(field(5, a) for a in attributes))


def value(name, *dims):
    shape = b"".join(field(1, field(2, d) if isinstance(d, str) else field(1, d)) for d in dims)
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, shape)))


def onnx(net):
    p, graph, x = net.p, b"", "image"
    weights = {}
    for i in (1, 2):
        weights.update({f"conv{i}.weight": p[f"conv{i}"], f"bn{i}.scale": p[f"scale{i}"], f"bn{i}.bias": p[f"shift{i}"],
                        f"bn{i}.mean": net.running[i - 1][0], f"bn{i}.var": net.running[i - 1][1]})
        graph += node("Conv", f"conv{i}", [x, f"conv{i}.weight"], [f"conv{i}.out"], ints("kernel_shape", [3, 3]),
                      ints("pads", [1, 1, 1, 1]))
        graph += node("BatchNormalization", f"bn{i}",
                      [f"conv{i}.out"] + [f"bn{i}.{k}" for k in ("scale", "bias", "mean", "var")], [f"bn{i}.out"])
        graph += node("Relu", f"relu{i}", [f"bn{i}.out"], [f"relu{i}.out"])
        graph += node("MaxPool", f"pool{i}", [f"relu{i}.out"], [f"pool{i}.out"], ints("kernel_shape", [2, 2]),
                      ints("strides", [2, 2]))
        x = f"pool{i}.out"
    transposed = field(1, "transB") + field(3, 1) + field(20, 2)
    graph += node("Flatten", "flatten", [x], ["flat"])
    graph += node("Gemm", "fc1", ["flat", "fc1.weight", "fc1.bias"], ["fc1.out"], transposed)
    graph += node("Relu", "relu3", ["fc1.out"], ["relu3.out"])
    graph += node("Gemm", "fc2", ["relu3.out", "fc2.weight", "fc2.bias"], ["logits"], transposed)
    weights.update({"fc1.weight": p["fc1"], "fc1.bias": p["bias1"], "fc2.weight": p["fc2"], "fc2.bias": p["bias2"]})
    graph += field(2, "mnist")
    graph += b"".join(field(5, tensor(k, np.ascontiguousarray(v, np.float32))) for k, v in weights.items())
    graph += field(11, value("image", "N", 1, 28, 28)) + field(12, value("logits", "N", 10))
    return field(1, 8) + field(2, "edgeopt zoo") + field(7, graph) + field(8, field(1, "") + field(2, 17))


def write_png(path, image):
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + row.tobytes() for row in image)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 28, 28, 8, 0, 0, 0, 0))
                     + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))


def write_folder(folder, pixels, labels):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for index, image in enumerate(pixels):
        write_png(folder / f"{index:04}.png", image)
    (folder / "labels.csv").write_text("".join(f"{i:04}.png,{label}\n" for i, label in enumerate(labels)))


def main():
    pixels, labels = load()
    held, seen = slice(0, HELD_OUT), slice(HELD_OUT, None)
    net = Net()
    train(net, pixels[seen], labels[seen])
    print(f"held-out accuracy over {HELD_OUT}: {accuracy(net, pixels[held], labels[held]):.4f}")
    (HERE / "mnist.onnx").write_bytes(onnx(net))
    write_folder(HERE / "heldout", pixels[:SHOWN], labels[:SHOWN])
    write_folder(HERE / "calibration", pixels[seen][:CALIBRATION], labels[seen][:CALIBRATION])


main()
