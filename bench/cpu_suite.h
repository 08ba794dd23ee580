// The expert layer of a Mixture-of-Experts model on this machine's processor, as shares of what the machine
// gives in the same run: its read bandwidth, and OpenBLAS on dequantised weights.
#pragma once
#include <cstdint>
#include <ostream>
#include <vector>

#include "base/status.h"
#include "ceilings.h"

namespace sluice::bench {

enum class Format : uint8_t { kText, kJson };

struct CpuBenchOptions {
  int threads = 2;  // of Sluice and of OpenBLAS alike
  int layers = 6;   // of weights, used in turn so that no cache holds them; 423 MB each at the default shape
  ExpertShape shape = {};
  std::vector<int64_t> tokens = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  std::vector<int64_t> sgemm_tokens = {1, 16, 64, 256};
  Format format = Format::kText;
};

Status run_cpu_suite(const CpuBenchOptions& options, std::ostream& out);

}  // namespace sluice::bench
