// What the descriptors of linear_shares.cuh's kernels have in common: dense layers in which each SM computes a share of the features.
#pragma once
#include <algorithm>

#include "backends/cuda/linear/linear.h"

namespace sluice::cuda::shares {

constexpr int64_t kStageK = 128;  // values of k per stage: two boxes
constexpr int kGroupRows = 64, kRowsMax = 2 * kGroupRows, kFeaturesMin = 16, kFeaturesMax = 64,
              kFeaturesStep = 8;
constexpr int kXBytes[] = {96 << 10, 128 << 10};  // bytes of the ring of x, with one and with two warpgroups
constexpr int kStagesMax = 32;                    // per ring
constexpr int stages_of(int64_t width) { return static_cast<int>((width + kStageK - 1) / kStageK); }

// A launch: features per share, and number of warpgroups, which have 64 rows each.
struct Share {
  int features, groups;

  KernelLaunch packed() const { return {.value = {features, groups}}; }
  static Share of(const KernelLaunch& l) { return {l.value[0], l.value[1]}; }

  constexpr int weight_bytes() const { return features * 2 * static_cast<int>(kStageK); }  // per stage
};
// Offsets in shared memory: x, weights, barriers. A stage of x has only the problem's rows. wgmma reads
// 64 rows per warpgroup, so it also reads bytes past those rows; the sums of these rows are never stored.
struct ShareMemory {
  int rows, x_bytes;  // per stage of x; rows are a multiple of eight
  int x_stages, w_stages, weights, x_full, x_empty, w_full, w_empty, bytes;
};
inline ShareMemory memory_of(const Linear::Problem& p, const Share& s) {
  constexpr int kMax = (228 << 10) - (1 << 10), kBarriers = 1024;  // the system reserves 1 KiB per CTA
  const int stages = stages_of(p.width);
  ShareMemory m{};
  m.rows = static_cast<int>(linear_parts(p.tokens, 8)) * 8;
  m.x_bytes = m.rows * 2 * static_cast<int>(kStageK);
  // Enough bytes of x in flight to hide the latency of L2 (measured: docs/lab/cuda-engine.md).
  m.x_stages = std::min({stages, kXBytes[s.groups - 1] / std::max(m.x_bytes, 1), kStagesMax});
  m.weights = std::max(m.x_stages * m.x_bytes, s.groups * kGroupRows * 2 * static_cast<int>(kStageK));
  m.w_stages = std::min({stages, (kMax - kBarriers - m.weights) / s.weight_bytes(), kStagesMax});
  m.x_full = m.weights + m.w_stages * s.weight_bytes();
  m.x_empty = m.x_full + 8 * m.x_stages;
  m.w_full = m.x_empty + 8 * m.x_stages;
  m.w_empty = m.w_full + 8 * m.w_stages;
  m.bytes = m.w_empty + 8 * m.w_stages;
  return m;
}

inline void need_shares(Refusal& r, const Linear::Problem& p, const DeviceInfo& d) {
  need_linear_operands(r, p, d);
  r.need(p.tokens <= kRowsMax, "tokens <= " + std::to_string(kRowsMax) + " (two warpgroups of rows)",
         "tokens", p.tokens);
  const int64_t most = int64_t{kFeaturesMax} * d.cores;
  r.need(p.features <= most, "features <= " + std::to_string(most) + " (one share per SM)", "features",
         p.features);
}

// The constants do not predict the time. With them dispatch chooses, for more than eight rows, the
// kernel that is fastest in steps (where weights arrive before x), and for up to eight rows the
// kernel that is fastest in isolation (docs/lab/cuda-engine.md; tests/cuda/regret_test.cc). The
// result is
// 9 to 14% below the time in isolation for 5120 x 2880, and up to 23% above it for 2880 x 4096.
inline double share_us(const Linear::Problem& p, const DeviceInfo& d, const Share& s) {
  constexpr double kFixedUs = 1.0, kStageUs = 0.34, kEarlyUs = 1.2, kEarlyRows = 8;
  const double row_us = s.groups == 1 ? 0.02 : 0.021, rows = static_cast<double>(p.tokens);
  return kFixedUs - (rows > kEarlyRows ? kEarlyUs : 0) + row_us * rows +
         std::max(Linear::bytes(p) / d.mem_bytes_per_us, kStageUs * stages_of(p.width));
}

// The only configuration of a problem. Its cost is share_us() + more_us.
inline std::vector<Config> configs_of(const Linear::Problem& p, const DeviceInfo& d, double more_us) {
  const auto least =
      static_cast<int>(linear_parts(linear_parts(p.features, d.cores), kFeaturesStep)) * kFeaturesStep;
  const Share s{std::clamp(least, kFeaturesMin, kFeaturesMax), p.tokens <= kGroupRows ? 1 : 2};
  return {{.name = std::to_string(s.features) + "x" + std::to_string(s.groups * kGroupRows),
           .cost_us = share_us(p, d, s) + more_us,
           .launches = {s.packed()}}};
}

inline std::string text_of(const Linear::Problem& p, const KernelLaunch& launch) {
  const Share s = Share::of(launch);
  const ShareMemory m = memory_of(p, s);
  return std::to_string(linear_parts(p.features, s.features)) + " CTAs, " + std::to_string(s.features) +
         " features each, " + std::to_string(m.w_stages) + " of " + std::to_string(stages_of(p.width)) +
         " stages of weights and " + std::to_string(m.x_stages) + " of x in shared memory";
}

}  // namespace sluice::cuda::shares
