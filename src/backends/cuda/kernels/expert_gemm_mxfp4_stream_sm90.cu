// Expert GEMM for few rows an expert, mxfp4 weights: a unit of work is one row block of one expert's weights, 64 rows and the
// whole sum, so that many SMs have a share of few experts and no sum crosses an SM.
//
// Sixteen warps multiply, each 16 rows and a quarter of the k blocks, and add up through shared memory in a fixed order.
// They use mma.sync: for so few columns it is as fast as wgmma, and no warp waits for another. Of four more warps one fetches
// eight k blocks of codes and scales in one bulk copy each, three warps rows of x, 16 bytes a thread.
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
#include "backends/cuda/tile/mma.cuh"
#include "backends/cuda/tile/swizzle.cuh"

namespace sluice::cuda {
namespace {

constexpr int kParts = 4, kThreads = (kParts + 1) * 128;  // parts of the sum, with four warps each
constexpr int kSteps = 8;                                 // k blocks in a stage
constexpr int kRingBytes = 180 << 10;
constexpr int kScaleBytes = static_cast<int>(kFragmentScaleBytes),
              kCodeBytes = static_cast<int>(kFragmentCodeBytes);

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
  float sums[2][kParts][N / 2][128];
  uint8_t staging[kParts][4][SlabFinish<kGated>::kStagingBytes];
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
      tile::copy_bulk(stage + S::kScales, scales + k * kScaleBytes,
                      static_cast<uint32_t>(steps * kScaleBytes), tile::shared_address(full));
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

// 16 rows of weights (a slab) x one k block x N rows of x.
template <int N>
__device__ __forceinline__ void multiply_block(float (&d)[N / 8][4], uint32_t codes, const uint8_t* scales,
                                               uint32_t x) {
  const uint32_t lane = threadIdx.x % 32;
  const uint4 code = tile::load_shared(codes);
  const uint32_t scale = *reinterpret_cast<const uint32_t*>(scales);
  uint32_t a[4][4], b[N / 8][2][4];
#pragma unroll
  for (uint32_t n = 0; n < N / 8; ++n)
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half)
      tile::load_matrices(b[n][half], x + n * 1024 + tile::swizzled(lane % 8, (half * 4 + lane / 8) * 16));
  tile::decode_fragment(a[0], code.x, tile::scale_pair<0>(scale));
  tile::decode_fragment(a[1], code.y, tile::scale_pair<0>(scale));
  tile::decode_fragment(a[2], code.z, tile::scale_pair<1>(scale));
  tile::decode_fragment(a[3], code.w, tile::scale_pair<1>(scale));
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int n = 0; n < N / 8; ++n) {
      const uint32_t column[2] = {b[n][j / 2][j % 2 * 2], b[n][j / 2][j % 2 * 2 + 1]};
      tile::mma(d[n], a[j], column);
    }
}

// A warp has one of the four slabs of a row block, and of each stage two k blocks.
template <int N, bool kGated>
__device__ __forceinline__ void multiply(const ExpertParameters& p, const ExpertTileList& list,
                                         Memory<N, kGated>& m) {
  using S = Stage<N>;
  constexpr int kEach = kSteps / kParts;
  const int warp = static_cast<int>(threadIdx.x / 32) - 4, lane = static_cast<int>(threadIdx.x % 32);
  const int slab = warp % 4, part = warp / 4;
  const int my_codes = S::kCodes + part * kEach * kCodeBytes + (slab * 32 + lane) * 16;
  const int my_scales = S::kScales + part * kEach * kScaleBytes + (slab * 8 + lane / 4) * 4;
  tile::RingPlace place;
  int turn = 0;  // of the part that finishes this unit
  const int all = list.tiles(p);
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < all; index += static_cast<int>(gridDim.x)) {
    const ExpertTile t = list.at(p, index);
    const SlabFinish<kGated> finish(
        p, t.expert, t.first_block, slab,
        p.w_scale + t.expert * p.scale_bytes + p.top_begin + t.first_block * kFragmentRows);
    float d[kEach][N / 8][4] = {};
#pragma unroll 1
    for (int k = part * kEach; k - part * kEach < p.k_blocks; k += kSteps) {
      tile::barrier_wait_by_warp(&m.full[place.stage], place.parity);
      const uint8_t* stage = m.stage[place.stage];
      const uint32_t at = tile::shared_address(stage);
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (k + i < p.k_blocks)
          multiply_block<N>(d[i], at + my_codes + i * kCodeBytes, stage + my_scales + i * kScaleBytes,
                            at + (part * kEach + i) * S::kXBytes);
      tile::arrive_by_warp(tile::shared_address(&m.empty[place.stage]));
      place.step(S::kStages);
    }
    float sum[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      sum[i] = d[0][i / 4][i % 4];
#pragma unroll
      for (int k = 1; k < kEach; ++k) sum[i] += d[k][i / 4][i % 4];
    }
    // All parts' sums, added in order, to one of them, which finishes while the others go on.
    float* sums = &m.sums[turn % 2][0][0][slab * 32 + lane];
    if (part != turn) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sums[(part * (N / 2) + i) * 128] = sum[i];
    }
    tile::sync_threads<kParts * 128>(2);
    if (part == turn) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        float all_parts = 0;
#pragma unroll
        for (int other = 0; other < kParts; ++other)
          all_parts += other == part ? sum[i] : sums[(other * (N / 2) + i) * 128];
        sum[i] = all_parts;
      }
      const tile::ActivationValues act = activation_of(p, t.expert);
      const uint32_t staging = tile::shared_address(m.staging[part][slab]);
#pragma unroll 1
      for (int c = 0; 16 * c < t.rows; ++c) {
        stage_sums<N>(sum, c, staging);
        __syncwarp();
        finish.write(p, act, t, 16 * c, staging);
        __syncwarp();
      }
    }
    turn = (turn + 1) % kParts;
  }
}

template <int N, bool kGated>
__global__ void __launch_bounds__(kThreads, 1) expert_stream(const __grid_constant__ ExpertParameters p) {
  extern __shared__ uint8_t dynamic[];
  auto& m =
      *reinterpret_cast<Memory<N, kGated>*>(dynamic + (1024 - tile::shared_address(dynamic) % 1024) % 1024);
  if (threadIdx.x < Stage<N>::kStages) {
    tile::barrier_init(&m.full[threadIdx.x], kXThreads + 1);
    tile::barrier_init(&m.empty[threadIdx.x], kParts * 4);
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

// Units go round the SMs. Fitted to gpt-oss-20b, gpt-oss-120b and DeepSeek V4 Flash at 1 to 64 tokens on an H200.
double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kStartUs = 3.5, kUnitUs = 2.2, kStageUs = 0.6, kColumnsMost = 16;
  const ExpertLoad load = expert_load(p);
  const double row_blocks = std::ceil(static_cast<double>(ExpertGemm::weight_rows(p)) / 64);
  const double stages = std::ceil(static_cast<double>(p.width) / 64 / kSteps);
  const double units = load.active * column_tiles(load.rows_each, 8, kColumnsMost).tiles * row_blocks;
  return kStartUs + std::ceil(units / d.cores) * (kUnitUs + kStageUs * stages);
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
  const Launch how{
      .grid = {static_cast<unsigned>(sms), 1, 1},
      .block = {kThreads, 1, 1},
      .shared_bytes = 1024 + sizeof(Memory<N, kGated>) + static_cast<size_t>(p.experts) * sizeof(int32_t)};
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
