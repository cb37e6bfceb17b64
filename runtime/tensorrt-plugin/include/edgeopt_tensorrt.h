/* The C interface between edgeopt and one family of TensorRT.
 *
 * TensorRT's C++ classes change their layout between families (docs/tensorrt.md); its source interface hardly does. So
 * this plugin is compiled once for each family and exports one function, which returns a table. The plugin links no
 * NVIDIA library: whoever opens it passes in the library's entry points, after making sure that the library belongs to
 * the family and is not older than the headers the plugin was compiled with.
 *
 * Every structure begins with its size in bytes, so that fields can be added at the end. No exception leaves the plugin.
 * A context and its engines belong to one thread at a time, and so does each execution; executions of one engine may run
 * on several threads at once, but are made and freed by one at a time. */
#ifndef EDGEOPT_TENSORRT_H
#define EDGEOPT_TENSORRT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EDGEOPT_TENSORRT_ABI 1u
#define EDGEOPT_TENSORRT_MAX_RANK 8

typedef struct edgeopt_context edgeopt_context;
typedef struct edgeopt_engine edgeopt_engine;
typedef struct edgeopt_execution edgeopt_execution;

/* Results of functions. */
enum {
    EDGEOPT_OK = 0,
    EDGEOPT_NO_BUILDER = 1,        /* the library refused to make a builder, runtime, parser, … */
    EDGEOPT_PARSE = 2,             /* the model was not understood; each reason was given to `error` */
    EDGEOPT_PROFILE = 3,           /* a declared shape range was refused */
    EDGEOPT_BUILD = 4,             /* no engine came out, or the build was cancelled */
    EDGEOPT_LOAD = 5,              /* the library refused the engine */
    EDGEOPT_REFUSED = 6,           /* the library refused the call */
    EDGEOPT_UNSUPPORTED = 7,       /* this family has no such ability */
    EDGEOPT_EXCEPTION = 8,         /* the library threw */
    EDGEOPT_ARGUMENT = 9           /* a structure of another size, a null pointer, a rank beyond the limit */
};

/* Who reports an error. */
enum { EDGEOPT_FROM_LIBRARY = 0, EDGEOPT_FROM_PARSER = 1, EDGEOPT_FROM_PLUGIN = 2 };

/* What happens in a build. */
enum { EDGEOPT_PHASE_BEGINS = 0, EDGEOPT_STEP_DONE = 1, EDGEOPT_PHASE_ENDS = 2 };

/* What a family can do. */
enum {
    EDGEOPT_HAS_PROGRESS = 1 << 0,
    EDGEOPT_HAS_TACTIC_MEMORY = 1 << 1,
    EDGEOPT_HAS_OPTIMIZATION_LEVEL = 1 << 2,
    EDGEOPT_HAS_MAX_TACTICS = 1 << 3,
    EDGEOPT_HAS_WEIGHT_STREAMING = 1 << 4,
    EDGEOPT_HAS_EXACT_MEMORY = 1 << 5, /* the need of a context for the shapes now set */
    EDGEOPT_HAS_WEAK_TYPES = 1 << 6,   /* precision flags of the builder */
    EDGEOPT_HAS_STRONG_TYPES = 1 << 7,
    EDGEOPT_HAS_VERSION_COMPATIBLE = 1 << 8,
    EDGEOPT_HAS_STRIPPED_PLANS = 1 << 9,
    EDGEOPT_HAS_DLA = 1 << 10
};

/* Functions of the vendor's libraries. */
typedef struct {
    uint32_t size;
    void *create_builder; /* createInferBuilder_INTERNAL */
    void *create_runtime; /* createInferRuntime_INTERNAL */
    void *create_parser;  /* createNvOnnxParser_INTERNAL */
} edgeopt_entry_points;

/* What the caller wants to be told. Any function may be null. They are called from threads of the library. */
typedef struct {
    uint32_t size;
    void *user;
    /* 0 internal error, 1 error, 2 warning, 3 information, 4 verbose */
    void (*log)(void *user, int32_t severity, const char *message);
    /* Returns 0 to cancel. `steps`: of a beginning phase, how many it has; of a step, which is done. */
    int32_t (*progress)(void *user, int32_t event, const char *phase, const char *parent, int32_t steps);
    /* Device memory. Null functions leave allocation to the library. */
    void *(*allocate)(void *user, uint64_t bytes, uint64_t alignment, void *stream);
    int32_t (*deallocate)(void *user, void *memory, void *stream);
    void (*error)(void *user, int32_t source, int32_t code, const char *description, const char *node,
                  const char *op);
    /* An input or output of a network or engine. -1 = open length. */
    void (*tensor)(void *user, int32_t is_input, const char *name, int32_t type, int32_t rank,
                   const int64_t *lengths);
} edgeopt_callbacks;

