// Opens the device that a model runs on.
#pragma once
#include <memory>
#include <string>

#include "dispatch/device.h"

namespace sluice::apps {

// `name` is the value of --device. "auto" means a Hopper GPU if this build has CUDA kernels and the machine has such a GPU, else the CPU.
// The message of kUnsupported says why "cuda" cannot be used.
Result<std::unique_ptr<Device>> open_main_device(const std::string& name, int threads);

inline bool is_gpu(const Device& device) { return device.info().backend == Backend::kCuda; }

}  // namespace sluice::apps
