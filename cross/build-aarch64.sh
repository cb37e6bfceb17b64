#!/usr/bin/env bash
# Builds the release binaries (command line and daemon) for aarch64 Linux with zig as the linker, so that it runs on an older glibc than this
# machine's.
#
# usage: cross/build-aarch64.sh [GLIBC]      oldest glibc to run on, default 2.31 (JetPack 5)
set -euo pipefail
cd "$(dirname "$0")/.."

glibc=${1:-2.31}
target=aarch64-unknown-linux-gnu

stop() {
    echo "build-aarch64: $1" >&2
    exit 1
}

[[ $glibc =~ ^2\.[0-9]+$ ]] || stop "$glibc is no version of glibc; expected something like 2.31"
command -v cargo-zigbuild >/dev/null ||
    stop "cargo-zigbuild is not installed: pip install ziglang cargo-zigbuild (cross/README.md has another way)"
command -v zig >/dev/null || python3 -c 'import ziglang' 2>/dev/null ||
    stop "zig is not installed: pip install ziglang"
libraries=$("${RUSTC:-rustc}" --print target-libdir --target "$target")
compgen -G "$libraries/libstd-*" >/dev/null ||
    stop "the Rust compiler in use has no standard library for $target: rustup target add $target"

"${CARGO:-cargo}" zigbuild --release --target "$target.$glibc" -p edgeopt -p edgeopt-agent
mkdir -p out/aarch64
for program in edgeopt edgeopt-agent; do
    cp "${CARGO_TARGET_DIR:-target}/$target/release/$program" "out/aarch64/$program"
done
ls -l out/aarch64
