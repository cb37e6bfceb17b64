// What a context, an engine and an execution hold, and how they report.
#pragma once

#include "adapters.h"

#include <memory>

struct edgeopt_context {
    edgeopt_context(edgeopt_entry_points const &entries_, edgeopt_callbacks const &callbacks_)
        : entries(entries_), callbacks(callbacks_), logger(callbacks), allocator(callbacks), recorder(callbacks)
#if SINCE_10
          ,
          monitor(callbacks)
#endif
    {
    }
    edgeopt_context(edgeopt_context const &) = delete;
    edgeopt_context &operator=(edgeopt_context const &) = delete;

    bool allocates() const { return callbacks.allocate != nullptr && callbacks.deallocate != nullptr; }

    // Reports on behalf of the plugin and gives the status back.
    int32_t fail(int32_t status, char const *description) const {
        if (callbacks.error != nullptr) {
            callbacks.error(callbacks.user, EDGEOPT_FROM_PLUGIN, status, description, nullptr, nullptr);
        }
        return status;
    }

    void tell(bool is_input, char const *name, nvinfer1::DataType type, nvinfer1::Dims const &dims) const;

    edgeopt_entry_points const entries;
    edgeopt_callbacks const callbacks;
    edgeopt::Logger logger;
    edgeopt::Allocator allocator;
    edgeopt::Recorder recorder;
#if SINCE_10
    edgeopt::Monitor monitor;
#endif
    // Destroyed first: it uses all of the above.
    std::unique_ptr<nvinfer1::IRuntime> runtime;
};

struct edgeopt_engine {
    edgeopt_context &context;
    std::unique_ptr<nvinfer1::ICudaEngine> engine;
};

struct edgeopt_execution {
    edgeopt_engine &engine;
    std::unique_ptr<nvinfer1::IExecutionContext> context;
};

namespace edgeopt {

// Lengths are 32 bits wide in 8.x, 64 since.
bool to_dims(int32_t rank, int64_t const *lengths, nvinfer1::Dims &dims);

int32_t build(edgeopt_context *, void const *, uint64_t, char const *, edgeopt_build_options const *, edgeopt_sink,
              edgeopt_sink, void *);

int32_t load(edgeopt_context *, void const *, uint64_t, edgeopt_engine **);
void unload(edgeopt_engine *);
int32_t describe(edgeopt_engine *);
int64_t context_memory(edgeopt_engine *);
int32_t inspect(edgeopt_engine *, edgeopt_sink, void *);

int32_t new_execution(edgeopt_engine *, edgeopt_execution **);
void free_execution(edgeopt_execution *);
int32_t select_profile(edgeopt_execution *, int32_t, void *);
int32_t set_shape(edgeopt_execution *, char const *, int32_t, int64_t const *);
int32_t shape(edgeopt_execution *, char const *, int32_t *, int64_t *);
int64_t needed_memory(edgeopt_execution *);
int32_t set_memory(edgeopt_execution *, void *, int64_t);
int32_t set_address(edgeopt_execution *, char const *, void *);
int32_t enqueue(edgeopt_execution *, void *);

// Runs `body`, turning exceptions into a status.
template <class Body> int32_t guarded(edgeopt_context const &context, Body body) {
    try {
        return body();
    } catch (std::exception const &error) {
        return context.fail(EDGEOPT_EXCEPTION, error.what());
    } catch (...) {
        return context.fail(EDGEOPT_EXCEPTION, "an exception of unknown type");
    }
}

} // namespace edgeopt
