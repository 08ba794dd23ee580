// Shared code of the kernels for few rows per expert (expert_gemm_mxfp4_stream_sm90,
// fused_fewtokens.cuh). A unit of work is one row block (64 rows) of one expert's weights, over all of k.
//
// A CTA has teams: one producer warp and four consumer warps of 16 weight rows each. For a few k blocks at a time, the
// producer warp loads the codes with one bulk copy, the scales with another, and rows of x with 16 bytes per lane. Every team
// has its own ring and its own sequence of units, which its producer warp writes into the ring for its consumer warps. The
// teams of a CTA may share a unit: each computes a part of the sum, and they add the parts through shared memory in a fixed
// order. Consumer warps use mma.sync, which for so few columns is as fast as wgmma, and with which no warp waits for another.
//
// The weight format is a type (stream_weights.cuh). A kernel's Work describes the products:
//   parameters(product), gated(product)   one product or several, which are computed one after the other
//   x_row(product, row), order(row)       for a row of the list sorted by expert: its row of x; its slot
//   y_row(unit, row)                      and its row of y
//   wait_for_x(product)                   waits until the rows of x are written; a producer warp calls it once per product
//   end(product)                          a consumer warp calls it when it has written its last y
//   kCuts, split_steps(product)           whether teams of different CTAs may compute splits of a unit; k blocks per split
//   publish_partial(unit, slab, split,    if the team does not have split 0 of a partial unit: sends the partial sum of one
//                   sum)                  split to the team that has it
//   has_partials(unit), kLoadsEarly,      if the team has split 0: whether other teams have later splits. Their partial sums
//   Partials, load_partials(unit, slab),  may be loaded before the team's own last split, and are added in order of splits
//   add_partials(..., sum)
#pragma once
#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/experts/stream/stream_weights.cuh"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/bulk_copy.cuh"
#include "backends/cuda/tile/l2_policy.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/ring.cuh"
#include "backends/cuda/tile/swizzle.cuh"

namespace sluice::cuda {

constexpr int kTeamWarps = 4 + 1;
constexpr int kTeamLanes = 4 * 32;  // consumer lanes; each lane arrives at the empty barriers itself

template <int N, class Weights>
struct Stage {
  static constexpr int kSteps = Weights::steps(N);             // k blocks per stage
  static constexpr int kXBytes = N * tile::kSwizzledRowBytes;  // per step
  static constexpr int kCodes = kSteps * kXBytes, kScales = kCodes + kSteps * Weights::kCodeBytes;
  // Offset of the StreamUnit, which is written to the first stage of every unit.
  static constexpr int kUnit = kScales + kSteps * Weights::kScaleBytes;
  static constexpr int kBytes = (kUnit + 128 + 127) / 128 * 128;
  static constexpr int kStages = Weights::ring_bytes(N) / kBytes;
  static_assert(kSplitSteps % kSteps == 0 && kUnit % 16 == 0);
};

template <int N, int kTeams, class Weights = Mxfp4Weights>
struct alignas(128) StreamMemory {
  using S = Stage<N, Weights>;
  uint8_t stage[kTeams][S::kStages][S::kBytes];
  // Partial sums of units that teams share, from all teams but the last. Double-buffered.
  float sums[2][kTeams - 1][N / 2][128];
  uint64_t full[kTeams][S::kStages], empty[kTeams][S::kStages];

  // One base address for both arrays takes one register. stream_multiply() indexes the arrays
  // instead: with addresses from ring() it needs 79 registers instead of 72 for N = 8.
  __device__ __forceinline__ tile::Ring ring(int team) const {
    const uint32_t first = tile::shared_address(full[team]);
    return {first, first + static_cast<uint32_t>(sizeof full)};
  }
  // Called by the first kTeams warps of a CTA, before __syncthreads().
  __device__ __forceinline__ void init(int warp) {
#pragma unroll
    for (int s = 0; s < S::kStages; ++s) ring(warp).init_by_warp(s, 32 + 1, kTeamLanes);
    tile::barrier_visible();
  }
};

// A unit of a team, as its producer warp passes it to the consumer warps.
struct alignas(16) StreamUnit {
  int expert, block, row;  // row: the unit's first row in the list sorted by expert
  int what;                // rows, and the flags below; 0: no more units

