// Expert GEMM for few rows an expert, mxfp4 weights: a unit of work is one row block of one expert's weights, 64 rows and the
// whole sum, so that many SMs have a share of few experts and no sum crosses an SM.
//
// A block has four teams, each of four warps that multiply, 16 rows each, and one that fetches for them: codes and scales of
// four k blocks in one bulk copy each, rows of x 16 bytes a lane. A team has its own ring and goes its own way from unit to
// unit, as its fetching warp tells it. Units that are left over at the end, at most one an SM, the teams of an SM share, a
// part of the sum each, and add up through shared memory in order. They use mma.sync: for so few columns it is as fast as
// wgmma, and no warp waits for another.
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
#include "backends/cuda/tile/mxfp4.cuh"
#include "backends/cuda/tile/swizzle.cuh"

namespace sluice::cuda {
namespace {

constexpr int kTeams = 4, kThreads = kTeams * (4 + 1) * 32;
constexpr int kParts = kTeams;      // of a sum, cut in the same places whoever adds them up
constexpr int kPartSteps = 4;       // k blocks that no cut divides
constexpr int kSharedRounds = 1;    // units that the teams of an SM share, at most, at the end of a grid
constexpr int kExpertsMost = 1024;  // 32 for a lane
constexpr int kSharedMost = 227 << 10;
constexpr int kScaleBytes = static_cast<int>(kFragmentScaleBytes),
              kCodeBytes = static_cast<int>(kFragmentCodeBytes);

template <int N>
struct Stage {
  static constexpr int kSteps = N == 8 ? 4 : 2;                // k blocks
  static constexpr int kXBytes = N * tile::kSwizzledRowBytes;  // of one step
  static constexpr int kCodes = kSteps * kXBytes, kScales = kCodes + kSteps * kCodeBytes;
  static constexpr int kUnit = kScales + kSteps * kScaleBytes;  // in the first stage of a unit
  static constexpr int kBytes = kUnit + 128;
  static constexpr int kRingBytes = (N == 8 ? 51 : 44) << 10;  // of a team, beside what else there is
  static constexpr int kStages = kRingBytes / kBytes;
  static_assert(kPartSteps % kSteps == 0 && kBytes % 128 == 0);
};

template <int N>
struct alignas(128) Memory {
  using S = Stage<N>;
  uint8_t stage[kTeams][S::kStages][S::kBytes];
  float sums[2][kTeams][N / 2][128];  // of units that teams share, in turn
  uint64_t full[kTeams][S::kStages], empty[kTeams][S::kStages];
};

// What a team does next, as its fetching warp tells the others. rows = 0: nothing.
struct alignas(16) Unit {
  int expert, block, row;  // row: of y
  int rows_shared;         // 2 * rows, + 1 if this team has one part of the sum only, its own
};

// k blocks of a part of the sums; the last parts may have fewer, or none.
__device__ __forceinline__ int part_steps(const ExpertParameters& p) {
  return ceil_div(p.k_blocks, kParts * kPartSteps) * kPartSteps;
}

// The units of all experts, one expert behind the other, counted by one warp: a lane has `each` experts.
template <int N>
struct UnitList {
  int each, lane_before, all;  // lane_before: units of the experts in front of this lane's

  __device__ __forceinline__ static int units_of(const ExpertParameters& p, int rows) {
    return ceil_div(rows, N) * p.row_blocks;
  }
  // The sum of `mine` of this lane and of those before it.
  __device__ __forceinline__ static int up_to_lane(int mine) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int far = 1; far < 32; far *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, mine, far);
      mine += lane >= far ? other : 0;
    }
    return mine;
  }

  __device__ __forceinline__ explicit UnitList(const ExpertParameters& p) : each(ceil_div(p.experts, 32)) {
    constexpr int kAtOnce = 8;
    const int first = static_cast<int>(threadIdx.x % 32) * each, end = min(first + each, p.experts);
    int mine = 0;
#pragma unroll 1
    for (int e = first; e < first + each; e += kAtOnce) {
      int rows[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) rows[i] = e + i < end ? p.row_count[e + i] : 0;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) mine += units_of(p, rows[i]);
    }
    const int up_to = up_to_lane(mine);
    lane_before = up_to - mine;
    all = __shfl_sync(0xffffffffu, up_to, 31);
  }

  struct Found {
    int expert, rows, within;  // rows: of the expert; within: which of its units
  };
  // Unit `index` < all.
  __device__ __forceinline__ Found find(const ExpertParameters& p, int index) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int owner = 31 - __clz(static_cast<int>(__ballot_sync(0xffffffffu, lane_before <= index)));
    const int rest = index - __shfl_sync(0xffffffffu, lane_before, owner), e = owner * each + lane;
    const int rows = lane < each && e < p.experts ? p.row_count[e] : 0;
    const int units = units_of(p, rows), before = up_to_lane(units) - units;
    const int which = 31 - __clz(static_cast<int>(__ballot_sync(0xffffffffu, before <= rest && units > 0)));
    return {uniform(owner * each + which), uniform(__shfl_sync(0xffffffffu, rows, which)),
            uniform(rest - __shfl_sync(0xffffffffu, before, which))};
  }
};

