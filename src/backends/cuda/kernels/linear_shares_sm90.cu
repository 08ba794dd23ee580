// A dense layer for up to 128 rows: each multiprocessor has one share of the features, 16 to 64 of them, and as many of its weights
// as fit in shared memory before x is there.
//
// Rows of x are the first operand of wgmma, 64 to a warpgroup, and features are its columns. So features can be shared out in
// eights, one share a multiprocessor, where tiles of 64 features leave multiprocessors idle. Weights and x have rings of their own:
// weights come from memory while the launches before still run, and x from the L2 once they have ended.
//
// Wins    9 to 128 rows of some thousand features.
// Loses   up to 8 rows to stream_sm90; long sums of few features to split_sm90, since each multiprocessor reads all of x.
// Limits  see supports(). A sum runs from the first k to the last, so a row's bits do not depend on the batch. Rows of x that are
//         not 16-byte aligned go through the kernel of fma_sm90.
// Bytes   w once, x once a multiprocessor from the L2.
// Source  original; the contract is ops/linear.h.
#include <algorithm>

#include "backends/cuda/kernels/linear.h"

namespace sluice::cuda {
namespace {

constexpr int64_t kStageK = 128;  // k of a stage: two boxes
constexpr int kGroupRows = 64, kRowsMost = 2 * kGroupRows, kFeaturesLeast = 16, kFeaturesMost = 64,
              kFeaturesStep = 8;
constexpr int kXBytes[] = {96 << 10, 128 << 10};  // of the ring of x, by warpgroups
constexpr int kStagesMost = 32;                   // of a ring
constexpr int stages_of(int64_t width) { return static_cast<int>((width + kStageK - 1) / kStageK); }

// A launch: features of a share, and warpgroups of 64 rows.
struct Share {
  int features, groups;

  KernelLaunch packed() const { return {.value = {features, groups}}; }
  static Share of(const KernelLaunch& l) { return {l.value[0], l.value[1]}; }