  static constexpr int kShared = 1;  // all teams of the CTA compute this unit, a part of the sum each
  static constexpr int kEnds = 2;    // the team's last unit of this product
  static constexpr int kSecond = 4;  // the unit belongs to the second product
  static constexpr int kRow = 8, kRowsMax = 64;
  // For a partial unit: the team computes splits `first` to `end` - 1 of the sum.
  static constexpr int kPartial = kRow * kRowsMax, kFirst = 2 * kPartial, kEnd = 16 * kFirst;

  __device__ __forceinline__ int rows() const { return what / kRow % kRowsMax; }
  __device__ __forceinline__ int product() const { return what / kSecond % 2; }
  __device__ __forceinline__ int first() const { return what / kFirst % 16; }
  __device__ __forceinline__ int end() const { return what / kEnd; }
};

// The k blocks of a unit that a team sums up.
struct Range {
  int begin, end;
};

// k blocks per split. If k is small, the last splits may have fewer k blocks, or none.
__device__ __forceinline__ int split_steps(const ExpertParameters& p) {
  return ceil_div(p.k_blocks, kSplits * kSplitSteps) * kSplitSteps;
}
// True if no split is empty.
__device__ __forceinline__ bool may_share(const ExpertParameters& p) {
  return p.k_blocks > (kSplits - 1) * split_steps(p);
}

template <int kTeams, class Work>
__device__ __forceinline__ Range range_of(const Work& work, const ExpertParameters& p, int what, int team) {
  const StreamUnit unit{0, 0, 0, what};
  const int steps = work.split_steps(unit.product());
  int first = 0, end = kSplits;
  if (what & StreamUnit::kShared) first = team * (kSplits / kTeams), end = first + kSplits / kTeams;
  if (Work::kCuts && what & StreamUnit::kPartial) first = unit.first(), end = unit.end();
  return {first * steps, min(end * steps, p.k_blocks)};
}

// A team's producer warp.
template <int N, int kTeams, class Work, class Weights = Mxfp4Weights>
struct StreamFetch {
  using S = Stage<N, Weights>;
  const Work& work;
  StreamMemory<N, kTeams, Weights>& m;
  const int team;
  const uint32_t ring;
  RowFetch<N, 1> rows;
  tile::RingPlace place;
  int ahead = 0;  // stages of the current unit whose weight copies are already issued

  __device__ __forceinline__ StreamFetch(const Work& its_work, StreamMemory<N, kTeams, Weights>& memory,
                                         int its_team)
      : work(its_work),
        m(memory),
        team(its_team),
        ring(tile::shared_address(memory.stage[its_team])),
        rows(static_cast<int>(threadIdx.x % 32)) {}

