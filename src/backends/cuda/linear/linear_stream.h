// What the descriptors of linear_stream.cuh's kernels have in common: dense layers that read their weights once, for a few rows.
#pragma once
#include "backends/cuda/linear/linear.h"

namespace sluice::cuda {

constexpr int kStreamEight = 8, kStreamSlab = 16;  // granularity of shares; features per unit of work
constexpr int64_t kStreamRowsMax = 8;

inline void need_stream_rows(Refusal& r, int64_t tokens) {
  r.need(tokens <= kStreamRowsMax, "tokens <= 8 (columns of mma.sync)", "tokens", tokens);
}

// Fitted to linear_candidates.csv of an H200 and of an H100, where each launch follows a launch of the
// same kernel. On an H100 memory is the limit, on an H200 the rate at which an SM loads in this way.
inline double linear_stream_us(const Linear::Problem& p, const DeviceInfo& d) {
  constexpr double kFixedUs = 0.4, kElementUs = 1.5e-5, kShare = 0.974, kCoreBytesPerUs = 31e3;
  return kFixedUs + kElementUs * static_cast<double>(p.tokens * p.width) +
         Linear::bytes(p) / std::min(kShare * d.mem_bytes_per_us, kCoreBytesPerUs * d.cores);
}

// A launch: the number of CTAs, and the number of features of which their shares are multiples.
inline KernelLaunch linear_stream_launch(const Linear::Problem& p, const DeviceInfo& d, int each) {
  return {.value = {static_cast<int32_t>(std::min<int64_t>(linear_parts(p.features, each), d.cores)), each}};
}

inline std::string linear_stream_text(const KernelLaunch& l) {
  return std::to_string(l.value[0]) + " CTAs, features in shares of " + std::to_string(l.value[1]);
}

}  // namespace sluice::cuda
