// Expert GEMM for few rows an expert, mxfp4 weights: a unit of work is one row block of one expert's weights, 64 rows and the
// whole sum, so that many SMs have a share of few experts and no sum crosses an SM.
//
// A block has four teams, each of four warps that multiply, 16 rows each, and one that fetches for them: codes and scales of
// four k blocks in one bulk copy each, rows of x 16 bytes a lane. A team has its own ring and goes its own way from unit to
// unit. Where a matrix has few row blocks, the teams take the stages of one unit in turn instead, and add up through shared
// memory in a fixed order. They use mma.sync: for so few columns it is as fast as wgmma, and no warp waits for another.
//
// Wins    up to about 16 rows an expert: weights arrive at the rate of a plain stream.
// Loses   more rows: x passes the SM again for each 64 rows of weights. See mxfp4_tile_sm90.
// Limits  see supports(). Sums are cut in the same places for any batch, so a row's bits do not depend on it.
// Source  original; the contract is ops/expert_gemm.h.
#include <type_traits>

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

constexpr int kTeams = 4, kThreads = kTeams * (4 + 1) * 32;
constexpr int kSteps = 4;       // k blocks in a stage
constexpr int kFewBlocks = 24;  // of a matrix's rows, up to which the teams share a unit
constexpr int kExpertsMost = 1024;
constexpr int kSharedMost = 227 << 10;
constexpr int kScaleBytes = static_cast<int>(kFragmentScaleBytes),
              kCodeBytes = static_cast<int>(kFragmentCodeBytes);

template <int N, bool kShared>
struct Stage {
  static constexpr int kXBytes = N * tile::kSwizzledRowBytes;  // of one step
  static constexpr int kCodes = kSteps * kXBytes, kScales = kCodes + kSteps * kCodeBytes;
  static constexpr int kBytes = kScales + kSteps * kScaleBytes;
  static constexpr int kRingBytes = (kShared ? 40 : 51) << 10;  // of a team, beside what else there is
  static constexpr int kStages = kRingBytes / kBytes;
  static_assert(kStages >= 2 && kBytes % 128 == 0);
};

template <int N>
struct Sums {
  float of[2][kTeams][N / 2][128];
};
struct NoSums {};

template <int N, bool kGated, bool kShared>
struct alignas(128) Memory {
  using S = Stage<N, kShared>;
  uint8_t stage[kTeams][S::kStages][S::kBytes];
  std::conditional_t<kShared, Sums<N>, NoSums> sums;
  alignas(16) uint8_t staging[kTeams][4][SlabFinish<kGated>::kStagingBytes];
  uint64_t full[kTeams][S::kStages], empty[kTeams][S::kStages];
  int32_t scratch[32];
  int32_t before[1];  // [experts + 1]
};

// Units of a team: kShared, all units of the block.
template <bool kShared>
__device__ __forceinline__ int first_unit(int team) {
  return static_cast<int>(kShared ? blockIdx.x : blockIdx.x + team * gridDim.x);
}
template <bool kShared>
__device__ __forceinline__ int next_unit() {
  return static_cast<int>(kShared ? gridDim.x : kTeams * gridDim.x);
}
// Stages of a team: kShared, every fourth.
template <bool kShared>
__device__ __forceinline__ int first_step(int team) {
  return kShared ? team * kSteps : 0;
}
template <bool kShared>
constexpr int kNextStep = kShared ? kTeams* kSteps : kSteps;