  __device__ __forceinline__ void publish(uint32_t stage, const StreamUnit& unit) const {
    if (threadIdx.x % 32 == 0)
      tile::store_shared(stage + S::kUnit,
                         make_uint4(static_cast<uint32_t>(unit.expert), static_cast<uint32_t>(unit.block),
                                    static_cast<uint32_t>(unit.row), static_cast<uint32_t>(unit.what)));
    __syncwarp();
  }
  // Issues the weight copies of a stage. Bytes may arrive before expect_by_warp() announces them to the barrier.
  __device__ __forceinline__ void issue(uint32_t stage, const uint8_t* codes, const uint8_t* scales,
                                        int steps) const {
    const uint32_t at = ring + stage * S::kBytes, full = m.ring(team).full_of(stage);
    tile::copy_bulk_by(tile::read_once(), at + S::kCodes, codes,
                       static_cast<uint32_t>(steps * Weights::kCodeBytes), full);
    if constexpr (Weights::kScaleBytes > 0)
      tile::copy_bulk_by(tile::read_once(), at + S::kScales, scales,
                         static_cast<uint32_t>(steps * Weights::kScaleBytes), full);
  }
  // Loads unit `within` of `expert`, whose `all_rows` rows begin at row `begin` of the sorted list.
  __device__ __forceinline__ void unit(int expert, int all_rows, int begin, int within, int what,
                                       bool early) {
    int chunk = 0, chunks = 1, block = within;
    if (all_rows > N) {
      chunks = ceil_div(all_rows, N), chunk = within % chunks;
      block = uniform(within / chunks);
    }
    unit(expert, block, what, early, [&] {
      const int each = (ceil_div(all_rows, chunks) + 7) & ~7, first = chunk * each;
      return Rows{begin + first, uniform(min(each, all_rows - first))};
    });
  }
  struct Rows {
    int first, count;  // rows of the list
  };
  // Loads the unit of row block `first_block`. rows_of() returns the unit's rows; it is called once
  // the first weight copies are issued. early: x may not be written yet, so the warp first fills the
  // ring with weight copies, then waits for x. what: as in StreamUnit, without the number of rows.
  template <class RowsOf>
  __device__ __forceinline__ void unit(int expert, int first_block, int what, bool early, RowsOf rows_of) {
    const int product = what / StreamUnit::kSecond % 2;
    const ExpertParameters& p = work.parameters(product);
    const Range range = range_of<kTeams>(work, p, what, team);
    const int k_end = range.end;
    int k = range.begin;
    const int64_t block = static_cast<int64_t>(first_block) * p.k_blocks + k;
    const uint8_t* codes = p.w + expert * p.w_bytes + block * Weights::kCodeBytes;
    const uint8_t* scales = Weights::kScaleBytes > 0
                                ? p.w_scale + expert * p.scale_bytes + block * Weights::kScaleBytes
                                : nullptr;
    if (early) {
      tile::RingPlace next = place;
#pragma unroll 1
      for (; ahead < S::kStages && k + ahead * S::kSteps < k_end; ++ahead) {
        m.ring(team).acquire_by_warp(next);
        issue(next.stage, codes, scales, min(S::kSteps, k_end - k - ahead * S::kSteps));
        codes += S::kSteps * Weights::kCodeBytes, scales += S::kSteps * Weights::kScaleBytes;
        next.step(S::kStages);
      }
    }
    const auto begin_rows = [&] {
      const auto [row, count] = rows_of();
      rows.begin(p, count, [&, first = row](int i) { return work.x_row(product, first + i); });
      publish(ring + place.stage * S::kBytes, {expert, first_block, row, StreamUnit::kRow * count + what});
    };
    if (early) begin_rows(), work.wait_for_x(product);
    bool begins = !early;
#pragma unroll 1
    for (; k < k_end; k += S::kSteps) {
      const int steps = min(S::kSteps, p.k_blocks - k);
      m.ring(team).acquire_by_warp(place);
      const uint32_t stage = ring + place.stage * S::kBytes;
      if (ahead > 0) {
        --ahead;
      } else {
        issue(place.stage, codes, scales, steps);
        codes += S::kSteps * Weights::kCodeBytes, scales += S::kSteps * Weights::kScaleBytes;
        // otherwise the compiler recomputes both from k in every step
        asm volatile("" : "+l"(codes), "+l"(scales));
      }
      if (begins) begins = false, begin_rows();
      const uint32_t full = m.ring(team).expect_by_warp(
          place.stage, static_cast<uint32_t>(steps * (Weights::kCodeBytes + Weights::kScaleBytes)));
      rows.template copy<S::kSteps>(p, stage, k);
      arrive_with_x(p, full);
      __syncwarp();
      place.step(S::kStages);
    }
  }
  __device__ __forceinline__ void no_more() {
    m.ring(team).acquire_by_warp(place);
    publish(ring + place.stage * S::kBytes, {});
    tile::barrier_arrive(m.ring(team).expect_by_warp(place.stage, 0));
  }
};

// Addresses of a lane's operands in stage 0 of its team's ring.
struct OperandsAt {
  uint32_t codes, scales, x[2];
};
// Multiplies kCount k blocks of the stage at byte offset `stage`. Loads of a k block's operands overlap the products of the previous one.
template <int N, class Weights, int kCount>
__device__ __forceinline__ void multiply_steps(float (&d)[2][N / 8][4], typename Weights::Unit& unit,
                                               const OperandsAt& at, uint32_t stage) {
  using S = Stage<N, Weights>;
  typename Weights::template Operands<N> of[2];
  const auto load = [&](int i) {
    const uint32_t x[2] = {at.x[0] + stage + i * S::kXBytes, at.x[1] + stage + i * S::kXBytes};
    of[i % 2].load(at.codes + stage + i * Weights::kCodeBytes, at.scales + stage + i * Weights::kScaleBytes,
                   x);
  };
  load(0);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i + 1 < kCount) load(i + 1);
    of[i % 2].multiply(d, unit);
  }
}

