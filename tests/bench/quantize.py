"""INT8 builds side by side: `edgeopt build` and ONNX Runtime's quantize_static on the same model and samples.

Runs the two in turn (A B A B ...), takes wall time and peak resident memory from the operating system's accounting of
the finished process, and prints medians and the ratio pair by pair. Needs the release binaries (`make bench` builds
them) and a Python with onnxruntime, onnx and numpy.

usage: quantize.py --edgeopt BIN --model M.onnx --input-shape 3,224,224 [--samples 8 32 128] [--runs 3]
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np


def run(command):
    """Wall seconds and peak RSS in MiB of one finished process."""
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{errors.decode(errors='replace')[-2000:]}")
    return time.monotonic() - start, usage.ru_maxrss / 1024


def write_samples(folder, shape, count):
    """Seeded samples with the spread of normalized images, a little different from one to the next."""
    generator = np.random.default_rng(7)
    for index in range(count):
        spread = generator.uniform(0.5, 1.5)
        sample = generator.normal(0, spread, shape).astype(np.float32)
        np.save(folder / f"{index:04}.npy", sample)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--edgeopt", required=True)
    arguments.add_argument("--model", required=True)
    arguments.add_argument("--input-shape", required=True)
    arguments.add_argument("--samples", type=int, nargs="+", default=[8, 32, 128])
    arguments.add_argument("--runs", type=int, default=3)
    given = arguments.parse_args()
    shape = tuple(map(int, given.input_shape.split(",")))
    peer = pathlib.Path(__file__).with_name("peer_quantize.py")
    print(f"{'method':8} {'samples':>7} | {'edgeopt s':>9} {'MiB':>6} | {'peer s':>7} {'MiB':>6} | "
          f"{'time ratio':>10} {'memory ratio':>12}")
    for method in ("Entropy", "MinMax"):
        for count in given.samples:
            with tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                samples = folder / "samples"
                samples.mkdir()
                write_samples(samples, shape, count)
                ours = [given.edgeopt, "build", given.model, "-o", folder / "a.edge", "--precision", "int8",
                        "--calibration-data", samples, "--calibration-method", method.lower(),
                        "--calibration-samples", str(count), "--evaluation-samples", "0",
                        # Like the peer: INT8 for a CPU, without half around it.
                        "--float32-rest"]
                theirs = [sys.executable, peer, given.model, samples, method, folder / "b.onnx"]
                pairs = [(run(ours), run(theirs)) for _ in range(given.runs)]
            wall = [statistics.median(pair[side][0] for pair in pairs) for side in (0, 1)]
            memory = [statistics.median(pair[side][1] for pair in pairs) for side in (0, 1)]
            ratio = statistics.median(ours[0] / theirs[0] for ours, theirs in pairs)
            print(f"{method:8} {count:7} | {wall[0]:9.2f} {memory[0]:6.0f} | {wall[1]:7.2f} {memory[1]:6.0f} | "
                  f"{ratio:10.3f} {memory[0] / memory[1]:12.3f}", flush=True)


main()
