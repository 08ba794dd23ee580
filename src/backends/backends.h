// The only place that knows every backend.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "dispatch/device.h"
#include "dispatch/group.h"

namespace sluice {

// The candidates of every backend, including backends that this machine cannot run. CUDA's come first, because
// they are faster.
const Catalog& all_candidates();

struct OpenOptions {
  Backend backend = Backend::kCpu;
  int threads = 0;               // CPU: 0 is one for each processor
  int gpu = 0;                   // CUDA: index among the GPUs that this process may see
  bool dependent_launch = true;  // CUDA: kernels may start before the previous one has ended
  Log log = {};
};
// kUnsupported says what is missing on this machine.
Result<std::unique_ptr<Device>> open_device(const OpenOptions& options);

// Makes a group of 2 to 8 devices of one backend; a device's rank is its index. kInvalidArgument names the device that does not
// fit; kUnsupported names the GPU that cannot access another GPU's memory.
Result<std::unique_ptr<Group>> make_group(std::span<Device* const> devices, const GroupOptions& options = {});

// The vector levels that this build has code for: "AVX3 AVX2 EMU128".
std::string compiled_simd_levels();

}  // namespace sluice