// Always true, but known only once the operands of `sum` have been loaded. It is the
// predicate of the arrival that releases their stage. ptxas may move an arrival
// above operand loads (ldmatrix) if no earlier instruction needs their result.
// Without this predicate, a copy that hit L2 overwrote the stage before it was read.
__device__ __forceinline__ uint32_t has_loaded(float sum) {
  constexpr uint32_t kNever = 0x7fc12345u;  // a NaN that no sum can be: mma gives 0x7fffffff
  return __float_as_uint(sum) != kNever;
}
// has_loaded() for the sums of whole k blocks. With mxfp4 weights it is enough to check the last products:
// they need all operands but some codes, and their own codes are decoded after those have been loaded.
template <class Weights, int N>
__device__ __forceinline__ uint32_t have_loaded(const float (&d)[2][N][4]) {
  uint32_t loaded = 1;
#pragma unroll
  for (int n = 0; n < N; ++n) loaded &= has_loaded(d[1][n][0]) & (Weights::kScaled || has_loaded(d[0][n][0]));
  return loaded;
}

// The two weight rows of a lane's sums (mma.cuh): gate and up of a feature, or two features.
// Their factors and biases are loaded at the start of a unit and applied in its epilogue.
struct LaneRows {
  int feature[2];
  uint32_t top[2], bias[2];

