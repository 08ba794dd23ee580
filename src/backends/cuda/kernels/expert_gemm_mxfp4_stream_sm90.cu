// Expert GEMM for few rows an expert, mxfp4 weights: a unit of work is one row block of one expert's weights, 64 rows and the
// whole sum, so that many SMs have a share of few experts and no sum crosses an SM.
//
// Four warpgroups multiply, k blocks taken in turn, and add their sums through shared memory in a fixed order. A fifth
// fetches: one warp eight k blocks of codes and scales in one bulk copy each, three warps rows of x, 16 bytes a thread.
//
// Wins    up to about 16 rows an expert: weights arrive at the rate of a plain stream.
// Loses   more rows: x passes the SM again for each 64 rows of weights. See mxfp4_tile_sm90.
// Limits  see supports(). Sums are cut in the same places for any batch, so a row's bits do not depend on it.
// Source  original; the contract is ops/expert_gemm.h.
#include "backends/cuda/card.h"
#include "backends/cuda/expert_cost.h"
#include "backends/cuda/expert_gemm.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/bulk_copy.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/wgmma_registers.cuh"

namespace sluice::cuda {
namespace {

constexpr int kGroups = 4, kThreads = (kGroups + 1) * 128;
constexpr int kSteps = 8;      // k blocks in a stage
constexpr int kRingBytes = 180 << 10;
constexpr int kScaleBytes = static_cast<int>(kFragmentScaleBytes), kCodeBytes = static_cast<int>(kFragmentCodeBytes);

template <int N>
struct Stage {
  static constexpr int kXBytes = N * tile::kSwizzledRowBytes;  // of one step
  static constexpr int kCodes = kSteps * kXBytes, kScales = kCodes + kSteps * kCodeBytes;
  static constexpr int kBytes = kScales + kSteps * kScaleBytes;
  static constexpr int kStages = std::max(3, kRingBytes / kBytes);
  static_assert(kBytes % 1024 == 0);
};

template <int N, bool kGated>
struct Memory {
  uint8_t stage[Stage<N>::kStages][Stage<N>::kBytes];  // aligned to 1024
  float sums[2][kGroups - 1][N / 2][128];
  uint8_t staging[4][SlabFinish<kGated>::kStagingBytes];
  uint64_t full[Stage<N>::kStages], empty[Stage<N>::kStages];
  int32_t scratch[32];
  int32_t before[1];  // [experts + 1]
};

template <int N, bool kGated>
__device__ __forceinline__ void fetch_weights(const ExpertParameters& p, const ExpertTileList& list,
                                              Memory<N, kGated>& m) {
  using S = Stage<N>;
  tile::RingPlace place;
  const int all = list.tiles(p);
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < all; index += static_cast<int>(gridDim.x)) {
    const ExpertTile t = list.at(p, index);
    const int64_t block = static_cast<int64_t>(t.first_block) * p.k_blocks;
    const uint8_t* codes = p.w + t.expert * p.w_bytes + block * kCodeBytes;
    const uint8_t* scales = p.w_scale + t.expert * p.scale_bytes + block * kScaleBytes;
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += kSteps) {
      const int steps = min(kSteps, p.k_blocks - k);
      tile::barrier_wait_by_warp(&m.empty[place.stage], place.parity ^ 1);
      const uint32_t stage = tile::shared_address(m.stage[place.stage]);
      uint64_t* full = &m.full[place.stage];
      tile::barrier_expect_by_warp(full, static_cast<uint32_t>(steps * (kCodeBytes + kScaleBytes)));
      tile::copy_bulk(stage + S::kCodes, codes + k * kCodeBytes, static_cast<uint32_t>(steps * kCodeBytes),
                      tile::shared_address(full));
      tile::copy_bulk(stage + S::kScales, scales + k * kScaleBytes, static_cast<uint32_t>(steps * kScaleBytes),
                      tile::shared_address(full));
      place.step(S::kStages);
    }
  }
}

template <int N, bool kGated>
__device__ __forceinline__ void fetch_rows(const ExpertParameters& p, const ExpertTileList& list,
                                           Memory<N, kGated>& m) {
  using S = Stage<N>;
  RowFetch<N> rows(static_cast<int>(threadIdx.x) - 32);
  tile::RingPlace place;
  const int all = list.tiles(p);
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < all; index += static_cast<int>(gridDim.x)) {
    rows.begin(p, list.at(p, index));
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += kSteps) {
      tile::barrier_wait_by_warp(&m.empty[place.stage], place.parity ^ 1);
      rows.template copy<kSteps>(p, tile::shared_address(m.stage[place.stage]), k);
      arrive_with_x(p, &m.full[place.stage]);
      place.step(S::kStages);
    }
  }
}

