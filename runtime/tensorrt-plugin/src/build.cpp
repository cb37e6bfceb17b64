// From an ONNX model to a serialized engine.

#include "context.h"

#include <limits>

using namespace nvinfer1;

namespace {

using CreateBuilder = void *(*)(void *, int32_t);
using CreateParser = void *(*)(void *, void *, int32_t);

bool wants(edgeopt_build_options const &options, uint32_t flag) { return (options.flags & flag) != 0; }

std::unique_ptr<INetworkDefinition> network(IBuilder &builder, edgeopt_build_options const &options) {
    uint32_t flags = 0;
#if !SINCE_10
    flags |= 1U << static_cast<uint32_t>(NetworkDefinitionCreationFlag::kEXPLICIT_BATCH);
#elif !SINCE_11
    if (IS_RTX || wants(options, EDGEOPT_STRONGLY_TYPED)) {
        flags |= 1U << static_cast<uint32_t>(NetworkDefinitionCreationFlag::kSTRONGLY_TYPED);
    }
#endif
    (void)options;
    return std::unique_ptr<INetworkDefinition>(builder.createNetworkV2(flags));
}

// Each of the parser's reasons goes to the caller, with node and operator where the family tells them.
void report(edgeopt_context const &context, nvonnxparser::IParser &parser) {
    if (context.callbacks.error == nullptr) {
        return;
    }
    for (int32_t index = 0; index < parser.getNbErrors(); ++index) {
        auto const *const error = parser.getError(index);
        char const *node = nullptr;
        char const *op = nullptr;
#if SINCE_10
        node = error->nodeName();
        op = error->nodeOperator();
#endif
        context.callbacks.error(context.callbacks.user, EDGEOPT_FROM_PARSER, static_cast<int32_t>(error->code()),
                                error->desc(), node, op);
    }
}

int32_t limit(edgeopt_context const &context, IBuilderConfig &config, edgeopt_build_options const &options) {
    if (options.workspace != 0) {
        config.setMemoryPoolLimit(MemoryPoolType::kWORKSPACE, options.workspace);
        if (config.getMemoryPoolLimit(MemoryPoolType::kWORKSPACE) > options.workspace) {
            return context.fail(EDGEOPT_REFUSED, "the library does not accept the limit of the workspace");
        }
    }
    if (options.tactic_memory != 0) {
#if SINCE_8_6
        config.setMemoryPoolLimit(MemoryPoolType::kTACTIC_DRAM, options.tactic_memory);
#endif
    }
    return EDGEOPT_OK;
}

int32_t configure(edgeopt_context &context, IBuilderConfig &config, edgeopt_build_options const &options) {
    if (int32_t const status = limit(context, config, options)) {
        return status;
    }
#if SINCE_8_6
    if (options.optimization_level >= 0) {
        config.setBuilderOptimizationLevel(options.optimization_level);
    }
    if (options.auxiliary_streams >= 0) {
        config.setMaxAuxStreams(options.auxiliary_streams);
    }
    if (wants(options, EDGEOPT_VERSION_COMPATIBLE)) {
        config.setFlag(BuilderFlag::kVERSION_COMPATIBLE);
    }
#else
    if (wants(options, EDGEOPT_VERSION_COMPATIBLE)) {
        return context.fail(EDGEOPT_UNSUPPORTED, "version compatible engines need TensorRT 8.6 or newer");
    }
#endif
#if SINCE_8_6 && !SINCE_10
    // Sessions of one engine share its profile; from 10 on they always may.
    config.setPreviewFeature(PreviewFeature::kPROFILE_SHARING_0806, true);
#endif
#if SINCE_10
    if (wants(options, EDGEOPT_STRIPPED)) {
        config.setFlag(BuilderFlag::kSTRIP_PLAN);
    }
    if (wants(options, EDGEOPT_WEIGHT_STREAMING)) {
        config.setFlag(BuilderFlag::kWEIGHT_STREAMING);
    }
    if (context.callbacks.progress != nullptr) {
        config.setProgressMonitor(&context.monitor);
    }
#else
    if (wants(options, EDGEOPT_STRIPPED) || wants(options, EDGEOPT_WEIGHT_STREAMING)) {
        return context.fail(EDGEOPT_UNSUPPORTED, "stripped plans and weight streaming need TensorRT 10 or newer");
    }
#endif
#if SINCE_10_7
    if (options.max_tactics >= 0) {
        config.setMaxNbTactics(options.max_tactics);
    }
#endif
    if (wants(options, EDGEOPT_REFITTABLE)) {
        config.setFlag(BuilderFlag::kREFIT);
    }
    if (wants(options, EDGEOPT_SPARSE)) {
        config.setFlag(BuilderFlag::kSPARSE_WEIGHTS);
    }
    if (wants(options, EDGEOPT_DETAILED)) {
        config.setProfilingVerbosity(ProfilingVerbosity::kDETAILED);
    }
#if HAS_WEAK_TYPES
    if (!wants(options, EDGEOPT_STRONGLY_TYPED)) {
        if (wants(options, EDGEOPT_ALLOW_FP16)) {
            config.setFlag(BuilderFlag::kFP16);
        }
        if (wants(options, EDGEOPT_ALLOW_INT8)) {
            config.setFlag(BuilderFlag::kINT8);
        }
    }
#endif
    if (options.dla_core >= 0) {
#if IS_RTX
        return context.fail(EDGEOPT_UNSUPPORTED, "TensorRT-RTX has no DLA");
#else
        config.setDefaultDeviceType(DeviceType::kDLA);
        config.setDLACore(options.dla_core);
        if (wants(options, EDGEOPT_GPU_FALLBACK)) {
            config.setFlag(BuilderFlag::kGPU_FALLBACK);
        }
#endif
    }
    return EDGEOPT_OK;
}

int32_t add_profile(edgeopt_context const &context, IBuilder &builder, IBuilderConfig &config,
                    edgeopt_build_options const &options) {
    if (options.shape_count == 0) {
        return EDGEOPT_OK;
    }
    IOptimizationProfile *const profile = builder.createOptimizationProfile();
    if (profile == nullptr) {
        return context.fail(EDGEOPT_PROFILE, "the library made no optimization profile");
    }
    for (int32_t index = 0; index < options.shape_count; ++index) {
        edgeopt_shape_range const &range = options.shapes[index];
        Dims min{};
        Dims opt{};
        Dims max{};
        if (!edgeopt::to_dims(range.rank, range.min, min) || !edgeopt::to_dims(range.rank, range.opt, opt) ||
            !edgeopt::to_dims(range.rank, range.max, max)) {
            return context.fail(EDGEOPT_ARGUMENT, range.input);
        }
        bool const accepted = profile->setDimensions(range.input, OptProfileSelector::kMIN, min) &&
                              profile->setDimensions(range.input, OptProfileSelector::kOPT, opt) &&
                              profile->setDimensions(range.input, OptProfileSelector::kMAX, max);
        if (!accepted) {
            std::string const text = std::string("the range of input ") + range.input + " was refused";
            return context.fail(EDGEOPT_PROFILE, text.c_str());
        }
    }
    if (!profile->isValid() || config.addOptimizationProfile(profile) < 0) {
        return context.fail(EDGEOPT_PROFILE, "the optimization profile is not valid");
    }
    return EDGEOPT_OK;
}

std::unique_ptr<ITimingCache> timing_cache(edgeopt_context const &context, IBuilderConfig &config,
                                           edgeopt_build_options const &options) {
    std::unique_ptr<ITimingCache> cache(config.createTimingCache(
        options.timing_cache, options.timing_cache == nullptr ? 0 : static_cast<size_t>(options.timing_cache_bytes)));
    if (cache == nullptr && options.timing_cache != nullptr) {
        context.fail(EDGEOPT_OK, "the timing cache was refused; a new one is begun");
        cache.reset(config.createTimingCache(nullptr, 0));
    }
    if (cache != nullptr && !config.setTimingCache(*cache, false)) {
        context.fail(EDGEOPT_OK, "the timing cache belongs to another device or version; it is not used");
        cache.reset();
    }
    return cache;
}

int32_t build_guarded(edgeopt_context &context, void const *onnx, uint64_t bytes, char const *path,
                      edgeopt_build_options const &options, edgeopt_sink plan_sink, edgeopt_sink cache_sink,
                      void *user) {
    auto const create_builder = reinterpret_cast<CreateBuilder>(context.entries.create_builder);
    std::unique_ptr<IBuilder> builder(
        static_cast<IBuilder *>(create_builder(static_cast<ILogger *>(&context.logger), NV_TENSORRT_VERSION)));
    if (builder == nullptr) {
        return context.fail(EDGEOPT_NO_BUILDER, "the library made no builder");
    }
    builder->setErrorRecorder(&context.recorder);
    if (context.allocates()) {
        builder->setGpuAllocator(&context.allocator);
    }
    if (options.threads > 0 && !builder->setMaxThreads(options.threads)) {
        return context.fail(EDGEOPT_REFUSED, "the library refused the number of threads");
    }

    auto const net = network(*builder, options);
    if (net == nullptr) {
        return context.fail(EDGEOPT_NO_BUILDER, "the library made no network");
    }
    auto const create_parser = reinterpret_cast<CreateParser>(context.entries.create_parser);
    std::unique_ptr<nvonnxparser::IParser> parser(static_cast<nvonnxparser::IParser *>(
        create_parser(net.get(), static_cast<ILogger *>(&context.logger), NV_ONNX_PARSER_VERSION)));
    if (parser == nullptr) {
        return context.fail(EDGEOPT_NO_BUILDER, "the library made no ONNX parser");
    }
    bool const parsed = parser->parse(onnx, static_cast<size_t>(bytes), path);
    report(context, *parser);
    if (!parsed) {
        return context.fail(EDGEOPT_PARSE, "the ONNX parser refused the model");
    }
    for (int32_t index = 0; index < net->getNbInputs(); ++index) {
        auto const *const tensor = net->getInput(index);
        context.tell(true, tensor->getName(), tensor->getType(), tensor->getDimensions());
    }
    for (int32_t index = 0; index < net->getNbOutputs(); ++index) {
        auto const *const tensor = net->getOutput(index);
        context.tell(false, tensor->getName(), tensor->getType(), tensor->getDimensions());
    }

    std::unique_ptr<IBuilderConfig> config(builder->createBuilderConfig());
    if (config == nullptr) {
        return context.fail(EDGEOPT_NO_BUILDER, "the library made no configuration");
    }
    if (int32_t const status = configure(context, *config, options)) {
        return status;
    }
    if (int32_t const status = add_profile(context, *builder, *config, options)) {
        return status;
    }
    std::unique_ptr<ITimingCache> cache;
    if (cache_sink != nullptr) {
        cache = timing_cache(context, *config, options);
    }
    std::unique_ptr<IHostMemory> plan(builder->buildSerializedNetwork(*net, *config));
    if (plan == nullptr) {
        return context.fail(EDGEOPT_BUILD, "no engine came out of the build");
    }
    plan_sink(user, plan->data(), plan->size());
    if (cache != nullptr) {
        std::unique_ptr<IHostMemory> serialized(cache->serialize());
        if (serialized != nullptr) {
            cache_sink(user, serialized->data(), serialized->size());
        }
    }
    return EDGEOPT_OK;
}

} // namespace

