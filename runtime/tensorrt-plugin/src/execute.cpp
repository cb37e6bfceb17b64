// Execution contexts. Their memory is the caller's, so that it is planned and counted.

#include "context.h"

using namespace nvinfer1;

namespace edgeopt {

int32_t new_execution(edgeopt_engine *engine, edgeopt_execution **out) {
    if (engine == nullptr || out == nullptr) {
        return EDGEOPT_ARGUMENT;
    }
    *out = nullptr;
    return guarded(engine->context, [&] {
#if SINCE_10
        auto *const made = engine->engine->createExecutionContext(ExecutionContextAllocationStrategy::kUSER_MANAGED);
#else
        auto *const made = engine->engine->createExecutionContextWithoutDeviceMemory();
#endif
        std::unique_ptr<IExecutionContext> context(made);
        if (context == nullptr) {
            return engine->context.fail(EDGEOPT_REFUSED, "the library made no execution context");
        }
        *out = new edgeopt_execution{*engine, std::move(context)};
        return static_cast<int32_t>(EDGEOPT_OK);
    });
}

void free_execution(edgeopt_execution *execution) { delete execution; }

namespace {

int32_t refused(edgeopt_execution const &execution, char const *what, char const *name) {
    std::string const text = std::string(what) + (name != nullptr ? name : "");
    return execution.engine.context.fail(EDGEOPT_REFUSED, text.c_str());
}

} // namespace

int32_t select_profile(edgeopt_execution *execution, int32_t profile, void *stream) {
    if (execution == nullptr) {
        return EDGEOPT_ARGUMENT;
    }
    return guarded(execution->engine.context, [&] {
        if (!execution->context->setOptimizationProfileAsync(profile, static_cast<cudaStream_t>(stream))) {
            return refused(*execution, "the library refused the optimization profile", nullptr);
        }
        return static_cast<int32_t>(EDGEOPT_OK);
    });
}

int32_t set_shape(edgeopt_execution *execution, char const *input, int32_t rank, int64_t const *lengths) {
    if (execution == nullptr || input == nullptr) {
        return EDGEOPT_ARGUMENT;
    }
    return guarded(execution->engine.context, [&] {
        Dims dims{};
        if (!to_dims(rank, lengths, dims) || !execution->context->setInputShape(input, dims)) {
            return refused(*execution, "the library refused the shape of input ", input);
        }
        return static_cast<int32_t>(EDGEOPT_OK);
    });
}

int32_t shape(edgeopt_execution *execution, char const *tensor, int32_t *rank, int64_t *lengths) {
    if (execution == nullptr || tensor == nullptr || rank == nullptr || lengths == nullptr) {
        return EDGEOPT_ARGUMENT;
    }
    return guarded(execution->engine.context, [&] {
        Dims const dims = execution->context->getTensorShape(tensor);
        if (dims.nbDims < 0 || dims.nbDims > EDGEOPT_TENSORRT_MAX_RANK) {
            return refused(*execution, "the library does not know the shape of ", tensor);
        }
        *rank = dims.nbDims;
        for (int32_t axis = 0; axis < dims.nbDims; ++axis) {
            lengths[axis] = static_cast<int64_t>(dims.d[axis]);
        }
        return static_cast<int32_t>(EDGEOPT_OK);
    });
}

int64_t needed_memory(edgeopt_execution *execution) {
    if (execution == nullptr) {
        return -1;
    }
#if SINCE_10
    return static_cast<int64_t>(execution->context->updateDeviceMemorySizeForShapes());
#else
    return static_cast<int64_t>(execution->engine.engine->getDeviceMemorySize());
#endif
}

int32_t set_memory(edgeopt_execution *execution, void *memory, int64_t bytes) {
    if (execution == nullptr) {
        return EDGEOPT_ARGUMENT;
    }
    return guarded(execution->engine.context, [&] {
#if SINCE_10_1
        execution->context->setDeviceMemoryV2(memory, bytes);
#else
        (void)bytes;
        execution->context->setDeviceMemory(memory);
#endif
        return static_cast<int32_t>(EDGEOPT_OK);
    });
}

int32_t set_address(edgeopt_execution *execution, char const *tensor, void *memory) {
    if (execution == nullptr || tensor == nullptr) {
        return EDGEOPT_ARGUMENT;
    }
    return guarded(execution->engine.context, [&] {
        if (!execution->context->setTensorAddress(tensor, memory)) {
            return refused(*execution, "the library refused the memory of ", tensor);
        }
        return static_cast<int32_t>(EDGEOPT_OK);
    });
}

int32_t enqueue(edgeopt_execution *execution, void *stream) {
    if (execution == nullptr) {
        return EDGEOPT_ARGUMENT;
    }
    return guarded(execution->engine.context, [&] {
        if (!execution->context->enqueueV3(static_cast<cudaStream_t>(stream))) {
            return refused(*execution, "the library did not enqueue the run", nullptr);
        }
        return static_cast<int32_t>(EDGEOPT_OK);
    });
}

} // namespace edgeopt
