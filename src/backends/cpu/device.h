// The CPU as a device: opened, never assumed.
#pragma once
#include <memory>
#include <string>

#include "dispatch/device.h"

namespace sluice::cpu {

struct Options {
  int threads = 0;  // 0: one for each processor this process may use
  uint32_t features_allowed =
      ~0u;       // CpuFeature bits to use of those found: tests run each level on one machine
  Log log = {};  // one line when the device opens
};

// What this machine's processor can do and this process may use.
uint32_t detect_features();

// kInvalidArgument: threads outside [0, 1024].
Result<std::unique_ptr<Device>> open_device(const Options& options = {});

// The vector levels that kernels were compiled for, best first.
std::string compiled_simd_levels();

// The candidates of backends/cpu/candidates.def; needs no device.
const Catalog& catalog();

}  // namespace sluice::cpu
