#include "backends/backends.h"

#include "backends/cpu/device.h"
#include "backends/cuda/device.h"

namespace sluice {

const Catalog& all_candidates() {
  static const Catalog tables = [] {
    Catalog out;
    out.append(cuda::catalog());
    out.append(cpu::catalog());
    return out;
  }();
  return tables;
}

Result<std::unique_ptr<Device>> open_device(const OpenOptions& options) {
  if (options.backend == Backend::kCuda) return cuda::open_device(options.log);
  return cpu::open_device({.threads = options.threads, .log = options.log});
}

std::string compiled_simd_levels() { return cpu::compiled_simd_levels(); }

}  // namespace sluice