// One warp fetches for its team.
template <int N, bool kGated, bool kShared>
__device__ __forceinline__ void fetch(const ExpertParameters& p, const ExpertTileList& list,
                                      Memory<N, kGated, kShared>& m, int team) {
  using S = Stage<N, kShared>;
  RowFetch<N, 1> rows(static_cast<int>(threadIdx.x % 32));
  tile::RingPlace place;
  const int all = list.tiles(p);
#pragma unroll 1
  for (int index = first_unit<kShared>(team); index < all; index += next_unit<kShared>()) {
    const ExpertTile t = list.at(p, index);
    rows.begin(p, t);
    __syncwarp();
    const int64_t block = static_cast<int64_t>(t.first_block) * p.k_blocks;
    const uint8_t* codes = p.w + t.expert * p.w_bytes + block * kCodeBytes;
    const uint8_t* scales = p.w_scale + t.expert * p.scale_bytes + block * kScaleBytes;
#pragma unroll 1
    for (int k = first_step<kShared>(team); k < p.k_blocks; k += kNextStep<kShared>) {
      const int steps = min(kSteps, p.k_blocks - k);
      tile::barrier_wait_by_warp(&m.empty[team][place.stage], place.parity ^ 1);
      const uint32_t stage = tile::shared_address(m.stage[team][place.stage]);
      uint64_t* full = &m.full[team][place.stage];
      tile::barrier_expect_by_warp(full, static_cast<uint32_t>(steps * (kCodeBytes + kScaleBytes)));
      tile::copy_bulk(stage + S::kCodes, codes + k * kCodeBytes, static_cast<uint32_t>(steps * kCodeBytes),
                      tile::shared_address(full));
      tile::copy_bulk(stage + S::kScales, scales + k * kScaleBytes,
                      static_cast<uint32_t>(steps * kScaleBytes), tile::shared_address(full));
      rows.template copy<kSteps>(p, stage, k);
      arrive_with_x(p, full);
      __syncwarp();
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

// A warp has one of the four slabs of a row block.
template <int N, bool kGated, bool kShared>
__device__ __forceinline__ void multiply(const ExpertParameters& p, const ExpertTileList& list,
                                         Memory<N, kGated, kShared>& m, int team, int slab) {
  using S = Stage<N, kShared>;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int my_codes = S::kCodes + (slab * 32 + lane) * 16,
            my_scales = S::kScales + (slab * 8 + lane / 4) * 4;
  const uint32_t staging = tile::shared_address(m.staging[team][slab]);
  tile::RingPlace place;
  int turn = 0;  // kShared: of the team that finishes this unit
  const int all = list.tiles(p);
#pragma unroll 1
  for (int index = first_unit<kShared>(team); index < all; index += next_unit<kShared>()) {
    const ExpertTile t = list.at(p, index);
    const SlabFinish<kGated> finish(
        p, t.expert, t.first_block, slab,
        p.w_scale + t.expert * p.scale_bytes + p.top_begin + t.first_block * kFragmentRows);
    float d[2][N / 8][4] = {};  // of even and odd steps, which do not wait for each other
#pragma unroll 1
    for (int k = first_step<kShared>(team); k < p.k_blocks; k += kNextStep<kShared>) {
      tile::barrier_wait_by_warp(&m.full[team][place.stage], place.parity);
      const uint8_t* stage = m.stage[team][place.stage];
      const uint32_t at = tile::shared_address(stage);
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        if (k + i < p.k_blocks)
          multiply_block<N>(d[i % 2], at + my_codes + i * kCodeBytes, stage + my_scales + i * kScaleBytes,
                            at + i * S::kXBytes);
      tile::arrive_by_warp(tile::shared_address(&m.empty[team][place.stage]));
      place.step(S::kStages);
    }
    float sum[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sum[i] = d[0][i / 4][i % 4] + d[1][i / 4][i % 4];
    if constexpr (
        kShared) {  // all teams' sums, added in order, to one of them, which finishes while the others go on
      float* sums = &m.sums.of[turn % 2][0][0][slab * 32 + lane];
      if (team != turn) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) sums[(team * (N / 2) + i) * 128] = sum[i];
      }
      tile::sync_threads<kTeams * 128>(2);
      const bool mine = team == turn;
      turn = (turn + 1) % kTeams;
      if (!mine) continue;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        float all_teams = 0;
#pragma unroll
        for (int other = 0; other < kTeams; ++other)
          all_teams += other == team ? sum[i] : sums[(other * (N / 2) + i) * 128];
        sum[i] = all_teams;
      }
    }
    const tile::ActivationValues act = activation_of(p, t.expert);
#pragma unroll 1
    for (int c = 0; 16 * c < t.rows; ++c) {
      stage_sums<N>(sum, c, staging);
      __syncwarp();
      finish.write(p, act, t, 16 * c, staging);
      __syncwarp();
    }
  }
}

template <int N, bool kGated, bool kShared>
__global__ void __launch_bounds__(kThreads, 1) expert_stream(const __grid_constant__ ExpertParameters p) {
  extern __shared__ uint8_t dynamic[];
  auto& m = *reinterpret_cast<Memory<N, kGated, kShared>*>(dynamic +
                                                           (128 - tile::shared_address(dynamic) % 128) % 128);
  constexpr int kBarriers = kTeams * Stage<N, kShared>::kStages;
  if (threadIdx.x < kBarriers) {
    tile::barrier_init(&m.full[0][0] + threadIdx.x, 32 + 1);
    tile::barrier_init(&m.empty[0][0] + threadIdx.x, 4);
    tile::barrier_visible();
  }
  tile::wait_for_previous();
  tile::release_next();
  const ExpertTileList list{m.before, p.row_blocks, 1, N};
  count_expert_tiles(p, list, m.before, m.scratch);
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp < kTeams) {
    fetch(p, list, m, uniform(warp));
  } else {
    multiply(p, list, m, uniform(warp / 4 - 1), uniform(warp % 4));
  }
}

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kE2M1, "dequantised in registers");
  r.need(p.experts <= kExpertsMost,
         "experts <= " + std::to_string(kExpertsMost) + " (a word of shared memory each)", "experts",
         p.experts);
  return r;
}

