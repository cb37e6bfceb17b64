#!/usr/bin/env bash
# Compiles the TensorRT plugin once for each set of headers that is found.
#
# usage: build.sh OUTPUT_FOLDER [HEADER_FOLDER...]
#
# Without header folders: TENSORRT_INCLUDE, JetPack's and Debian's places, and what `fetch.py tensorrt-headers` brought.
# CXX names the compiler (a cross compiler for another machine); CUDA_INCLUDE a folder with cuda_runtime_api.h.
# Writes libedgeopt_tensorrt_{trt,rtx}_MAJOR.MINOR.so. The plugin links nothing of NVIDIA's, so it needs only the headers.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { sed -n 2,9p "$0" | sed 's/^# \?//' >&2; exit 2; }
output=$1
shift
mkdir -p "$output"
cache="$here/../../.cache/tensorrt/headers"

folders=("$@")
if [ ${#folders[@]} -eq 0 ]; then
    for folder in ${TENSORRT_INCLUDE:+"$TENSORRT_INCLUDE"} /usr/include/*-linux-gnu /usr/include /usr/local/tensorrt/include \
        "$cache"/TRT-*; do
        if [ -f "$folder/NvInferVersion.h" ]; then folders+=("$folder"); fi
    done
fi
if [ ${#folders[@]} -eq 0 ]; then
    echo "build.sh: no TensorRT headers found; install libnvinfer-headers-dev, set TENSORRT_INCLUDE, or run" \
        "models/zoo/fetch.py tensorrt-headers" >&2
    exit 1
fi

cuda=()
for folder in ${CUDA_INCLUDE:+"$CUDA_INCLUDE"} /usr/local/cuda/include "$cache"; do
    if [ -f "$folder/cuda_runtime_api.h" ]; then cuda=(-isystem "$folder"); break; fi
done
[ ${#cuda[@]} -gt 0 ] || { echo "build.sh: cuda_runtime_api.h not found; set CUDA_INCLUDE" >&2; exit 1; }

number() { # FILE NAME: the value of a #define
    sed -nE "s/^#define $2 ([0-9]+).*/\1/p" "$1" | head -n 1
}

for headers in "${folders[@]}"; do
    version="$headers/NvInferVersion.h"
    [ -f "$version" ] || { echo "build.sh: $version is not there" >&2; exit 1; }
    major=$(number "$version" TRT_MAJOR_RTX); minor=$(number "$version" TRT_MINOR_RTX); kind=rtx
    if [ -z "$major" ]; then
        kind=trt
        major=$(number "$version" NV_TENSORRT_MAJOR); minor=$(number "$version" NV_TENSORRT_MINOR)
    fi
    if [ -z "$major" ]; then
        # 10.13 and later name the numbers apart and refer to them.
        major=$(number "$version" TRT_MAJOR_ENTERPRISE); minor=$(number "$version" TRT_MINOR_ENTERPRISE)
    fi
    [ -n "$major" ] && [ -n "$minor" ] || { echo "build.sh: $version does not tell its version" >&2; exit 1; }
    library="$output/libedgeopt_tensorrt_${kind}_${major}.${minor}.so"
    if [ -f "$library" ] && [ -z "$(find "$here" -type f -newer "$library")" ]; then continue; fi
    unfinished=$(mktemp "$output/.plugin-XXXXXX")
    trap 'rm -f "$unfinished"' EXIT
    # One source serves versions that deprecate what others need.
    "${CXX:-g++}" -std=c++17 -O2 -g0 -fPIC -shared -Wall -Wextra -Werror -Wno-deprecated-declarations -fvisibility=hidden \
        -ffunction-sections -fdata-sections -Wl,--gc-sections -Wl,-z,defs -Wl,-z,relro,-z,now \
        -Wl,--version-script="$here/exports.map" \
        -I "$here/include" -isystem "$headers" "${cuda[@]}" "$here"/src/*.cpp -o "$unfinished"
    chmod 755 "$unfinished"
    mv "$unfinished" "$library"
    echo "built $library"
done