// One warp fetches for its team.
template <int N>
struct Fetch {
  using S = Stage<N>;
  const ExpertParameters& p;
  Memory<N>& m;
  const int team;
  const uint32_t ring;
  RowFetch<N, 1> rows;
  tile::RingPlace place;

  __device__ __forceinline__ Fetch(const ExpertParameters& parameters, Memory<N>& memory, int its_team)
      : p(parameters),
        m(memory),
        team(its_team),
        ring(tile::shared_address(memory.stage[its_team])),
        rows(static_cast<int>(threadIdx.x % 32)) {}

  __device__ __forceinline__ void tell(uint32_t stage, const Unit& unit) const {
    if (threadIdx.x % 32 == 0)
      tile::store_shared(
          stage + S::kUnit,
          make_uint4(static_cast<uint32_t>(unit.expert), static_cast<uint32_t>(unit.block),
                     static_cast<uint32_t>(unit.row), static_cast<uint32_t>(unit.rows_shared)));
    __syncwarp();
  }
  __device__ __forceinline__ void unit(const typename UnitList<N>::Found& found, bool shared) {
    int chunk = 0, chunks = 1, first_block = found.within;
    if (found.rows > N) {
      chunks = ceil_div(found.rows, N), chunk = found.within % chunks;
      first_block = uniform(found.within / chunks);
    }
    int k = shared ? team * part_steps(p) : 0;
    const int k_end = shared ? min(k + part_steps(p), p.k_blocks) : p.k_blocks;
    const int64_t block = static_cast<int64_t>(first_block) * p.k_blocks + k;
    const uint8_t* codes = p.w + found.expert * p.w_bytes + block * kCodeBytes;
    const uint8_t* scales = p.w_scale + found.expert * p.scale_bytes + block * kScaleBytes;
    bool begins = true;
#pragma unroll 1
    for (; k < k_end; k += S::kSteps) {
      const int steps = min(S::kSteps, p.k_blocks - k);
      tile::barrier_wait_by_warp(&m.empty[team][place.stage], place.parity ^ 1);
      const uint32_t stage = ring + place.stage * S::kBytes;
      uint64_t* full = &m.full[team][place.stage];
      // Bytes may come before they are announced.
      tile::copy_bulk(stage + S::kCodes, codes, static_cast<uint32_t>(steps * kCodeBytes),
                      tile::shared_address(full));
      tile::copy_bulk(stage + S::kScales, scales, static_cast<uint32_t>(steps * kScaleBytes),
                      tile::shared_address(full));
      codes += S::kSteps * kCodeBytes, scales += S::kSteps * kScaleBytes;
      asm volatile("" : "+l"(codes), "+l"(scales));  // else both are worked out again from the start
      if (begins) {  // where its rows are is looked up behind the first copies of its weights
        begins = false;
        const int each = (ceil_div(found.rows, chunks) + 7) & ~7, first = chunk * each;
        const ExpertTile t{found.expert, first_block, __ldg(p.row_begin + found.expert) + first,
                           uniform(min(each, found.rows - first))};
        rows.begin(p, t);
        tell(stage, {t.expert, t.first_block, t.row, 2 * t.rows + shared});
      }
      tile::barrier_expect_by_warp(full, static_cast<uint32_t>(steps * (kCodeBytes + kScaleBytes)));
      rows.template copy<S::kSteps>(p, stage, k);
      arrive_with_x(p, full);
      __syncwarp();
      place.step(S::kStages);
    }
  }
  __device__ __forceinline__ void no_more() {
    tile::barrier_wait_by_warp(&m.empty[team][place.stage], place.parity ^ 1);
    tell(ring + place.stage * S::kBytes, {});
    uint64_t* full = &m.full[team][place.stage];
    tile::barrier_expect_by_warp(full, 0);
    tile::barrier_arrive(full);
  }
  // As many units as there are teams at a time, one each; the teams of an SM share what is left over where it is little.
  __device__ __forceinline__ void all_units() {
    const UnitList<N> list(p);
    const int sms = static_cast<int>(gridDim.x), over = list.all % (kTeams * sms);
    const bool may_share = over <= kSharedRounds * sms && p.k_blocks > (kParts - 1) * part_steps(p);
    const int alone = may_share ? list.all - over : list.all;
    int index = static_cast<int>(blockIdx.x) + team * sms;
    bool shared = false;
#pragma unroll 1
    while (true) {
      if (!shared && index >= alone) shared = true, index = alone + static_cast<int>(blockIdx.x);
      if (index >= list.all) break;
      unit(list.find(p, index), shared);
      index += shared ? sms : kTeams * sms;
    }
    no_more();
  }
};

