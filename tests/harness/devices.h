// The devices of the suites: this machine, once per level of vector instructions.
#pragma once
#include <memory>
#include <vector>

#include "backends/cpu/device.h"

namespace sluice::test {

inline std::vector<std::unique_ptr<Device>> every_level(int threads) {
  constexpr uint32_t kLevels[] = {
      0,    kAvx2, kAvx2 | kAvx512, kAvx2 | kAvx512 | kAvx512Bf16, kAvx2 | kAvx512 | kAvx512Bf16 | kAmxBf16,
      kNeon};
  std::vector<std::unique_ptr<Device>> out;
  for (uint32_t level : kLevels) {
    if ((cpu::detect_features() & level) != level) continue;
    out.push_back(cpu::open_device({.threads = threads, .features_allowed = level}).value());
  }
  return out;
}

}  // namespace sluice::test
