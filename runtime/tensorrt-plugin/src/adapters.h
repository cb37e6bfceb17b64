// The library's callback interfaces over the caller's functions.
#pragma once

#include "edgeopt_tensorrt.h"
#include "family.h"

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace edgeopt {

class Logger final : public nvinfer1::ILogger {
public:
    explicit Logger(edgeopt_callbacks const &callbacks) : callbacks_(callbacks) {}
    void log(Severity severity, nvinfer1::AsciiChar const *message) noexcept override {
        if (callbacks_.log != nullptr && message != nullptr) {
            callbacks_.log(callbacks_.user, static_cast<int32_t>(severity), message);
        }
    }

private:
    edgeopt_callbacks const &callbacks_;
};

// Device memory by the caller's functions, which account for it and may refuse.
class Allocator final : public nvinfer1::IGpuAllocator {
public:
    explicit Allocator(edgeopt_callbacks const &callbacks) : callbacks_(callbacks) {}
    void *allocate(uint64_t const bytes, uint64_t const alignment,
                   nvinfer1::AllocatorFlags const) noexcept override {
        return callbacks_.allocate(callbacks_.user, bytes, alignment, nullptr);
    }
    void *reallocate(void *const, uint64_t, uint64_t) noexcept override { return nullptr; }
    bool deallocate(void *const memory) noexcept override {
        return callbacks_.deallocate(callbacks_.user, memory, nullptr) != 0;
    }
#if SINCE_10
    void *allocateAsync(uint64_t const bytes, uint64_t const alignment, nvinfer1::AllocatorFlags const,
                        cudaStream_t stream) noexcept override {
        return callbacks_.allocate(callbacks_.user, bytes, alignment, static_cast<void *>(stream));
    }
    bool deallocateAsync(void *const memory, cudaStream_t stream) noexcept override {
        return callbacks_.deallocate(callbacks_.user, memory, static_cast<void *>(stream)) != 0;
    }
#else
    void free(void *const memory) noexcept override { deallocate(memory); }
#endif

private:
    edgeopt_callbacks const &callbacks_;
};

#if SINCE_10
class Monitor final : public nvinfer1::IProgressMonitor {
public:
    explicit Monitor(edgeopt_callbacks const &callbacks) : callbacks_(callbacks) {}
    void phaseStart(char const *phase, char const *parent, int32_t steps) noexcept override {
        callbacks_.progress(callbacks_.user, EDGEOPT_PHASE_BEGINS, phase, parent, steps);
    }
    bool stepComplete(char const *phase, int32_t step) noexcept override {
        return callbacks_.progress(callbacks_.user, EDGEOPT_STEP_DONE, phase, nullptr, step) != 0;
    }
    void phaseFinish(char const *phase) noexcept override {
        callbacks_.progress(callbacks_.user, EDGEOPT_PHASE_ENDS, phase, nullptr, 0);
    }

private:
    edgeopt_callbacks const &callbacks_;
};
#endif

// With a recorder set, some errors are recorded and not logged, and others the other way round: both go to the caller.
class Recorder final : public nvinfer1::IErrorRecorder {
public:
    explicit Recorder(edgeopt_callbacks const &callbacks) : callbacks_(callbacks) {}
    int32_t getNbErrors() const noexcept override {
        std::lock_guard<std::mutex> const lock(mutex_);
        return static_cast<int32_t>(errors_.size());
    }
    nvinfer1::ErrorCode getErrorCode(int32_t index) const noexcept override {
        std::lock_guard<std::mutex> const lock(mutex_);
        return inside(index) ? errors_[index].first : nvinfer1::ErrorCode::kINVALID_ARGUMENT;
    }
    ErrorDesc getErrorDesc(int32_t index) const noexcept override {
        std::lock_guard<std::mutex> const lock(mutex_);
        return inside(index) ? errors_[index].second.c_str() : "";
    }
    bool hasOverflowed() const noexcept override { return overflowed_; }
    void clear() noexcept override {
        std::lock_guard<std::mutex> const lock(mutex_);
        errors_.clear();
        overflowed_ = false;
    }
    bool reportError(nvinfer1::ErrorCode code, ErrorDesc description) noexcept override {
        char const *const text = description != nullptr ? description : "";
        {
            std::lock_guard<std::mutex> const lock(mutex_);
            try {
                if (errors_.size() < kMost) {
                    errors_.emplace_back(code, text);
                } else {
                    overflowed_ = true;
                }
            } catch (...) {
                overflowed_ = true;
            }
        }
        if (callbacks_.error != nullptr) {
            callbacks_.error(callbacks_.user, EDGEOPT_FROM_LIBRARY, static_cast<int32_t>(code), text, nullptr,
                             nullptr);
        }
        return true;
    }
    RefCount incRefCount() noexcept override { return ++references_; }
    RefCount decRefCount() noexcept override { return --references_; }

private:
    static constexpr size_t kMost = 64;
    bool inside(int32_t index) const {
        return index >= 0 && static_cast<size_t>(index) < errors_.size();
    }
    edgeopt_callbacks const &callbacks_;
    mutable std::mutex mutex_;
    std::vector<std::pair<nvinfer1::ErrorCode, std::string>> errors_;
    std::atomic<bool> overflowed_{false};
    std::atomic<RefCount> references_{0};
};

} // namespace edgeopt