// Units go round the teams of all SMs. Fitted to gpt-oss-20b, gpt-oss-120b and DeepSeek V4 Flash at 1 to 64 tokens on an H200.
double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kStartUs = 3.5, kUnitUs = 2.2, kBlockUs = 0.266, kColumnsMost = 16;
  const ExpertLoad load = expert_load(p);
  const double row_blocks = std::ceil(static_cast<double>(ExpertGemm::weight_rows(p)) / 64);
  const double blocks = std::ceil(static_cast<double>(p.width) / 64);
  const double units = load.active * column_tiles(load.rows_each, 8, kColumnsMost).tiles * row_blocks;
  return kStartUs + std::ceil(units / (kTeams * d.cores)) * (kUnitUs + kBlockUs * blocks);
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

template <int N, bool kGated, bool kShared>
Status enqueue_stream(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Stream stream) {
  static_assert(128 + sizeof(Memory<N, kGated, kShared>) + kExpertsMost * sizeof(int32_t) <= kSharedMost);
  int sms = 0;
  SLUICE_TRY(check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, queue_of(stream).device),
                   "counting SMs"));
  const Launch how{.grid = {static_cast<unsigned>(sms), 1, 1},
                   .block = {kThreads, 1, 1},
                   .shared_bytes = 128 + sizeof(Memory<N, kGated, kShared>) +
                                   static_cast<size_t>(p.experts) * sizeof(int32_t)};
  return launch(expert_gemm_mxfp4_stream_sm90.name, expert_stream<N, kGated, kShared>, how, stream,
                expert_parameters(p, a));
}
template <int N>
Status enqueue_stream(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Stream stream) {
  const bool gated = is_gated(p.act);
  if (fragment_shape(p.features, gated, p.width).row_blocks <= kFewBlocks)
    return gated ? enqueue_stream<N, true, true>(p, a, stream) : enqueue_stream<N, false, true>(p, a, stream);
  return gated ? enqueue_stream<N, true, false>(p, a, stream) : enqueue_stream<N, false, false>(p, a, stream);
}

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  constexpr double kFew = 5;  // rows of an expert on average, with hardly one that has more than 8
  const double rows = std::min<double>(expert_load(p).rows_each, static_cast<double>(p.rows));
  return rows <= kFew ? enqueue_stream<8>(p, a, stream) : enqueue_stream<16>(p, a, stream);
}

}  // namespace

}  // namespace sluice::cuda