// What a lane reads for 16 rows of weights (a slab) x one k block x N rows of x.
template <int N>
struct Operands {
  uint4 code;
  uint32_t scale, b[N / 8][2][4];

  __device__ __forceinline__ void load(uint32_t codes, uint32_t scales, const uint32_t (&x)[2]) {
    code = tile::load_shared(codes);
    scale = tile::load_shared_word(scales);
#pragma unroll
    for (uint32_t n = 0; n < N / 8; ++n)
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) tile::load_matrices(b[n][half], x[half] + n * 1024);
  }
  // Products of even and odd j are added up apart, so that they need not wait for each other.
  __device__ __forceinline__ void multiply(float (&d)[2][N / 8][4]) const {
    const __nv_bfloat162 scales[2] = {tile::scale_pair<0>(scale), tile::scale_pair<1>(scale)};
    const uint32_t words[4] = {code.x, code.y, code.z, code.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t a[4];
      tile::decode_fragment(a, words[j], scales[j / 2]);
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
        const uint32_t column[2] = {b[n][j / 2][j % 2 * 2], b[n][j / 2][j % 2 * 2 + 1]};
        tile::mma(d[j % 2][n], a, column);
      }
    }
  }
};

// Where a lane's operands are in stage 0 of its team.
struct OperandsAt {
  uint32_t codes, scales, x[2];
};
// kCount steps of a stage that lies `stage` bytes on: the next one's operands are on their way while one is multiplied.
template <int N, int kCount>
__device__ __forceinline__ void multiply_steps(float (&d)[2][N / 8][4], const OperandsAt& at,
                                               uint32_t stage) {
  using S = Stage<N>;
  Operands<N> of[2];
  const auto load = [&](int i) {
    const uint32_t x[2] = {at.x[0] + stage + i * S::kXBytes, at.x[1] + stage + i * S::kXBytes};
    of[i % 2].load(at.codes + stage + i * kCodeBytes, at.scales + stage + i * kScaleBytes, x);
  };
  load(0);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i + 1 < kCount) load(i + 1);
    of[i % 2].multiply(d);
  }
}

// The two rows of a lane's sums (mma.cuh): a gate and its up, or two features. What their sums need besides is asked for when
// a unit begins and looked at when it ends.
template <bool kGated>
struct LaneRows {
  int feature[2];
  uint32_t top[2], bias[2];

