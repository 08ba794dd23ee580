#include "backends/backends.h"

#include "backends/cpu/device.h"
#if defined(SLUICE_CUDA)
#include "backends/cuda/device.h"
#endif

namespace sluice {
namespace {

constexpr int64_t kRowBytesMax = AllReduceNorm::kHiddenMax * 4;  // in f32

}  // namespace

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

Result<std::unique_ptr<Group>> make_group(std::span<Device* const> devices, const GroupOptions& options) {
  constexpr size_t kMax = AllReduceNorm::kRanksMax;
  if (devices.size() < 2 || devices.size() > kMax)
    return invalid("group: wanted 2 to " + std::to_string(kMax) + " devices, found " +
                   std::to_string(devices.size()));
  if (options.row_bytes < 1 || options.row_bytes > kRowBytesMax)
    return invalid("group: row_bytes: wanted 1 to " + std::to_string(kRowBytesMax) + ", found " +
                   std::to_string(options.row_bytes));
  for (const Device* device : devices)
    if (device->info().backend != devices.front()->info().backend)
      return invalid("group: wanted devices of one backend, found " + text(devices.front()->info()) +
                     " and " + text(device->info()));
#if defined(SLUICE_CUDA)
  if (devices.front()->info().backend == Backend::kCuda) return cuda::make_group(devices, options);
#endif
  return cpu::make_group(devices);
}

std::string compiled_simd_levels() { return cpu::compiled_simd_levels(); }

}  // namespace sluice
