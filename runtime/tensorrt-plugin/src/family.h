// Which family of TensorRT the headers belong to, and what its source interface lacks or has.
#pragma once

#include <NvInfer.h>
#include <NvOnnxParser.h>

#ifdef TRT_MAJOR_RTX
#define IS_RTX 1
#define HEADER_VERSION (TRT_MAJOR_RTX * 10000 + TRT_MINOR_RTX * 100 + TRT_PATCH_RTX)
#else
#define IS_RTX 0
#define HEADER_VERSION (NV_TENSORRT_MAJOR * 10000 + NV_TENSORRT_MINOR * 100 + NV_TENSORRT_PATCH)
#endif

#define TRT_FROM(major, minor) (!IS_RTX && HEADER_VERSION >= (major)*10000 + (minor)*100)
#define RTX_FROM(major, minor) (IS_RTX && HEADER_VERSION >= (major)*10000 + (minor)*100)

// Versioned interfaces, 64-bit dimensions, progress monitors: 10 and everything since.
#define SINCE_10 (TRT_FROM(10, 0) || IS_RTX)
// Weak typing and what belonged to it are gone.
#define SINCE_11 (TRT_FROM(11, 0) || RTX_FROM(1, 5))
#define SINCE_8_6 (TRT_FROM(8, 6) || IS_RTX)
#define SINCE_10_1 (TRT_FROM(10, 1) || IS_RTX)
#define SINCE_10_7 (TRT_FROM(10, 7) || IS_RTX)
#define HAS_WEAK_TYPES (!SINCE_11 && !IS_RTX)
