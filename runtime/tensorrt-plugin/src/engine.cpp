// Engines: loading, describing, inspecting.

#include "context.h"

using namespace nvinfer1;

void edgeopt_context::tell(bool is_input, char const *name, DataType type, Dims const &dims) const {
    if (callbacks.tensor == nullptr) {
        return;
    }
    int64_t lengths[EDGEOPT_TENSORRT_MAX_RANK]{};
    int32_t const rank = dims.nbDims;
    for (int32_t axis = 0; axis < rank && axis < EDGEOPT_TENSORRT_MAX_RANK; ++axis) {
        lengths[axis] = static_cast<int64_t>(dims.d[axis]);
    }
    callbacks.tensor(callbacks.user, is_input ? 1 : 0, name, static_cast<int32_t>(type), rank, lengths);
}

namespace edgeopt {

namespace {

using CreateRuntime = void *(*)(void *, int32_t);

IRuntime *runtime(edgeopt_context &context) {
    if (context.runtime == nullptr) {
        auto const create = reinterpret_cast<CreateRuntime>(context.entries.create_runtime);
        context.runtime.reset(
            static_cast<IRuntime *>(create(static_cast<ILogger *>(&context.logger), NV_TENSORRT_VERSION)));
        if (context.runtime == nullptr) {
            context.fail(EDGEOPT_NO_BUILDER, "the library made no runtime");
            return nullptr;
        }
        context.runtime->setErrorRecorder(&context.recorder);
        if (context.allocates()) {
            context.runtime->setGpuAllocator(&context.allocator);
        }
    }
    return context.runtime.get();
}

} // namespace

int32_t load(edgeopt_context *context, void const *plan, uint64_t bytes, edgeopt_engine **out) {
    if (context == nullptr) {
        return EDGEOPT_ARGUMENT;
    }
    if (plan == nullptr || out == nullptr) {
        return context->fail(EDGEOPT_ARGUMENT, "no engine to load");
    }
    *out = nullptr;
    return guarded(*context, [&] {
        IRuntime *const live = runtime(*context);
        if (live == nullptr) {
            return static_cast<int32_t>(EDGEOPT_NO_BUILDER);
        }
        std::unique_ptr<ICudaEngine> engine(live->deserializeCudaEngine(plan, static_cast<size_t>(bytes)));
        if (engine == nullptr) {
            return context->fail(EDGEOPT_LOAD, "the library refused the engine");
        }
        *out = new edgeopt_engine{*context, std::move(engine)};
        return static_cast<int32_t>(EDGEOPT_OK);
    });
}

void unload(edgeopt_engine *engine) { delete engine; }

int32_t describe(edgeopt_engine *engine) {
    if (engine == nullptr) {
        return EDGEOPT_ARGUMENT;
    }
    return guarded(engine->context, [&] {
        ICudaEngine const &live = *engine->engine;
        for (int32_t index = 0; index < live.getNbIOTensors(); ++index) {
            char const *const name = live.getIOTensorName(index);
            if (live.getTensorLocation(name) != TensorLocation::kDEVICE) {
                // Its address would have to be the host's, and its values known before the shapes.
                std::string const text = std::string(name) + " is a tensor of shapes, which the library keeps on the " +
                    "host; engines with such inputs or outputs are not supported: make the shape a constant";
                return engine->context.fail(EDGEOPT_UNSUPPORTED, text.c_str());
            }
            engine->context.tell(live.getTensorIOMode(name) == TensorIOMode::kINPUT, name,
                                 live.getTensorDataType(name), live.getTensorShape(name));
        }
        return static_cast<int32_t>(EDGEOPT_OK);
    });
}

int64_t context_memory(edgeopt_engine *engine) {
    if (engine == nullptr) {
        return -1;
    }
#if SINCE_10_1
    return engine->engine->getDeviceMemorySizeV2();
#else
    return static_cast<int64_t>(engine->engine->getDeviceMemorySize());
#endif
}

int32_t inspect(edgeopt_engine *engine, edgeopt_sink sink, void *user) {
    if (engine == nullptr || sink == nullptr) {
        return EDGEOPT_ARGUMENT;
    }
    return guarded(engine->context, [&] {
        std::unique_ptr<IEngineInspector> inspector(engine->engine->createEngineInspector());
        if (inspector == nullptr) {
            return engine->context.fail(EDGEOPT_REFUSED, "the library made no inspector");
        }
        char const *const json = inspector->getEngineInformation(LayerInformationFormat::kJSON);
        if (json == nullptr) {
            return engine->context.fail(EDGEOPT_REFUSED, "the engine cannot be inspected");
        }
        sink(user, json, std::char_traits<char>::length(json));
        return static_cast<int32_t>(EDGEOPT_OK);
    });
}

} // namespace edgeopt
