#include "backends/backends.h"

#include "backends/cpu/device.h"
#if defined(SLUICE_CUDA)
#include "backends/cuda/device.h"
#endif

namespace sluice {

const Catalog& all_candidates() {
  static const Catalog tables = [] {
    Catalog out;
#if defined(SLUICE_CUDA)
    out.append(cuda::catalog());
#endif
    out.append(cpu::catalog());
    return out;
  }();
  return tables;
}

Result<std::unique_ptr<Device>> open_device(const OpenOptions& options) {
#if defined(SLUICE_CUDA)
  if (options.backend == Backend::kCuda)
    return cuda::open_device(
        {.index = options.gpu, .dependent = options.dependent_launch, .log = options.log});
#else
  if (options.backend == Backend::kCuda)
    return unsupported("cuda: this build has no CUDA backend (SLUICE_CUDA=OFF)");
#endif
  return cpu::open_device({.threads = options.threads, .log = options.log});
}

std::string compiled_simd_levels() { return cpu::compiled_simd_levels(); }

}  // namespace sluice
