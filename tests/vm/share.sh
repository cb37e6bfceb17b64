#!/usr/bin/env bash
# Puts what the machine sees at `/host` into the folder named: the programs, built from this checkout; ONNX Runtime; the
# files of `systemd/`; a key; two signed versions of the digit classifier; digits; and the checks.
set -euo pipefail
share=$1
cd "$(dirname "$0")/../.."
CARGO=${CARGO:-cargo}

"$CARGO" build --profile demo --quiet --package edgeopt --package edgeopt-agent --bin edgeopt --bin edgeopt-agent
python3 models/zoo/fetch.py onnxruntime >&2
bin=$(realpath "${CARGO_TARGET_DIR:-target}")/demo
mkdir -p "$share/bin" "$share/onnxruntime" "$share/digits"
install -m 755 "$bin/edgeopt" "$bin/edgeopt-agent" "$share/bin/"
install -m 644 .cache/onnxruntime/libonnxruntime.so.* "$share/onnxruntime/"
cp -r systemd tests/vm/guest tests/vm/checks "$share/"
cp models/zoo/mnist/heldout/00[0-4]?.png "$share/digits/"

model() {
    "$bin/edgeopt" build models/zoo/mnist/mnist.onnx -o "$share/digits-$1.edge" --name digits --model-version "$1" \
        --precision "$2" --task mnist --calibration-data models/zoo/mnist/calibration \
        --evaluation-data models/zoo/mnist/heldout --evaluation-samples 64 >"$share/build-$1.log"
    "$bin/edgeopt" sign "$share/digits-$1.edge" --key "$share/fleet.key" >/dev/null
}
"$bin/edgeopt" keygen --output "$share/fleet" >/dev/null
model 1 fp32
model 2 int8
model 3 fp16
python3 tests/vm/motion_model.py "$share/motion.onnx" "$share/motion"
"$bin/edgeopt" build "$share/motion.onnx" -o "$share/motion-1.edge" --name motion --precision fp32 \
    --calibration-data "$share/motion" --evaluation-samples 0 >"$share/build-motion.log"
"$bin/edgeopt" sign "$share/motion-1.edge" --key "$share/fleet.key" >/dev/null
