// A dense layer for up to 128 rows. Each SM computes a share of 16 to 64 features,
// and loads as many of its weights as fit into shared memory before x is ready.
//
// The wgmmas have rows of x as M (64 per warpgroup) and features as N. So features are divided in groups of
// eight, one share per SM, where tiles of 64 features would leave SMs idle. Weights and x have separate
// rings: weights arrive from memory while previous launches still run, and x from L2 after they have ended.
//
// End is a type that defines where a share's weights are and what is done with its sums:
//
//  Maps                          tensor maps of the weights; prefetch(maps)
//   fetch<features>(policy, to, maps, k, share, full)   loads 64 values of k of a share's weights: rows of 128 bytes, swizzled
//   Out                           End's part of the launch's parameters
//   Sums<eights>(out, row)        waits for the previous launch and starts the loads of the epilogue
//   store(out, sums)              called by all threads of a warpgroup
#pragma once
#include "backends/cuda/launch.h"
#include "backends/cuda/linear/linear_shares.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/l2_policy.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/ring.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/tensor_map.h"
#include "backends/cuda/tile/warp.cuh"
#include "backends/cuda/tile/wgmma.cuh"

namespace sluice::cuda::shares {

constexpr int kBlockBytes = kGroupRows * 128;  // 64 rows of x, 64 values of k

template <class Out>
struct Parameters {
  int stages;  // number of stages in k
  ShareMemory at;
  Out out;
};

template <class Out>
__device__ __forceinline__ tile::Ring ring_of_weights(const Parameters<Out>& p, uint32_t base) {
  return {base + p.at.w_full, base + p.at.w_empty};
}
template <class Out>
__device__ __forceinline__ tile::Ring ring_of_x(const Parameters<Out>& p, uint32_t base) {
  return {base + p.at.x_full, base + p.at.x_empty};
}

// The first of a thread's two adjacent columns in each group of eight. A thread has sums of rows r and r + 8 of these columns.
__device__ __forceinline__ int column_of_thread() { return static_cast<int>(threadIdx.x) % 4 * 2; }

template <int kFeatures, int kGroups>
struct Shape {
  static constexpr Share kShare{kFeatures, kGroups};
  static constexpr int kConsumers = 128 * kGroups, kThreads = kConsumers + 64;
  static constexpr int kWeightBytes = kShare.weight_bytes(), kBoxes = static_cast<int>(kStageK) / 64;
  static_assert(kWeightBytes % (1024 * kBoxes) == 0);
};

// The producer warp of the weights. It does not wait for the previous launch.
template <class End, class C>
__device__ __forceinline__ void fetch_weights(const typename End::Maps& w,
                                              const Parameters<typename End::Out>& p, uint32_t base) {
  const uint64_t policy = tile::read_once();
  const tile::Ring ring = ring_of_weights(p, base);
  tile::RingPlace place;
#pragma unroll 1
  for (int i = 0; i < p.stages; ++i) {
    if (i >= p.at.w_stages) ring.acquire_by_warp(place);
    const uint32_t full = ring.expect_by_warp(place.stage, C::kWeightBytes),
                   to = base + p.at.weights + place.stage * C::kWeightBytes;
#pragma unroll
    for (int b = 0; b < C::kBoxes; ++b)
      End::template fetch<C::kShare.features>(policy, to + b * (C::kWeightBytes / C::kBoxes), w,
                                              (i * C::kBoxes + b) * 64, static_cast<int>(blockIdx.x), full);
    place.step(static_cast<uint32_t>(p.at.w_stages));
  }
}
// The producer warp of x.
template <class C, class Out>
__device__ __forceinline__ void fetch_x(const CUtensorMap& x, const Parameters<Out>& p, uint32_t base) {
  const tile::Ring ring = ring_of_x(p, base);
  tile::RingPlace place;
  const auto bytes = static_cast<uint32_t>(p.at.x_bytes);
  tile::wait_for_previous();
#pragma unroll 1
  for (int i = 0; i < p.stages; ++i) {
    if (i >= p.at.x_stages) ring.acquire_by_warp(place);
    const uint32_t full = ring.expect_by_warp(place.stage, bytes), to = base + place.stage * bytes;
#pragma unroll
    for (int b = 0; b < C::kBoxes; ++b)
      tile::copy_box(to + b * (bytes / C::kBoxes), x, (i * C::kBoxes + b) * 64, 0, full);
    place.step(static_cast<uint32_t>(p.at.x_stages));
  }
}

template <class End, class C>
__device__ __forceinline__ void consume(const Parameters<typename End::Out>& p, uint32_t base, int group) {
  constexpr int kFeatures = C::kShare.features;
  const int lane = static_cast<int>(threadIdx.x) % 32,
            row = group * kGroupRows + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  const typename End::template Sums<kFeatures / 8> sums(p.out, row);
  const uint64_t a = tile::describe_tile(base + group * kBlockBytes),
                 b = tile::describe_tile(base + p.at.weights);
  float d[kFeatures / 2];
#pragma unroll
  for (float& sum : d) sum = 0;
  const uint32_t one = lane == 0, x_bytes = static_cast<uint32_t>(p.at.x_bytes);
  const tile::Ring x_ring = ring_of_x(p, base), w_ring = ring_of_weights(p, base);
  tile::RingPlace of_x, of_w;
  uint32_t x_before = 0, w_before = 0;
#pragma unroll 1
  for (int i = 0; i < p.stages; ++i) {
    w_ring.wait(of_w);
    x_ring.wait(of_x);
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
    x_ring.release(x_before, one & static_cast<uint32_t>(i > 0));
    w_ring.release(w_before, one & static_cast<uint32_t>(i > 0));
    x_before = of_x.stage, w_before = of_w.stage;
    of_x.step(static_cast<uint32_t>(p.at.x_stages)), of_w.step(static_cast<uint32_t>(p.at.w_stages));
  }
  tile::wait_groups<0>();
  tile::hold(d);
  sums.store(p.out, d);
}

template <class End, int kFeatures, int kGroups>
__global__ void __launch_bounds__(Shape<kFeatures, kGroups>::kThreads, 1)
    linear_shares(const __grid_constant__ typename End::Maps w, const __grid_constant__ CUtensorMap x,
                  const __grid_constant__ Parameters<typename End::Out> p) {
  using C = Shape<kFeatures, kGroups>;
  extern __shared__ __align__(1024) uint8_t shared[];
  if (tile::shared_address(shared) % 1024 != 0) __trap();
  const int warp = tile::uniform(static_cast<int>(threadIdx.x) / 32);
  const uint32_t base = tile::shared_address(shared);
  constexpr int kWeights = C::kConsumers / 32, kX = kWeights + 1;
  tile::release_next();
  if (warp == kWeights) {
    End::prefetch(w);
#pragma unroll 1
    for (int i = 0; i < p.at.w_stages; ++i) ring_of_weights(p, base).init_by_warp(i, 1, 4 * kGroups);
  } else if (warp == kX) {
    tile::prefetch_map(x);
#pragma unroll 1
    for (int i = 0; i < p.at.x_stages; ++i) ring_of_x(p, base).init_by_warp(i, 1, 4 * kGroups);
  }
  tile::barrier_visible();
  __syncthreads();
  if (warp == kWeights) {
    fetch_weights<End, C>(w, p, base);
  } else if (warp == kX) {
    fetch_x<C>(x, p, base);
  } else {
    consume<End, C>(p, base, tile::uniform(warp / 4));
  }
}

template <class End>
using Kernel = void (*)(typename End::Maps, CUtensorMap, Parameters<typename End::Out>);
template <class End, int kGroups, int... kIndex>
Kernel<End> kernel_for(int features, std::integer_sequence<int, kIndex...>) {
  static constexpr Kernel<End> kAll[] = {
      linear_shares<End, kFeaturesMin + kIndex * kFeaturesStep, kGroups>...};
  return kAll[(features - kFeaturesMin) / kFeaturesStep];
}

// Enqueues a problem with at least one token. Rows of x must be aligned to 16 bytes.
template <class End>
Status launch_shares(std::string_view name, const Linear::Problem& p, const KernelLaunch& of,
                     const Tensor& rows, const typename End::Maps& w, const typename End::Out& out,
                     Stream stream) {
  const Share share = Share::of(of);
  const Parameters<typename End::Out> parameters{
      .stages = stages_of(p.width), .at = memory_of(p, share), .out = out};
  CUtensorMap x;
  SLUICE_TRY(tile::map_rows(x, rows, parameters.at.rows));
  using Shares = std::make_integer_sequence<int, (kFeaturesMax - kFeaturesMin) / kFeaturesStep + 1>;
  const Kernel<End> kernel = share.groups == 1 ? kernel_for<End, 1>(share.features, Shares{})
                                               : kernel_for<End, 2>(share.features, Shares{});
  const Launch how{.grid = {static_cast<unsigned>(linear_parts(p.features, share.features)), 1, 1},
                   .block = {static_cast<unsigned>(128 * share.groups + 64), 1, 1},
                   .shared_bytes = static_cast<size_t>(parameters.at.bytes)};
  return launch(name, kernel, how, stream, w, x, parameters);
}

}  // namespace sluice::cuda::shares
