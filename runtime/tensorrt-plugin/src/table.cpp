// The exported table.

#include "context.h"

#include <new>

namespace {

edgeopt_context *open(edgeopt_entry_points const *entries, edgeopt_callbacks const *callbacks) {
    bool const known = entries != nullptr && entries->size == sizeof(edgeopt_entry_points) && callbacks != nullptr &&
                       callbacks->size == sizeof(edgeopt_callbacks);
    if (!known || entries->create_builder == nullptr || entries->create_runtime == nullptr ||
        entries->create_parser == nullptr) {
        return nullptr;
    }
    return new (std::nothrow) edgeopt_context(*entries, *callbacks);
}

void close(edgeopt_context *context) { delete context; }

constexpr uint32_t abilities() {
    uint32_t found = 0;
    if (SINCE_10) {
        found |= EDGEOPT_HAS_PROGRESS | EDGEOPT_HAS_EXACT_MEMORY | EDGEOPT_HAS_STRONG_TYPES |
                 EDGEOPT_HAS_STRIPPED_PLANS | EDGEOPT_HAS_WEIGHT_STREAMING;
    }
    if (SINCE_8_6) {
        found |= EDGEOPT_HAS_TACTIC_MEMORY | EDGEOPT_HAS_OPTIMIZATION_LEVEL | EDGEOPT_HAS_VERSION_COMPATIBLE;
    }
    if (SINCE_10_7) {
        found |= EDGEOPT_HAS_MAX_TACTICS;
    }
    if (HAS_WEAK_TYPES) {
        found |= EDGEOPT_HAS_WEAK_TYPES;
    }
    if (!IS_RTX) {
        found |= EDGEOPT_HAS_DLA;
    }
    return found;
}

} // namespace

extern "C" __attribute__((visibility("default"))) edgeopt_tensorrt_table const *edgeopt_tensorrt(void) {
    static edgeopt_tensorrt_table const table = {
        sizeof(edgeopt_tensorrt_table),
        EDGEOPT_TENSORRT_ABI,
        HEADER_VERSION,
        IS_RTX,
        abilities(),
        open,
        close,
        edgeopt::build,
        edgeopt::load,
        edgeopt::unload,
        edgeopt::describe,
        edgeopt::context_memory,
        edgeopt::inspect,
        edgeopt::new_execution,
        edgeopt::free_execution,
        edgeopt::select_profile,
        edgeopt::set_shape,
        edgeopt::shape,
        edgeopt::needed_memory,
        edgeopt::set_memory,
        edgeopt::set_address,
        edgeopt::enqueue,
    };
    return &table;
}
