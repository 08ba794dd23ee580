// The CUDA backend's place in the house: its candidates are cards without kernels, so that explain can say on
// any machine what a Hopper card would run; it opens no device.
#pragma once
#include <memory>

#include "dispatch/device.h"

namespace sluice::cuda {

// kUnsupported, always: this build has no CUDA kernels.
Result<std::unique_ptr<Device>> open_device(const Log& log);

// The candidates of backends/cuda/candidates.def.
const Catalog& catalog();

}  // namespace sluice::cuda
