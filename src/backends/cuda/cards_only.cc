// A build without kernels (card.h) has no device to open. This file replaces the code that needs CUDA's headers.
#include "backends/cuda/card.h"
#include "backends/cuda/device.h"

namespace sluice::cuda {

Result<std::unique_ptr<Device>> open_device(const Options&) {
  return unsupported("cuda: " + std::string(kNoKernels));
}

Result<std::unique_ptr<Group>> make_group(std::span<Device* const>, const GroupOptions&) {
  return unsupported("cuda: " + std::string(kNoKernels));
}

}  // namespace sluice::cuda