  template <class Weights>
  __device__ __forceinline__ void load(const ExpertParameters& p, bool gated, const StreamUnit& unit,
                                       int slab) {
    const int row = slab * 16 + static_cast<int>(threadIdx.x % 32) / 4;
    const uint8_t* tops = p.w_scale + unit.expert * p.scale_bytes + p.top_begin +
                          unit.block * kFragmentRows * (Weights::kHasFactors ? 4 : 1);
    const int64_t rows = static_cast<int64_t>(unit.expert) * (gated ? 2 * p.features : p.features);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      feature[i] = static_cast<int>(fragment_feature(gated, {unit.block, row + 8 * i}).feature);
      top[i] = 0;
      if constexpr (Weights::kHasFactors) {
        top[i] = __ldg(reinterpret_cast<const uint32_t*>(tops) + row + 8 * i);
      } else if constexpr (Weights::kScaled) {
        top[i] = __ldg(tops + row + 8 * i);
      }
      bias[i] = 0;
      if (!p.bias || feature[i] >= p.features) continue;
      const int64_t at =
          rows + (gated ? gated_row(p.gate_order, p.features, feature[i], i == 1) : feature[i]);
      bias[i] = p.bias_f32 ? __ldg(static_cast<const uint32_t*>(p.bias) + at)
                           : __ldg(static_cast<const uint16_t*>(p.bias) + at);
    }
  }
  template <class Weights>
  __device__ __forceinline__ float result(const ExpertParameters& p, int i, float sum, float in) const {
    if constexpr (Weights::kScaled) sum *= Weights::factor(top[i], 0);
    return fmaf(sum, in, __uint_as_float(p.bias_f32 ? bias[i] : bias[i] << 16));
  }
  template <int N, class Weights, class Work>
  __device__ __forceinline__ void write(const Work& work, int product, const StreamUnit& unit,
                                        const float (&sum)[N / 2]) const {
    constexpr int kColumns = N / 4;
    const ExpertParameters& p = work.parameters(product);
    const bool gated = work.gated(product);
    const int first = static_cast<int>(threadIdx.x % 4) * 2, rows = unit.rows();
    const auto column = [&](int c) { return c / 2 * 8 + first + c % 2; };
    float y[2][kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float in = p.weights && column(c) < rows ? p.weights[work.order(unit.row + column(c))] : 1.f;
#pragma unroll
      for (int i = 0; i < 2; ++i) y[i][c] = result<Weights>(p, i, sum[c / 2 * 4 + i * 2 + c % 2], in);
    }
    const tile::ActivationValues act = activation_of(p, unit.expert);
    if (gated) {
      tile::activate_gated(act, y[0], y[1]);
    } else {
      tile::activate_plain(act, y[0]);
      tile::activate_plain(act, y[1]);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (column(c) >= rows) continue;
      const int64_t at = work.y_row(unit, unit.row + column(c)) * p.y_stride;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (feature[i] >= p.features || (gated && i == 1)) continue;
        if (p.y_f32) {
          static_cast<float*>(p.y)[at + feature[i]] = y[i][c];
        } else {
          static_cast<__nv_bfloat16*>(p.y)[at + feature[i]] = __float2bfloat16_rn(y[i][c]);
        }
      }
    }
  }
};

// Adds the products of k blocks `k` to `k_end` - 1 to d, and releases their stages.
template <int N, int kTeams, class Weights>
__device__ __forceinline__ void multiply_stages(float (&d)[2][N / 8][4], typename Weights::Unit& unit,
                                                const OperandsAt& at, StreamMemory<N, kTeams, Weights>& m,
                                                int team, tile::RingPlace& place, int& k, int k_end) {
  using S = Stage<N, Weights>;
#pragma unroll 1
  for (; k + S::kSteps <= k_end; k += S::kSteps) {
    tile::barrier_wait_by_warp(&m.full[team][place.stage], place.parity);
    multiply_steps<N, Weights, S::kSteps>(d, unit, at, place.stage * S::kBytes);
    tile::arrive_by_lane(tile::shared_address(&m.empty[team][place.stage]), have_loaded<Weights>(d));
    place.step(S::kStages);
  }
  if (S::kSteps > 1 && k < k_end) {
    tile::barrier_wait_by_warp(&m.full[team][place.stage], place.parity);
#pragma unroll 1
    for (int i = 0; i < k_end - k; ++i) {
      const OperandsAt step = {at.codes + i * Weights::kCodeBytes,
                               at.scales + i * Weights::kScaleBytes,
                               {at.x[0] + i * S::kXBytes, at.x[1] + i * S::kXBytes}};
      multiply_steps<N, Weights, 1>(d, unit, step, place.stage * S::kBytes);
    }
    tile::arrive_by_lane(tile::shared_address(&m.empty[team][place.stage]), have_loaded<Weights>(d));
    place.step(S::kStages);
  }
}