  constexpr int weight_bytes() const { return features * 2 * static_cast<int>(kStageK); }  // of a stage
};
// Offsets in shared memory: x, weights, barriers. A stage of x has the rows that there are. wgmma reads 64 for each warpgroup, and so
// what follows them in shared memory, to sums that nobody stores.
struct ShareMemory {
  int rows, x_bytes;  // of a stage of x: rows are a multiple of eight
  int x_stages, w_stages, weights, x_full, x_empty, w_full, w_empty, bytes;
};
ShareMemory memory_of(const Linear::Problem& p, const Share& s) {
  constexpr int kMost = (228 << 10) - (1 << 10), kBarriers = 1024;  // the system reserves 1 KB
  const int stages = stages_of(p.width);
  ShareMemory m{};
  m.rows = static_cast<int>(linear_parts(p.tokens, 8)) * 8;
  m.x_bytes = m.rows * 2 * static_cast<int>(kStageK);
  // Bytes of x on their way hide the way from the L2: measured, docs/notes/cuda-engine.md.
  m.x_stages = std::min({stages, kXBytes[s.groups - 1] / std::max(m.x_bytes, 1), kStagesMost});
  m.weights = std::max(m.x_stages * m.x_bytes, s.groups * kGroupRows * 2 * static_cast<int>(kStageK));
  m.w_stages = std::min({stages, (kMost - kBarriers - m.weights) / s.weight_bytes(), kStagesMost});
  m.x_full = m.weights + m.w_stages * s.weight_bytes();
  m.x_empty = m.x_full + 8 * m.x_stages;
  m.w_full = m.x_empty + 8 * m.x_stages;
  m.w_empty = m.w_full + 8 * m.w_stages;
  m.bytes = m.w_empty + 8 * m.w_stages;
  return m;
}

Refusal supports(const Linear::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_linear_operands(r, p, d);
  r.need(p.tokens <= kRowsMost, "tokens <= " + std::to_string(kRowsMost) + " (two warpgroups of rows)",
         "tokens", p.tokens);
  const int64_t most = int64_t{kFeaturesMost} * d.cores;
  r.need(p.features <= most,
         "features <= " + std::to_string(most) + " (a share each for the multiprocessors)", "features",
         p.features);
  return r;
}

// Not a time, but set for its place among the other kernels: what was fastest in steps of more than eight rows, where weights come before x,
// and else alone (docs/notes/cuda-engine.md; tests/cuda/regret_test.cc). Of 5120 x 2880 it is 9 to 14% below what was measured alone, of
// 2880 x 4096 up to 23% above.
double share_us(const Linear::Problem& p, const DeviceInfo& d, const Share& s) {
  constexpr double kFixedUs = 1.0, kStageUs = 0.34, kEarlyUs = 1.2, kEarlyRows = 8;
  const double row_us = s.groups == 1 ? 0.02 : 0.021, rows = static_cast<double>(p.tokens);
  return kFixedUs - (rows > kEarlyRows ? kEarlyUs : 0) + row_us * rows +
         std::max(Linear::bytes(p) / d.mem_bytes_per_us, kStageUs * stages_of(p.width));
}

std::vector<Config> configs(const Linear::Problem& p, const DeviceInfo& d, const Policy&) {
  const auto least =
      static_cast<int>(linear_parts(linear_parts(p.features, d.cores), kFeaturesStep)) * kFeaturesStep;
  const Share s{std::clamp(least, kFeaturesLeast, kFeaturesMost), p.tokens <= kGroupRows ? 1 : 2};
  return {{.name = std::to_string(s.features) + "x" + std::to_string(s.groups * kGroupRows),
           .cost_us = share_us(p, d, s),
           .launches = {s.packed()}}};
}

std::string launch_text(const Linear::Problem& p, const KernelLaunch& launch) {
  const Share s = Share::of(launch);
  const ShareMemory m = memory_of(p, s);
  return std::to_string(linear_parts(p.features, s.features)) + " CTAs, " + std::to_string(s.features) +
         " features each, " + std::to_string(m.w_stages) + " of " + std::to_string(stages_of(p.width)) +
         " stages of weights and " + std::to_string(m.x_stages) + " of x in shared memory";
}

struct Launcher {
  static Status enqueue(const Linear::Problem&, std::span<const KernelLaunch>, const Linear::Args&, Workspace,
                        Stream);
};

}  // namespace

extern const Candidate<Linear> linear_shares_sm90 = {
    .name = "cuda.linear.shares_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .enqueue_config = enqueue_config_of<Linear, Launcher>(),
    .launch_text = launch_text,
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/l2_policy.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/tensor_map.h"
#include "backends/cuda/tile/warp.cuh"
#include "backends/cuda/tile/wgmma.cuh"

namespace sluice::cuda {
namespace {

constexpr int kBlockBytes = kGroupRows * 128;  // 64 rows of x, 64 of k

struct Parameters {
  int stages;  // of k
  ShareMemory at;
  LinearOutput out;
};

template <int kFeatures, int kGroups>
struct Shape {
  static constexpr Share kShare{kFeatures, kGroups};
  static constexpr int kConsumers = 128 * kGroups, kThreads = kConsumers + 64;
  static constexpr int kWeightBytes = kShare.weight_bytes(), kBoxes = static_cast<int>(kStageK) / 64;
  static_assert(kWeightBytes % (1024 * kBoxes) == 0);
};

// The warp of weights. Nothing here waits for the previous launch.
template <class C>
__device__ __forceinline__ void fetch_weights(const CUtensorMap& w, const Parameters& p, uint32_t base) {
  const uint64_t policy = tile::read_once();
  const int first = static_cast<int>(blockIdx.x) * C::kShare.features;
  tile::RingPlace place;
#pragma unroll 1
  for (int i = 0; i < p.stages; ++i) {
    if (i >= p.at.w_stages)
      tile::barrier_wait_by_warp(base + p.at.w_empty + 8 * place.stage, place.parity ^ 1);
    const uint32_t full = base + p.at.w_full + 8 * place.stage,
                   to = base + p.at.weights + place.stage * C::kWeightBytes;
    tile::barrier_expect_by_warp(full, C::kWeightBytes);
#pragma unroll
    for (int b = 0; b < C::kBoxes; ++b)
      tile::copy_box_by(policy, to + b * (C::kWeightBytes / C::kBoxes), w, (i * C::kBoxes + b) * 64, first,
                        full);
    place.step(static_cast<uint32_t>(p.at.w_stages));
  }
}
// The warp of x.
template <class C>
__device__ __forceinline__ void fetch_x(const CUtensorMap& x, const Parameters& p, uint32_t base) {
  tile::RingPlace place;
  const auto bytes = static_cast<uint32_t>(p.at.x_bytes);
  tile::wait_for_previous();
#pragma unroll 1
  for (int i = 0; i < p.stages; ++i) {
    if (i >= p.at.x_stages)
      tile::barrier_wait_by_warp(base + p.at.x_empty + 8 * place.stage, place.parity ^ 1);
    const uint32_t full = base + p.at.x_full + 8 * place.stage, to = base + place.stage * bytes;
    tile::barrier_expect_by_warp(full, bytes);
#pragma unroll
    for (int b = 0; b < C::kBoxes; ++b)
      tile::copy_box(to + b * (bytes / C::kBoxes), x, (i * C::kBoxes + b) * 64, 0, full);
    place.step(static_cast<uint32_t>(p.at.x_stages));
  }
}

template <class C>
__device__ __forceinline__ void consume(const Parameters& p, uint32_t base, int group) {
  constexpr int kFeatures = C::kShare.features, kEights = kFeatures / 8;
  const LinearOutput& out = p.out;
  const int lane = static_cast<int>(threadIdx.x) % 32,
            row = group * kGroupRows + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  const int first = static_cast<int>(blockIdx.x) * kFeatures + lane % 4 * 2;  // feature
  const RawBiases<2 * kEights, 8, 2> biases(out, first);
  tile::wait_for_previous();
  // The residual is asked for here, so that nothing waits for it after the products.
  uint2 more[2][kEights];
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      const int token = row + 8 * half, feature = first + 8 * j;
      more[half][j] =
          load_raw_two(out.residual, token * out.residual_stride + feature, out.y_f32,
                       out.residual && out.wide && token < out.tokens && feature + 1 < out.features);
    }
  const uint64_t a = tile::describe_tile(base + group * kBlockBytes),
                 b = tile::describe_tile(base + p.at.weights);
  float d[kFeatures / 2];
#pragma unroll
  for (float& sum : d) sum = 0;
  const uint32_t one = lane == 0, x_bytes = static_cast<uint32_t>(p.at.x_bytes);
  tile::RingPlace of_x, of_w;
  uint32_t x_before = 0, w_before = 0;
#pragma unroll 1
  for (int i = 0; i < p.stages; ++i) {
    tile::barrier_wait(base + p.at.w_full + 8 * of_w.stage, of_w.parity);
    tile::barrier_wait(base + p.at.x_full + 8 * of_x.stage, of_x.parity);
    const uint64_t x = a + of_x.stage * (x_bytes / tile::kDescribed),
                   w = b + of_w.stage * (C::kWeightBytes / tile::kDescribed);
    tile::fence_operands();
#pragma unroll
    for (int k = 0; k < static_cast<int>(kStageK) / 16; ++k)
      tile::multiply<kFeatures>(
          d, x + k / 4 * (x_bytes / (C::kBoxes * tile::kDescribed)) + k % 4 * tile::kNext16,
          w + k / 4 * (C::kWeightBytes / C::kBoxes / tile::kDescribed) + k % 4 * tile::kNext16, 1);
    tile::commit_group();
    tile::wait_groups<1>();
    tile::arrive_by_lane(base + p.at.x_empty + 8 * x_before, one & static_cast<uint32_t>(i > 0));
    tile::arrive_by_lane(base + p.at.w_empty + 8 * w_before, one & static_cast<uint32_t>(i > 0));
    x_before = of_x.stage, w_before = of_w.stage;
    of_x.step(static_cast<uint32_t>(p.at.x_stages)), of_w.step(static_cast<uint32_t>(p.at.w_stages));
  }
  tile::wait_groups<0>();
  tile::hold(d);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = row + 8 * half;
    if (token >= out.tokens) break;
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      const int feature = first + 8 * j;
      float sum[] = {d[4 * j + 2 * half] + biases.value(2 * j),
                     d[4 * j + 2 * half + 1] + biases.value(2 * j + 1)};
      if (out.wide && feature + 1 < out.features) {
        add_raw_two(sum, more[half][j], out.y_f32);
        out.store_together(token, feature, sum);
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          out.store(token, feature + i, sum[i] + out.residual_of(token, feature + i));
      }
    }
  }
}

template <int kFeatures, int kGroups>
__global__ void __launch_bounds__(Shape<kFeatures, kGroups>::kThreads, 1)
    linear_shares(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                  const __grid_constant__ Parameters p) {
  using C = Shape<kFeatures, kGroups>;
  extern __shared__ __align__(1024) uint8_t shared[];
  if (tile::shared_address(shared) % 1024 != 0) __trap();
  const int warp = tile::uniform(static_cast<int>(threadIdx.x) / 32);
  const uint32_t base = tile::shared_address(shared);
  constexpr int kWeights = C::kConsumers / 32, kX = kWeights + 1;
  tile::release_next();
  if (warp == kWeights) {
    tile::prefetch_map(w);
#pragma unroll 1
    for (int i = 0; i < p.at.w_stages; ++i) {
      tile::barrier_init_by_warp(reinterpret_cast<uint64_t*>(shared + p.at.w_full) + i, 1);
      tile::barrier_init_by_warp(reinterpret_cast<uint64_t*>(shared + p.at.w_empty) + i, 4 * kGroups);
    }
  } else if (warp == kX) {
    tile::prefetch_map(x);
#pragma unroll 1
    for (int i = 0; i < p.at.x_stages; ++i) {
      tile::barrier_init_by_warp(reinterpret_cast<uint64_t*>(shared + p.at.x_full) + i, 1);
      tile::barrier_init_by_warp(reinterpret_cast<uint64_t*>(shared + p.at.x_empty) + i, 4 * kGroups);
    }
  }
  tile::barrier_visible();
  __syncthreads();
  if (warp == kWeights) {
    fetch_weights<C>(w, p, base);
  } else if (warp == kX) {
    fetch_x<C>(x, p, base);
  } else {
    consume<C>(p, base, tile::uniform(warp / 4));
  }
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, Parameters);
template <int kGroups, int... kIndex>
Kernel kernel_for(int features, std::integer_sequence<int, kIndex...>) {
  static constexpr Kernel kAll[] = {linear_shares<kFeaturesLeast + kIndex * kFeaturesStep, kGroups>...};
  return kAll[(features - kFeaturesLeast) / kFeaturesStep];
}

Status Launcher::enqueue(const Linear::Problem& p, std::span<const KernelLaunch> launches,
                         const Linear::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  if (!aligned_rows(a.x, tile::kMapStrideBytes)) return launch_linear_fma(p, a, stream);
  const Share share = Share::of(launches[0]);
  const Parameters parameters{
      .stages = stages_of(p.width), .at = memory_of(p, share), .out = linear_output(p, a)};
  CUtensorMap w, x;
  SLUICE_TRY(tile::map_rows(w, a.w, share.features));
  SLUICE_TRY(tile::map_rows(x, a.x, parameters.at.rows));
  using Shares = std::make_integer_sequence<int, (kFeaturesMost - kFeaturesLeast) / kFeaturesStep + 1>;
  const Kernel kernel =
      share.groups == 1 ? kernel_for<1>(share.features, Shares{}) : kernel_for<2>(share.features, Shares{});
  const Launch how{.grid = {static_cast<unsigned>(linear_parts(p.features, share.features)), 1, 1},
                   .block = {static_cast<unsigned>(128 * share.groups + 64), 1, 1},
                   .shared_bytes = static_cast<size_t>(parameters.at.bytes)};
  return launch(linear_shares_sm90.name, kernel, how, stream, w, x, parameters);
}

}  // namespace
}  // namespace sluice::cuda
#endif
