// The CPU as a device. A caller opens it explicitly.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "dispatch/device.h"
#include "dispatch/group.h"

namespace sluice::cpu {

struct Options {
  int threads = 0;  // 0: one for each processor that this process may use
  uint32_t features_allowed =
      ~0u;       // mask of the CpuFeature bits to use; tests use it to run each level on one machine
  Log log = {};  // receives one line when the device opens
};

// The features that the processor has and that this process may use.
uint32_t detect_features();

// Returns kInvalidArgument for threads outside [0, 1024].
Result<std::unique_ptr<Device>> open_device(const Options& options = {});

// Makes a group of open devices; a device's rank is its index. kInvalidArgument: a device is not of this backend or already in a group.
Result<std::unique_ptr<Group>> make_group(std::span<Device* const> devices);

// The SIMD levels that kernels were compiled for, best first.
std::string compiled_simd_levels();

// The candidates of backends/cpu/candidates.def. Needs no device.
const Catalog& catalog();

}  // namespace sluice::cpu