/* The range of an input's shape. */
typedef struct {
    const char *input;
    int32_t rank;
    int64_t min[EDGEOPT_TENSORRT_MAX_RANK];
    int64_t opt[EDGEOPT_TENSORRT_MAX_RANK];
    int64_t max[EDGEOPT_TENSORRT_MAX_RANK];
} edgeopt_shape_range;

enum {
    EDGEOPT_STRONGLY_TYPED = 1 << 0,
    EDGEOPT_ALLOW_FP16 = 1 << 1, /* with weak types only */
    EDGEOPT_ALLOW_INT8 = 1 << 2, /* with weak types only */
    EDGEOPT_VERSION_COMPATIBLE = 1 << 3,
    EDGEOPT_STRIPPED = 1 << 4,
    EDGEOPT_REFITTABLE = 1 << 5,
    EDGEOPT_WEIGHT_STREAMING = 1 << 6,
    EDGEOPT_SPARSE = 1 << 7,
    EDGEOPT_DETAILED = 1 << 8,   /* keep layer details for the inspector */
    EDGEOPT_GPU_FALLBACK = 1 << 9 /* layers that the DLA cannot run go to the GPU */
};

typedef struct {
    uint32_t size;
    uint32_t flags;
    uint64_t workspace;         /* bytes of scratch memory for any one layer; 0 = the library's default */
    uint64_t tactic_memory;     /* bytes of memory that tactics may take while tried; 0 = the library's default */
    int32_t optimization_level; /* 0 … 5; -1 = the library's default */
    int32_t max_tactics;        /* tactics tried for a layer; -1 = the library's default */
    int32_t auxiliary_streams;  /* -1 = the library's default */
    int32_t threads;            /* of the build; 0 = the library's default */
    int32_t dla_core;           /* -1 = the GPU */
    int32_t shape_count;
    const edgeopt_shape_range *shapes; /* one for each input with open lengths */
    const void *timing_cache;          /* of an earlier build, or null */
    uint64_t timing_cache_bytes;
} edgeopt_build_options;

/* Receives bytes that are valid during the call. */
typedef void (*edgeopt_sink)(void *user, const void *data, uint64_t bytes);

typedef struct {
    uint32_t size;
    uint32_t abi;            /* EDGEOPT_TENSORRT_ABI */
    uint32_t header_version; /* major * 10000 + minor * 100 + patch, of TensorRT or of TensorRT-RTX */
    uint32_t is_rtx;
    uint32_t abilities;

    edgeopt_context *(*open)(const edgeopt_entry_points *, const edgeopt_callbacks *);
    void (*close)(edgeopt_context *);

    /* Parses an ONNX model and builds an engine from it. `path` tells where external data would lie; may be null. */
    int32_t (*build)(edgeopt_context *, const void *onnx, uint64_t bytes, const char *path,
                     const edgeopt_build_options *, edgeopt_sink plan, edgeopt_sink timing_cache, void *user);

    int32_t (*load)(edgeopt_context *, const void *plan, uint64_t bytes, edgeopt_engine **);
    void (*unload)(edgeopt_engine *);
    int32_t (*describe)(edgeopt_engine *);              /* calls `tensor` */
    int64_t (*context_memory)(edgeopt_engine *);        /* bytes that any context of it needs at most */
    int32_t (*inspect)(edgeopt_engine *, edgeopt_sink json, void *user);

    int32_t (*new_execution)(edgeopt_engine *, edgeopt_execution **);
    void (*free_execution)(edgeopt_execution *);
    int32_t (*select_profile)(edgeopt_execution *, int32_t profile, void *stream);
    int32_t (*set_shape)(edgeopt_execution *, const char *input, int32_t rank, const int64_t *lengths);
    int32_t (*shape)(edgeopt_execution *, const char *tensor, int32_t *rank, int64_t *lengths);
    int64_t (*needed_memory)(edgeopt_execution *);      /* for the shapes now set; -1 on failure */
    int32_t (*set_memory)(edgeopt_execution *, void *memory, int64_t bytes);
    int32_t (*set_address)(edgeopt_execution *, const char *tensor, void *memory);
    int32_t (*enqueue)(edgeopt_execution *, void *stream);
} edgeopt_tensorrt_table;

/* The one exported function. */
const edgeopt_tensorrt_table *edgeopt_tensorrt(void);

#ifdef __cplusplus
}
#endif
#endif