template <int N, bool kGated>
__device__ __forceinline__ void multiply(const ExpertParameters& p, const ExpertTileList& list,
                                         Memory<N, kGated>& m) {
  using S = Stage<N>;
  const int tid = static_cast<int>(threadIdx.x % 128), group = static_cast<int>(threadIdx.x / 128) - 1;
  const int warp = tid / 32, lane = tid % 32;
  tile::RingPlace place;
  int buffer = 0;
  const int all = list.tiles(p);
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < all; index += static_cast<int>(gridDim.x)) {
    float d[N / 2];
#pragma unroll
    for (float& sum : d) sum = 0;
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += kSteps) {
      const int steps = min(kSteps, p.k_blocks - k);
      tile::barrier_wait_by_warp(&m.full[place.stage], place.parity);
      tile::fence_for_async();
      const uint8_t* stage = m.stage[place.stage];
#pragma unroll 1
      for (int step = group; step < steps; step += kGroups) {
        const uint4 code = tile::load_shared(tile::shared_address(stage) + S::kCodes + step * kCodeBytes + tid * 16);
        const uint32_t scale = *reinterpret_cast<const uint32_t*>(stage + S::kScales + step * kScaleBytes +
                                                                  (warp * 8 + lane / 4) * 4);
        const uint64_t x = tile::describe_tile(stage + step * S::kXBytes);
        uint32_t a[4][4];
        tile::decode_fragment(a[0], code.x, tile::scale_pair<0>(scale));
        tile::decode_fragment(a[1], code.y, tile::scale_pair<0>(scale));
        tile::decode_fragment(a[2], code.z, tile::scale_pair<1>(scale));
        tile::decode_fragment(a[3], code.w, tile::scale_pair<1>(scale));
        tile::hold(d);
        tile::fence_operands();
#pragma unroll
        for (int j = 0; j < 4; ++j) tile::multiply_registers<N>(d, a[j], x + j * tile::kNext16, 1);
        tile::commit_group();
        tile::wait_groups<0>();
        tile::hold(d);
      }
      tile::arrive_by_warp(tile::shared_address(&m.empty[place.stage]));
      place.step(S::kStages);
    }
    // The sums of the other warpgroups, in order, to the first one, which finishes while they go on.
    if (group > 0) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) m.sums[buffer][group - 1][i][tid] = d[i];
    }
    tile::sync_threads<kGroups * 128>(2);
    if (group == 0) {
#pragma unroll
      for (int g = 0; g < kGroups - 1; ++g)
#pragma unroll
        for (int i = 0; i < N / 2; ++i) d[i] += m.sums[buffer][g][i][tid];
      const ExpertTile t = list.at(p, index);
      const uint8_t* tops = p.w_scale + t.expert * p.scale_bytes + p.top_begin + t.first_block * kFragmentRows;
      const SlabFinish<kGated> finish(p, t.expert, t.first_block, warp, tops);
      const tile::ActivationValues act = activation_of(p, t.expert);
      const uint32_t staging = tile::shared_address(m.staging[warp]);
#pragma unroll 1
      for (int c = 0; 16 * c < t.rows; ++c) {
        stage_sums<N>(d, c, staging);
        __syncwarp();
        finish.write(p, act, t, 16 * c, staging);
        __syncwarp();
      }
    }
    buffer ^= 1;
  }
}

template <int N, bool kGated>
__global__ void __launch_bounds__(kThreads, 1) expert_stream(const __grid_constant__ ExpertParameters p) {
  extern __shared__ uint8_t dynamic[];
  auto& m = *reinterpret_cast<Memory<N, kGated>*>(dynamic + (1024 - tile::shared_address(dynamic) % 1024) % 1024);
  if (threadIdx.x < Stage<N>::kStages) {
    tile::barrier_init(&m.full[threadIdx.x], kXThreads + 1);
    tile::barrier_init(&m.empty[threadIdx.x], kGroups * 4);
    tile::barrier_visible();
  }
  tile::wait_for_previous();
  tile::release_next();
  const ExpertTileList list{m.before, p.row_blocks, 1, N};
  count_expert_tiles(p, list, m.before, m.scratch);
  if (threadIdx.x < 32) {
    fetch_weights(p, list, m);
  } else if (threadIdx.x < 128) {
    fetch_rows(p, list, m);
  } else if (threadIdx.x >= 128) {
    multiply(p, list, m);
  }
}

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kE2M1, "dequantised in registers");
  return r;
}

double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kFragmentBytes = 544, kColumnsMost = 16;
  const ExpertLoad load = expert_load(p);
  const ColumnTiles tiles = column_tiles(load.rows_each, 8, kColumnsMost);
  const double copy_ns = (kFragmentBytes + 32 * tiles.columns) * d.cores / d.mem_bytes_per_us * 1e3;
  const double fragments =
      load.active * static_cast<double>(ExpertGemm::weight_rows(p) / 64) * static_cast<double>(p.width / 16);
  return kRampUs + tiles.tiles * fragments * copy_ns / d.cores / 1e3;
}

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream stream);

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_stream_sm90 = {
    .name = "cuda.expert_gemm.mxfp4_stream_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<ExpertGemm>,
    .enqueue = enqueue,
    .batch_invariant = true,
    .alignment_bytes = 16,
};

namespace {

template <int N, bool kGated>
Status enqueue_stream(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Stream stream) {
  int sms = 0;
  SLUICE_TRY(check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, queue_of(stream).device),
                   "counting SMs"));
  const Launch how{.grid = {static_cast<unsigned>(sms), 1, 1},
                   .block = {kThreads, 1, 1},
                   .shared_bytes = 1024 + sizeof(Memory<N, kGated>) +
                                   static_cast<size_t>(p.experts) * sizeof(int32_t)};
  return launch(expert_gemm_mxfp4_stream_sm90.name, expert_stream<N, kGated>, how, stream,
                expert_parameters(p, a));
}

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  constexpr double kFew = 5;  // rows of an expert on average, with hardly one that has more than 8
  if (std::min<double>(expert_load(p).rows_each, static_cast<double>(p.rows)) <= kFew)
    return is_gated(p.act) ? enqueue_stream<8, true>(p, a, stream) : enqueue_stream<8, false>(p, a, stream);
  return is_gated(p.act) ? enqueue_stream<16, true>(p, a, stream) : enqueue_stream<16, false>(p, a, stream);
}

}  // namespace

}  // namespace sluice::cuda