namespace edgeopt {

bool to_dims(int32_t rank, int64_t const *lengths, Dims &dims) {
    if (rank < 0 || rank > EDGEOPT_TENSORRT_MAX_RANK || rank > Dims::MAX_DIMS || (rank > 0 && lengths == nullptr)) {
        return false;
    }
    using Length = std::remove_reference_t<decltype(dims.d[0])>;
    dims.nbDims = rank;
    for (int32_t axis = 0; axis < rank; ++axis) {
        if (lengths[axis] > static_cast<int64_t>(std::numeric_limits<Length>::max())) {
            return false;
        }
        dims.d[axis] = static_cast<Length>(lengths[axis]);
    }
    return true;
}

int32_t build(edgeopt_context *context, void const *onnx, uint64_t bytes, char const *path,
              edgeopt_build_options const *options, edgeopt_sink plan_sink, edgeopt_sink cache_sink, void *user) {
    if (context == nullptr) {
        return EDGEOPT_ARGUMENT;
    }
    if (onnx == nullptr || options == nullptr || options->size != sizeof(edgeopt_build_options) ||
        plan_sink == nullptr || (options->shape_count > 0 && options->shapes == nullptr) || options->shape_count < 0) {
        return context->fail(EDGEOPT_ARGUMENT, "the build's arguments are not those of this plugin");
    }
    return guarded(*context, [&] {
        return build_guarded(*context, onnx, bytes, path, *options, plan_sink, cache_sink, user);
    });
}

} // namespace edgeopt
