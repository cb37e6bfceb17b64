#!/usr/bin/env bash
# The demo: a real text recognizer becomes an INT8 bundle under a memory limit that its float form does not fit, reads
# lines of text it has never seen, and is signed. A broker and the daemon then start on this machine: the bundle is
# deployed over MQTT, answers, is replaced under load, and comes back when its successors are broken. Everything runs on
# the CPU backend.
set -euo pipefail
cd "$(dirname "$0")/../.."
CARGO=${CARGO:-cargo}
out=out/demo
rm -rf "$out" && mkdir -p "$out"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
shown() { printf '$ %s\n' "$*"; "$@"; }

say '1. Building the command line and fetching the models'
"$CARGO" build --profile demo --quiet --package edgeopt --package edgeopt-agent --package edgeopt-tests \
    --bin edgeopt --bin edgeopt-agent --bin render-text --bin spoil-bundle
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

say '8. A fleet of one: a broker and the daemon on this machine'
rm -rf "$out/device" && mkdir -p "$out/device/in"
device=$(cd "$out/device" && pwd)
stop() { kill "${daemon:-}" "${broker:-}" 2>/dev/null || true; wait 2>/dev/null || true; }
trap stop EXIT
edgeopt fleet broker --listen 127.0.0.1:0 >"$out/broker.log" &
broker=$!
for _ in $(seq 50); do [ -s "$out/broker.log" ] && break; sleep 0.1; done
EDGEOPT_BROKER=$(sed -nE 's/^broker at ([0-9.:]+).*/\1/p' "$out/broker.log")
export EDGEOPT_BROKER
cat >"$out/agent.toml" <<TOML
device = "demo"
[broker]
host = "127.0.0.1"
port = ${EDGEOPT_BROKER##*:}
[trust]
key_files = ["$PWD/$out/demo.pub"]
[spool]
directory = "$device/spool"
[store]
directory = "$device/store"
[engine]
backend = "cpu"
cache = "$device/cache"
[slots.reader]
inputs = [{ kind = "mqtt" }, { kind = "folder", path = "$device/in" }, { kind = "http" }]
queue = 256
[http]
listen = "unix:$device/http.sock"
TOML
edgeopt-agent --config "$out/agent.toml" 2>"$out/agent.log" &
daemon=$!
status() { edgeopt-agent --config "$out/agent.toml" status; }
for _ in $(seq 100); do status >/dev/null 2>&1 && break; sleep 0.1; done
shown edgeopt fleet status

say '9. Deployed over MQTT alone, and answering'
shown edgeopt fleet deploy "$out/text.edge" --device demo --slot reader
edgeopt fleet listen --device demo --count 5 --seconds 30 >"$out/first.log" &
listener=$!
sleep 0.5
mapfile -t lines < <(find "$out/lines" -name '*.png' | sort)
shown edgeopt fleet send --device demo --slot reader "${lines[@]:0:4}"
cp "${lines[4]}" "$device/in/" && printf '$ cp %s %s/    # a watched folder\n' "${lines[4]##*/}" "$out/device/in"
wait "$listener"
grep -v generation "$out/first.log"

say '10. A second version, while inputs keep coming'
edgeopt build .cache/zoo/ppocr/rec.onnx -o "$out/text2.edge" --name text --model-version 2 --precision fp16 \
    --memory 12MiB --task ppocr-rec --calibration-data "$out/calibration" --calibration-samples 16 \
    --evaluation-data "$out/lines" --evaluation-samples 8 >"$out/build2.log"
edgeopt sign "$out/text2.edge" --key "$out/demo.key"
edgeopt fleet listen --device demo --slot reader --count 160 --seconds 60 --json >"$out/under-load.jsonl" &
listener=$!
sleep 0.5
edgeopt fleet send --device demo --slot reader "${lines[@]}" "${lines[@]:0:60}" >"$out/sent.log" 2>&1 &
sender=$!
shown edgeopt fleet deploy "$out/text2.edge" --device demo --slot reader
wait "$sender" "$listener" || true
python3 - "$out/under-load.jsonl" <<'PY'
import collections, json, sys
versions = collections.Counter()
for line in open(sys.argv[1]):
    line = json.loads(line)
    if line["topic"].endswith("/result"):
        versions[line["message"]["version"]] += 1
shown = ", ".join(f"{count} by version {version}" for version, count in sorted(versions.items()))
print(f"160 inputs sent, {versions.total()} answered: {shown}")
sys.exit(versions.total() != 160)
PY
status

say '11. Broken versions: one computes something else, one answers NaN'
spoil-bundle weights "$out/text.edge" "$out/text3.edge" 3
spoil-bundle nan "$out/text.edge" "$out/text4.edge" 4
printf '$ edgeopt fleet deploy text3.edge …    # not signed\n'
edgeopt fleet deploy "$out/text3.edge" --device demo --slot reader && exit 1
edgeopt sign "$out/text3.edge" --key "$out/demo.key" >/dev/null
edgeopt sign "$out/text4.edge" --key "$out/demo.key" >/dev/null
printf '$ edgeopt fleet deploy text3.edge …    # signed, and wrong\n'
edgeopt fleet deploy "$out/text3.edge" --device demo --slot reader && exit 1
printf '$ edgeopt fleet deploy text4.edge --watched …    # signed, with nothing to test it by; inputs come meanwhile\n'
(while sleep 1; do edgeopt fleet send --device demo --slot reader "${lines[0]}" >/dev/null; done) &
sender=$!
edgeopt fleet deploy "$out/text4.edge" --device demo --slot reader --watched && exit 1
kill "$sender"
edgeopt fleet listen --device demo --slot reader --count 1 --seconds 10 >"$out/rollback.log" &
listener=$!
sleep 0.5
edgeopt fleet send --device demo --slot reader "${lines[1]}" >/dev/null
wait "$listener"
printf 'and the one before answers again:\n'
grep -v generation "$out/rollback.log"

say '12. The daemon, at the end'
status
grep -q 'failed, text 2' <(status) || { echo 'version 2 should answer' >&2; exit 1; }

say 'Done'
echo "report: $out/report.html     bundle: $out/text.edge     what the daemon says: $out/agent.log"