// The loop of a consumer warp, which computes slab `slab` (0 to 3) of row blocks. Returns
// the place of the stage with the end-of-list unit; that stage is full and not yet released.
template <int N, int kTeams, class Work, class Weights>
__device__ __forceinline__ tile::RingPlace stream_multiply(const Work& work,
                                                           StreamMemory<N, kTeams, Weights>& m, int team,
                                                           int slab) {
  using S = Stage<N, Weights>;
  const uint32_t lane = threadIdx.x % 32, ring = tile::shared_address(m.stage[team]);
  const OperandsAt at = {
      ring + S::kCodes + Weights::codes_at(slab, lane),
      ring + S::kScales + Weights::scales_at(slab, lane),
      {ring + tile::swizzled(lane % 8, lane / 8 * 16), ring + tile::swizzled(lane % 8, lane / 8 * 16 + 64)}};
  tile::RingPlace place;
  int buffer = 0;  // which half of m.sums is used next
#pragma unroll 1
  while (true) {
    tile::barrier_wait_by_warp(&m.full[team][place.stage], place.parity);
    const uint4 unit_words = tile::load_shared(ring + place.stage * S::kBytes + S::kUnit);
    const StreamUnit unit = {static_cast<int>(unit_words.x), static_cast<int>(unit_words.y),
                             static_cast<int>(unit_words.z), uniform(static_cast<int>(unit_words.w))};
    if (unit.what == 0) break;
    const int product = unit.product();
    const ExpertParameters& p = work.parameters(product);
    const bool shared = unit.what & StreamUnit::kShared,
               partial = Work::kCuts && unit.what & StreamUnit::kPartial;
    const bool has_epilogue = partial ? unit.first() == 0 : !shared || team == kTeams - 1;
    const int steps = work.split_steps(product);
    LaneRows epilogue;
    if (has_epilogue) epilogue.template load<Weights>(p, work.gated(product), unit, slab);
    float sum[N / 2] = {}, last[N / 2] = {};  // sum of all splits but the last; sum of the last split
    const Range range = range_of<kTeams>(work, p, unit.what, team);
    int k = range.begin, split = unit.first();
    bool has_partials = false;
    [[maybe_unused]] typename Work::Partials partials;
    if constexpr (Work::kCuts) has_partials = partial && has_epilogue && work.has_partials(unit);
#pragma unroll 1
    do {
      float d[2][N / 8][4] = {};
      const int k_end = min(k + steps, range.end);
      if constexpr (Work::kLoadsEarly) {
        if (has_partials && k_end == range.end) partials = work.load_partials(unit, slab);
      }
      [[maybe_unused]] typename Weights::Unit in_unit;
      multiply_stages(d, in_unit, at, m, team, place, k, k_end);
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sum[i] += last[i], last[i] = d[0][i / 4][i % 4] + d[1][i / 4][i % 4];
      in_unit.apply(last);
      k = k_end;
      if constexpr (Work::kCuts) {
        if (partial && !has_epilogue) work.publish_partial(unit, slab, split++, last);
      }
    } while (k < range.end);
    if (shared) {
      float* sums = &m.sums[buffer][0][0][slab * 32 + lane];
      buffer ^= 1;
      // adding both halves is safe: with two teams the first adds its splits in order; with four, each has one split
      if (!has_epilogue) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) sums[(team * (N / 2) + i) * 128] = sum[i] + last[i];
      }
      tile::sync_threads<kTeams * 128>(1);
      if (has_epilogue) {
        float before[N / 2] = {};
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
#pragma unroll
          for (int t = 0; t < kTeams - 1; ++t) before[i] += sums[(t * (N / 2) + i) * 128];
          sum[i] += before[i];
        }
      }
    }
    if (has_epilogue) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sum[i] += last[i];
      if constexpr (Work::kCuts) {
        if (has_partials) work.add_partials(unit, slab, partials, sum);
      }
      epilogue.template write<N, Weights>(work, product, unit, sum);
    }
    if (unit.what & StreamUnit::kEnds) work.end(product);
  }
  return place;
}

}  // namespace sluice::cuda
