// A build of cards alone (card.h): there is no device to open. It takes the place of all that is compiled with CUDA's headers.
#include "backends/cuda/card.h"
#include "backends/cuda/device.h"

namespace sluice::cuda {

Result<std::unique_ptr<Device>> open_device(const Options&) {
  return unsupported("cuda: " + std::string(kNoKernels));
}

}  // namespace sluice::cuda
