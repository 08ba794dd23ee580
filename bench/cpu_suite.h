// The expert layer of a Mixture-of-Experts model on this machine's CPU, relative to two ceilings of the same run: the read bandwidth, and
// OpenBLAS on dequantized weights.
#pragma once
#include <cstdint>
#include <ostream>
#include <vector>

#include "base/status.h"
#include "ceilings.h"

namespace sluice::bench {

enum class Format : uint8_t { kText, kJson };

struct CpuBenchOptions {
  int threads = 2;  // for Sluice and for OpenBLAS
  // Sets of weights, used in rotation so that no cache holds them; 423 MB each at the default shape.
  int layers = 6;
  ExpertShape shape = {};
  std::vector<int64_t> tokens = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  std::vector<int64_t> sgemm_tokens = {1, 16, 64, 256};
  Format format = Format::kText;
};

Status run_cpu_suite(const CpuBenchOptions& options, std::ostream& out);

}  // namespace sluice::bench
