#include "backends/cuda/device.h"

namespace sluice::cuda {

Result<std::unique_ptr<Device>> open_device(const Log&) {
  return unsupported(
      "cuda: wanted a device to run on, found a build without CUDA kernels; use the cpu backend, or "
      "explain --device h200 to see what is planned for it");
}

}  // namespace sluice::cuda