  __device__ __forceinline__ void ask(const ExpertParameters& p, const Unit& unit, int slab) {
    const int row = slab * 16 + static_cast<int>(threadIdx.x % 32) / 4;
    const uint8_t* tops = p.w_scale + unit.expert * p.scale_bytes + p.top_begin + unit.block * kFragmentRows;
    const int64_t rows = static_cast<int64_t>(unit.expert) * (kGated ? 2 * p.features : p.features);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      feature[i] = static_cast<int>(fragment_feature(kGated, {unit.block, row + 8 * i}).feature);
      top[i] = __ldg(tops + row + 8 * i);
      bias[i] = 0;
      if (!p.bias || feature[i] >= p.features) continue;
      const int64_t at =
          rows + (kGated ? gated_row(p.gate_order, p.features, feature[i], i == 1) : feature[i]);
      bias[i] = p.bias_f32 ? __ldg(static_cast<const uint32_t*>(p.bias) + at)
                           : __ldg(static_cast<const uint16_t*>(p.bias) + at);
    }
  }
  __device__ __forceinline__ float result(const ExpertParameters& p, int i, float sum, float in) const {
    return fmaf(sum * tile::row_factor(top[i]), in, __uint_as_float(p.bias_f32 ? bias[i] : bias[i] << 16));
  }
  template <int N>
  __device__ __forceinline__ void write(const ExpertParameters& p, const Unit& unit,
                                        const float (&sum)[N / 2]) const {
    constexpr int kColumns = N / 4;
    const int first = static_cast<int>(threadIdx.x % 4) * 2, rows = unit.rows_shared / 2;
    const auto column = [&](int c) { return c / 2 * 8 + first + c % 2; };
    float y[2][kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float in = p.weights && column(c) < rows ? p.weights[p.order[unit.row + column(c)]] : 1.f;
#pragma unroll
      for (int i = 0; i < 2; ++i) y[i][c] = result(p, i, sum[c / 2 * 4 + i * 2 + c % 2], in);
    }
    const tile::ActivationValues act = activation_of(p, unit.expert);
    if constexpr (kGated) {
      tile::activate_gated(act, y[0], y[1]);
    } else {
      tile::activate_plain(act, y[0]);
      tile::activate_plain(act, y[1]);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (column(c) >= rows) continue;
      const int64_t at = (unit.row + column(c)) * p.y_stride;
#pragma unroll
      for (int i = 0; i < (kGated ? 1 : 2); ++i) {
        if (feature[i] >= p.features) continue;
        if (p.y_f32) {
          static_cast<float*>(p.y)[at + feature[i]] = y[i][c];
        } else {
          static_cast<__nv_bfloat16*>(p.y)[at + feature[i]] = __float2bfloat16_rn(y[i][c]);
        }
      }
    }
  }
};

// A warp has one of the four slabs of a row block.
template <int N, bool kGated>
__device__ __forceinline__ void multiply(const ExpertParameters& p, Memory<N>& m, int team, int slab) {
  using S = Stage<N>;
  const uint32_t lane = threadIdx.x % 32, ring = tile::shared_address(m.stage[team]);
  const OperandsAt at = {
      ring + S::kCodes + (slab * 32 + lane) * 16,
      ring + S::kScales + (slab * 8 + lane / 4) * 4,
      {ring + tile::swizzled(lane % 8, lane / 8 * 16), ring + tile::swizzled(lane % 8, lane / 8 * 16 + 64)}};
  tile::RingPlace place;
  int turn = 0;  // the team that finishes the next unit that all share
#pragma unroll 1
  while (true) {
    tile::barrier_wait_by_warp(&m.full[team][place.stage], place.parity);
    const uint4 told = tile::load_shared(ring + place.stage * S::kBytes + S::kUnit);
    const Unit unit = {static_cast<int>(told.x), static_cast<int>(told.y), static_cast<int>(told.z),
                       uniform(static_cast<int>(told.w))};
    if (unit.rows_shared == 0) break;
    const bool shared = unit.rows_shared % 2 != 0, finishes = !shared || team == turn;
    LaneRows<kGated> finish;
    if (finishes) finish.ask(p, unit, slab);
    float sum[N / 2] = {};
    int k = shared ? team * part_steps(p) : 0;
#pragma unroll 1
    do {
      float d[2][N / 8][4] = {};
      const int k_end = min(k + part_steps(p), p.k_blocks);
#pragma unroll 1
      for (; k + S::kSteps <= k_end; k += S::kSteps) {
        tile::barrier_wait_by_warp(&m.full[team][place.stage], place.parity);
        multiply_steps<N, S::kSteps>(d, at, place.stage * S::kBytes);
        tile::arrive_by_warp(tile::shared_address(&m.empty[team][place.stage]));
        place.step(S::kStages);
      }
      if (k < k_end) {
        tile::barrier_wait_by_warp(&m.full[team][place.stage], place.parity);
#pragma unroll 1
        for (int i = 0; i < k_end - k; ++i) {
          const OperandsAt step = {at.codes + i * kCodeBytes,
                                   at.scales + i * kScaleBytes,
                                   {at.x[0] + i * S::kXBytes, at.x[1] + i * S::kXBytes}};
          multiply_steps<N, 1>(d, step, place.stage * S::kBytes);
        }
        tile::arrive_by_warp(tile::shared_address(&m.empty[team][place.stage]));
        place.step(S::kStages);
      }
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sum[i] += d[0][i / 4][i % 4] + d[1][i / 4][i % 4];
      k = k_end;
    } while (!shared && k < p.k_blocks);
    if (shared) {  // all parts, added up in order by one team, which finishes while the others go on
      float* sums = &m.sums[turn % 2][0][0][slab * 32 + lane];
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sums[(team * (N / 2) + i) * 128] = sum[i];
      tile::sync_threads<kTeams * 128>(1);
      turn = (turn + 1) % kTeams;
      if (!finishes) continue;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        sum[i] = 0;
#pragma unroll
        for (int part = 0; part < kParts; ++part) sum[i] += sums[(part * (N / 2) + i) * 128];
      }
    }
    finish.template write<N>(p, unit, sum);
  }
}

