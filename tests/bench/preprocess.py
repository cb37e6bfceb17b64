"""Encoded image to input tensor, side by side with OpenCV: decode, letterbox or stretch, colours, normalize, NCHW.

Runs `preprocess-speed` and the same steps in OpenCV (one thread each) in turn and prints medians and ratios. Needs the
release binaries (`make bench` builds them) and a Python with numpy and opencv-python-headless.

usage: preprocess.py --preprocess-speed BIN [--runs 5]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import cv2
import numpy as np


def photo(width, height):
    """Something like a photograph to a JPEG coder: smooth shapes, edges, a little noise; seeded."""
    generator = np.random.default_rng(3)
    image = cv2.resize(generator.integers(0, 255, (9, 16, 3), np.uint8), (width, height), interpolation=cv2.INTER_CUBIC)
    for _ in range(40):
        centre = tuple(int(value) for value in generator.integers(0, (width, height)))
        colour = tuple(int(value) for value in generator.integers(0, 255, 3))
        cv2.circle(image, centre, int(generator.integers(10, height // 6)), colour, -1)
    return np.clip(image + generator.normal(0, 4, image.shape), 0, 255).astype(np.uint8)


def yolov8(image):
    scale = min(640 / image.shape[1], 640 / image.shape[0])
    width, height = round(image.shape[1] * scale), round(image.shape[0] * scale)
    small = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    left, top = (640 - width) // 2, (640 - height) // 2
    canvas = cv2.copyMakeBorder(small, top, 640 - height - top, left, 640 - width - left, cv2.BORDER_CONSTANT,
                                value=(114, 114, 114))
    return cv2.dnn.blobFromImage(canvas, 1 / 255, swapRB=True)


def imagenet(image):
    scale = 256 / min(image.shape[:2])
    small = cv2.resize(image, (round(image.shape[1] * scale), round(image.shape[0] * scale)))
    top, left = (small.shape[0] - 224) // 2, (small.shape[1] - 224) // 2
    crop = cv2.cvtColor(small[top:top + 224, left:left + 224], cv2.COLOR_BGR2RGB).astype(np.float32) / 255
    mean, deviation = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    return np.ascontiguousarray(((crop - mean) / deviation).transpose(2, 0, 1))[None]


def peer(encoded, prepare, runs):
    decoding, preparing = [], []
    for _ in range(runs):
        start = time.perf_counter()
        image = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
        decoding.append(time.perf_counter() - start)
        start = time.perf_counter()
        prepare(image)
        preparing.append(time.perf_counter() - start)
    return statistics.median(decoding) * 1e3, statistics.median(preparing) * 1e3


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--preprocess-speed", required=True)
    arguments.add_argument("--runs", type=int, default=5)
    given = arguments.parse_args()
    cv2.setNumThreads(1)
    print("image        preset     decode ms  OpenCV ms  ratio   prepare ms  OpenCV ms  ratio")
    with tempfile.TemporaryDirectory() as folder:
        for width, height in [(640, 480), (1280, 720), (1920, 1080)]:
            file = pathlib.Path(folder) / f"{width}.jpg"
            encoded = cv2.imencode(".jpg", photo(width, height), [cv2.IMWRITE_JPEG_QUALITY, 90])[1]
            file.write_bytes(encoded.tobytes())
            for name, prepare in [("yolov8", yolov8), ("imagenet", imagenet)]:
                rows = []
                for _ in range(given.runs):
                    ours = json.loads(subprocess.check_output([given.preprocess_speed, file, name, "30"]))
                    decode, prepared = peer(encoded, prepare, 30)
                    rows.append((ours["decode_ms"], decode, ours["decode_ms"] / decode,
                                 ours["prepare_ms"], prepared, ours["prepare_ms"] / prepared))
                a, b, c, d, e, f = (statistics.median(column) for column in zip(*rows))
                print(f"{width}x{height:<7} {name:<9} {a:10.2f} {b:10.2f} {c:6.2f}   {d:10.2f} {e:10.2f} {f:6.2f}")


if __name__ == "__main__":
    main()
