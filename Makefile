# What must always work on a fresh machine: `make demo`, `make test`, `make check`.
CARGO ?= cargo
PYTHON ?= python3
FETCH = $(PYTHON) models/zoo/fetch.py

.PHONY: help demo test test-vm test-gpu test-brokers check bench bench-gpu fetch fetch-test fetch-brokers text-images \
	character-images minilm voice tensorrt-plugins clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

demo: ## a real model from float to a signed INT8 bundle that reads text
	@CARGO="$(CARGO)" bash models/zoo/demo.sh

fetch: ## ONNX Runtime for the CPU backend, into .cache/
	$(FETCH) onnxruntime

fetch-test: tensorrt-plugins ## what the tests need beside the code, into .cache/
	$(FETCH) onnxruntime onnx-node-tests ppocr ddddocr silero-vad magika minilm tensorrt-rtx

tensorrt-plugins: ## the TensorRT plugin for every set of headers there is, into .cache/tensorrt/plugins
	$(FETCH) tensorrt-headers
	runtime/tensorrt-plugin/build.sh .cache/tensorrt/plugins

test: fetch-test ## builds and runs every test that needs no GPU
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		$(CARGO) test --quiet --workspace --doc && $(CARGO) nextest run --workspace --no-fail-fast; \
	else $(CARGO) test --workspace --no-fail-fast; fi

test-vm: ## the daemon under systemd in a virtual machine, with CUTS=20 power cuts; needs QEMU (tests/vm/README.md)
	CARGO="$(CARGO)" $(PYTHON) tests/vm/run.py --all --cuts $(or $(CUTS),20)

test-gpu: ## tests that need an NVIDIA GPU (its driver is enough): memory, streams, graphs, sessions; about 4 minutes
	$(CARGO) test -p edgeopt-runtime --lib -- --ignored --test-threads=1 --nocapture gpu_tests --skip measures

test-brokers: fetch fetch-brokers ## the daemon over aedes (Node 20) and RabbitMQ (Debian's rabbitmq-server); about 2 minutes
	$(CARGO) test -p edgeopt-agent --test daemon -- --include-ignored --nocapture other_brokers

fetch-brokers: ## the broker aedes for the daemon's tests, into .cache/ (needs npm)
	mkdir -p .cache/aedes
	cp agent/tests/brokers/package.json agent/tests/brokers/package-lock.json .cache/aedes/
	cd .cache/aedes && npm ci --ignore-scripts --no-audit --no-fund

check: ## formatting, lints, documentation, licences and advisories
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --document-private-items
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check; \
	else echo "cargo-deny is not installed: licences and advisories were not checked"; fi

bench: fetch ## side by side: INT8 builds and runs with ONNX Runtime, images with OpenCV (PYTHON: numpy onnx onnxruntime opencv-python-headless)
	$(CARGO) build --release -p edgeopt -p edgeopt-tests
	mkdir -p out/bench
	target/release/make-net resnet50 out/bench/resnet50.onnx
	target/release/make-net mobilenet_v2 out/bench/mobilenet_v2.onnx
	target/release/session-overhead models/zoo/mnist/mnist.onnx 20000 1
	target/release/session-overhead out/bench/mobilenet_v2.onnx 200 1
	$(PYTHON) tests/bench/preprocess.py --preprocess-speed target/release/preprocess-speed
	$(PYTHON) tests/bench/quantize.py --edgeopt target/release/edgeopt --model out/bench/resnet50.onnx --input-shape 3,224,224

bench-gpu: ## what a run costs besides its kernels, on an NVIDIA GPU
	$(CARGO) test --release -p edgeopt-runtime --lib -- --ignored --test-threads=1 --nocapture measures

text-images: ## lines of text to calibrate and test a text recognizer with, into out/text
	$(CARGO) run --quiet -p edgeopt-tests --bin render-text -- --out out/text/calibration --seed 1 --count 200
	$(CARGO) run --quiet -p edgeopt-tests --bin render-text -- --out out/text/heldout --seed 2 --count 500

character-images: ## scattered characters with YOLO labels to calibrate and test a detector with, into out/characters
	$(CARGO) run --quiet -p edgeopt-tests --bin render-text -- --characters --out out/characters/calibration --seed 1 --count 64
	$(CARGO) run --quiet -p edgeopt-tests --bin render-text -- --characters --out out/characters/heldout --seed 2 --count 100

minilm: ## a real sentence encoder as ONNX with sentences to calibrate and test it, into out/minilm
	$(FETCH) minilm
	$(CARGO) run --quiet -p edgeopt-tests --bin make-minilm -- --out out/minilm

voice: ## moments of speech and noise for the voice activity detector, into out/voice (needs espeak-ng)
	$(FETCH) onnxruntime silero-vad
	$(CARGO) run --quiet -p edgeopt-tests --bin make-voice -- --out out/voice/calibration --seed 1 --clips 20
	$(CARGO) run --quiet -p edgeopt-tests --bin make-voice -- --out out/voice/heldout --seed 2 --clips 60

clean: ## removes build outputs, keeps what was fetched
	$(CARGO) clean
	rm -rf out
