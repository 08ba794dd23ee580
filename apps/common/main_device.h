// The device that a model runs on.
#pragma once
#include <memory>
#include <string>

#include "dispatch/device.h"

namespace sluice::apps {

// `name` as --device has it. auto: a Hopper GPU if this build has kernels and one can be opened, else the CPU. kUnsupported says
// what is missing for cuda.
Result<std::unique_ptr<Device>> open_main_device(const std::string& name, int threads);

inline bool is_gpu(const Device& device) { return device.info().backend == Backend::kCuda; }

}  // namespace sluice::apps
