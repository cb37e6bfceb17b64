#!/usr/bin/env bash
# The demo: a real text recognizer becomes an INT8 bundle under a memory limit that its float form does not fit, reads
# lines of text it has never seen, and is then signed and verified. Everything runs on the CPU backend.
set -euo pipefail
cd "$(dirname "$0")/../.."
CARGO=${CARGO:-cargo}
out=out/demo
rm -rf "$out" && mkdir -p "$out"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
shown() { printf '$ %s\n' "$*"; "$@"; }

say '1. Building the command line and fetching the models'
"$CARGO" build --profile demo --quiet --package edgeopt --package edgeopt-tests --bin edgeopt --bin render-text
python3 models/zoo/fetch.py onnxruntime ppocr
bin=${CARGO_TARGET_DIR:-target}/demo
export PATH="$bin:$PATH"

say '2. Lines of text to calibrate with, and others to test on'
render-text --out "$out/calibration" --seed 1 --count 64 --clean
render-text --out "$out/lines" --seed 2 --count 100 --clean

say '3. What the model is'
shown edgeopt inspect .cache/zoo/ppocr/rec.onnx

say '4. The float model does not fit into 12 MiB'
printf '$ edgeopt build rec.onnx -o text.edge --precision fp32 --memory 12MiB --task ppocr-rec …\n'
if edgeopt build .cache/zoo/ppocr/rec.onnx -o "$out/text.edge" --precision fp32 --memory 12MiB --task ppocr-rec \
    --evaluation-data "$out/lines" --evaluation-samples 4; then
    echo 'the limit was not enforced' >&2
    exit 1
fi

say '5. In INT8 it does: built, compared with the float model, measured'
printf '$ edgeopt build rec.onnx -o text.edge --precision int8 --memory 12MiB --task ppocr-rec …\n'
edgeopt build .cache/zoo/ppocr/rec.onnx -o "$out/text.edge" --name text --precision int8 --memory 12MiB \
    --task ppocr-rec --calibration-data "$out/calibration" --evaluation-data "$out/lines" \
    --labels "$out/lines/labels.tsv" --report "$out/report.html"

say '6. Signed and verified'
shown edgeopt keygen --output "$out/demo"
shown edgeopt sign "$out/text.edge" --key "$out/demo.key"
shown edgeopt verify "$out/text.edge" --key "$out/demo.pub"

say '7. It reads lines it has never seen'
shown edgeopt run "$out/text.edge" --input "$out/lines" --limit 12
printf '\nthe truth:\n'
edgeopt run "$out/text.edge" --input "$out/lines" --limit 12 --json | sed -E 's/.*"sample":"([^"]+)".*/\1/' |
    while read -r file; do grep -F "$file" "$out/lines/labels.tsv"; done | sed 's/\t/   /'

say 'Done'
echo "report: $out/report.html     bundle: $out/text.edge"