template <int N, bool kGated>
__global__ void __launch_bounds__(kThreads, 1) expert_stream(const __grid_constant__ ExpertParameters p) {
  extern __shared__ uint8_t dynamic[];
  auto& m = *reinterpret_cast<Memory<N>*>(dynamic + (128 - tile::shared_address(dynamic) % 128) % 128);
  const int warp = uniform(static_cast<int>(threadIdx.x / 32));
  if (warp < kTeams) {
#pragma unroll
    for (int s = 0; s < Stage<N>::kStages; ++s) {
      tile::barrier_init_by_warp(&m.full[warp][s], 32 + 1);
      tile::barrier_init_by_warp(&m.empty[warp][s], 4);
    }
    tile::barrier_visible();
  }
  __syncthreads();
  tile::wait_for_previous();
  tile::release_next();
  if (warp < kTeams) {
    Fetch<N>(p, m, warp).all_units();
  } else {
    multiply<N, kGated>(p, m, warp / 4 - 1, warp % 4);
  }
}

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kE2M1, "dequantised in registers");
  r.need(p.experts <= kExpertsMost,
         "experts <= " + std::to_string(kExpertsMost) + " (32 for each lane that counts)", "experts",
         p.experts);
  return r;
}

// Columns of a unit. With kFew rows of an expert on average hardly one has more than 8.
int columns_of(const ExpertGemm::Problem& p) {
  constexpr double kFew = 5;
  return std::min<double>(expert_load(p).rows_each, static_cast<double>(p.rows)) <= kFew ? 8 : 16;
}

// Weights pass each SM at a steady rate, and with 16 columns its instructions are what limits. Fitted to gpt-oss-20b,
// gpt-oss-120b and DeepSeek V4 Flash at 1 to 128 tokens on an H200, within 9%.
double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kStartUs = 5.5, kUnitUs = 0.1, kBlockUs[] = {0.065, 0.081};
  constexpr double kPadding = 0.45;  // units of an expert that its last rows do not fill, on average
  const ExpertLoad load = expert_load(p);
  const int columns = columns_of(p);
  const double row_blocks = std::ceil(static_cast<double>(ExpertGemm::weight_rows(p)) / 64);
  const double blocks = std::ceil(static_cast<double>(p.width) / 64);
  const double units = load.active * std::max(1., load.rows_each / columns + kPadding) * row_blocks;
  return kStartUs + std::max(1., units / d.cores) * (kUnitUs + kBlockUs[columns == 8 ? 0 : 1] * blocks);
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
  constexpr size_t kBytes = 128 + sizeof(Memory<N>);
  static_assert(kBytes <= kSharedMost);
  int sms = 0;
  SLUICE_TRY(check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, queue_of(stream).device),
                   "counting SMs"));
  const Launch how{
      .grid = {static_cast<unsigned>(sms), 1, 1}, .block = {kThreads, 1, 1}, .shared_bytes = kBytes};
  return launch(expert_gemm_mxfp4_stream_sm90.name, expert_stream<N, kGated>, how, stream,
                expert_parameters(p, a));
}
template <int N>
Status enqueue_stream(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Stream stream) {
  return is_gated(p.act) ? enqueue_stream<N, true>(p, a, stream) : enqueue_stream<N, false>(p, a, stream);
}

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  return columns_of(p) == 8 ? enqueue_stream<8>(p, a, stream) : enqueue_stream<16>(p, a, stream);
}

}  // namespace

}  // namespace sluice::cuda
