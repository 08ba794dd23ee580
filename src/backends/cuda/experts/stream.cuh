// What the kernels for few rows an expert share (expert_gemm_mxfp4_stream_sm90, expert_fewtokens.cuh): a unit of work is one
// row block of one expert's weights, 64 rows and the whole sum.
//
// A block has teams, each of four warps that multiply, 16 rows each, and one that fetches for them: codes and scales of
// a few k blocks in one bulk copy each, rows of x 16 bytes a lane. A team has its own ring and goes its own way from unit to
// unit, as its fetching warp tells it. Teams of a block may share a unit, a part of the sum each, which they add up through
// shared memory in order. They use mma.sync: for so few columns it is as fast as wgmma, and no warp waits for another.
//
// What weights are made of is a type, stream_weights.cuh. A kernel says by its Work what it multiplies:
//   parameters(product), gated(product)   of which there may be several, one behind the other
//   x_row(product, row), order(row)       of a row of the list that is sorted by expert: its row of x, and its slot
//   y_row(unit, row)                      and its row of y
//   wait_for_x(product)                   until the rows of x are there; a fetching warp calls it, once for each product
//   end(product)                          a warp that multiplies has written the last of its y
//   kPieces, part_steps(product)          whether a unit may be cut into pieces that teams of all blocks have, and the k blocks
//                                         of a part of its sum
//   give(unit, slab, part, sum)           of a piece that does not begin the sum: what a part of it sums up to
//   takes(unit), kAsksEarly, Taken,       of one that begins it: whether other teams have the parts behind; they may be asked
//   ask(unit, slab), take(..., sum)       for before the last part of its own, and are added up in order
#pragma once
#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/experts/stream_weights.cuh"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/bulk_copy.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/swizzle.cuh"

namespace sluice::cuda {

constexpr int kTeamWarps = 4 + 1;
constexpr int kTeamLanes = 4 * 32;  // of those that multiply, each of which gives stages back for itself

template <int N, class Weights>
struct Stage {
  static constexpr int kSteps = Weights::steps(N);             // k blocks
  static constexpr int kXBytes = N * tile::kSwizzledRowBytes;  // of one step
  static constexpr int kCodes = kSteps * kXBytes, kScales = kCodes + kSteps * Weights::kCodeBytes;
  static constexpr int kUnit = kScales + kSteps * Weights::kScaleBytes;  // in the first stage of a unit
  static constexpr int kBytes = kUnit + 128;
  static constexpr int kStages = Weights::ring_bytes(N) / kBytes;
  static_assert(kPartSteps % kSteps == 0 && kBytes % 128 == 0);
};

template <int N, int kTeams, class Weights = Mxfp4Weights>
struct alignas(128) StreamMemory {
  using S = Stage<N, Weights>;
  uint8_t stage[kTeams][S::kStages][S::kBytes];
  float sums[2][kTeams - 1][N / 2][128];  // of units that teams share, in turn: of all teams but the last
  uint64_t full[kTeams][S::kStages], empty[kTeams][S::kStages];

  // By the first kTeams warps of a block, before it meets.
  __device__ __forceinline__ void init(int warp) {
#pragma unroll
    for (int s = 0; s < S::kStages; ++s) {
      tile::barrier_init_by_warp(&full[warp][s], 32 + 1);
      tile::barrier_init_by_warp(&empty[warp][s], kTeamLanes);
    }
    tile::barrier_visible();
  }
};

// What a team does next, as its fetching warp tells the others.
struct alignas(16) StreamUnit {
  int expert, block, row;  // row: the first, in the list sorted by expert
  int what;                // rows, and words of below; 0: nothing more

  static constexpr int kShared = 1;  // the teams of the block have their parts of the sum, and add them up
  static constexpr int kEnds = 2;    // the team's last of this product
  static constexpr int kSecond = 4;  // of the second product
  static constexpr int kRow = 8, kRowsMost = 64;
  // A piece: the parts `first` to `end` - 1 of the sum.
  static constexpr int kPiece = kRow * kRowsMost, kFirst = 2 * kPiece, kEnd = 16 * kFirst;

  __device__ __forceinline__ int rows() const { return what / kRow % kRowsMost; }
  __device__ __forceinline__ int product() const { return what / kSecond % 2; }
  __device__ __forceinline__ int first() const { return what / kFirst % 16; }
  __device__ __forceinline__ int end() const { return what / kEnd; }
};

// The k blocks that a team sums up of a unit.
struct Range {
  int begin, end;
};

// k blocks of a part of the sums; the last parts may have fewer, or none.
__device__ __forceinline__ int part_steps(const ExpertParameters& p) {
  return ceil_div(p.k_blocks, kParts * kPartSteps) * kPartSteps;
}
// Whether every part of a sum has something.
__device__ __forceinline__ bool may_share(const ExpertParameters& p) {
  return p.k_blocks > (kParts - 1) * part_steps(p);
}

template <int kTeams, class Work>
__device__ __forceinline__ Range range_of(const Work& work, const ExpertParameters& p, int what, int team) {
  const StreamUnit unit{0, 0, 0, what};
  const int steps = work.part_steps(unit.product());
  int first = 0, end = kParts;
  if (what & StreamUnit::kShared) first = team * (kParts / kTeams), end = first + kParts / kTeams;
  if (Work::kCuts && what & StreamUnit::kPiece) first = unit.first(), end = unit.end();
  return {first * steps, min(end * steps, p.k_blocks)};
}

// The sum of `mine` of this lane and of those before it.
__device__ __forceinline__ int up_to_lane(int mine) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int far = 1; far < 32; far *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, mine, far);
    mine += lane >= far ? other : 0;
  }
  return mine;
}

// One warp fetches for its team.
template <int N, int kTeams, class Work, class Weights = Mxfp4Weights>
struct StreamFetch {
  using S = Stage<N, Weights>;
  const Work& work;
  StreamMemory<N, kTeams, Weights>& m;
  const int team;
  const uint32_t ring;
  RowFetch<N, 1> rows;
  tile::RingPlace place;
  int ahead = 0;  // stages whose weights have been asked for already

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
  // Bytes may come before they are announced.
  __device__ __forceinline__ void ask(uint32_t stage, const uint8_t* codes, const uint8_t* scales,
                                      int steps) const {
    const uint32_t at = ring + stage * S::kBytes, full = tile::shared_address(&m.full[team][stage]);
    tile::copy_bulk(at + S::kCodes, codes, static_cast<uint32_t>(steps * Weights::kCodeBytes), full);
    if constexpr (Weights::kScaled)
      tile::copy_bulk(at + S::kScales, scales, static_cast<uint32_t>(steps * Weights::kScaleBytes), full);
  }
  // A unit of weights of `expert`, `within` of those of its `all_rows` rows from row `begin` of the list.
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
    int first, count;  // of the list
  };
  // The same of row block `block`. rows_of() says which rows: it is called behind the first copies of weights. early: x may
  // not be there yet, so that weights are asked for, as many as the ring holds, before it is waited for. what: StreamUnit's,
  // but for the rows.
  template <class RowsOf>
  __device__ __forceinline__ void unit(int expert, int first_block, int what, bool early, RowsOf rows_of) {
    const int product = what / StreamUnit::kSecond % 2;
    const ExpertParameters& p = work.parameters(product);
    const Range range = range_of<kTeams>(work, p, what, team);
    const int k_end = range.end;
    int k = range.begin;
    const int64_t block = static_cast<int64_t>(first_block) * p.k_blocks + k;
    const uint8_t* codes = p.w + expert * p.w_bytes + block * Weights::kCodeBytes;
    const uint8_t* scales =
        Weights::kScaled ? p.w_scale + expert * p.scale_bytes + block * Weights::kScaleBytes : nullptr;
    if (early) {
      tile::RingPlace next = place;
#pragma unroll 1
      for (; ahead < S::kStages && k + ahead * S::kSteps < k_end; ++ahead) {
        tile::barrier_wait_by_warp(&m.empty[team][next.stage], next.parity ^ 1);
        ask(next.stage, codes, scales, min(S::kSteps, k_end - k - ahead * S::kSteps));
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
      tile::barrier_wait_by_warp(&m.empty[team][place.stage], place.parity ^ 1);
      const uint32_t stage = ring + place.stage * S::kBytes;
      uint64_t* full = &m.full[team][place.stage];
      if (ahead > 0) {
        --ahead;
      } else {
        ask(place.stage, codes, scales, steps);
        codes += S::kSteps * Weights::kCodeBytes, scales += S::kSteps * Weights::kScaleBytes;
        asm volatile("" : "+l"(codes), "+l"(scales));  // else both are worked out again from the start
      }
      if (begins) begins = false, begin_rows();
      tile::barrier_expect_by_warp(
          full, static_cast<uint32_t>(steps * (Weights::kCodeBytes + Weights::kScaleBytes)));
      rows.template copy<S::kSteps>(p, stage, k);
      arrive_with_x(p, full);
      __syncwarp();
      place.step(S::kStages);
    }
  }
  __device__ __forceinline__ void no_more() {
    tile::barrier_wait_by_warp(&m.empty[team][place.stage], place.parity ^ 1);
    publish(ring + place.stage * S::kBytes, {});
    uint64_t* full = &m.full[team][place.stage];
    tile::barrier_expect_by_warp(full, 0);
    tile::barrier_arrive(full);
  }
};

// Where a lane's operands are in stage 0 of its team.
struct OperandsAt {
  uint32_t codes, scales, x[2];
};
// kCount steps of a stage that lies `stage` bytes on: the next one's operands are on their way while one is multiplied.
template <int N, class Weights, int kCount>
__device__ __forceinline__ void multiply_steps(float (&d)[2][N / 8][4], const OperandsAt& at,
                                               uint32_t stage) {
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
    of[i % 2].multiply(d);
  }
}

// Whether the operands of a sum have come, for the arrival that gives their stage back: true, but who asks waits. ptxas lets an
// arrival pass loads of operands (ldmatrix) that no instruction in front of it needs, and a copy that comes from the L2 has
// been there before they had read.
__device__ __forceinline__ uint32_t has_loaded(float sum) {
  constexpr uint32_t kNever = 0x7fc12345u;  // a NaN that is not one of sums, which is 0x7fffffff
  return __float_as_uint(sum) != kNever;
}
// The same of the sums of whole k blocks. Of weights in codes the last products need all but codes, and these are decoded,
// which waits for them.
template <class Weights, int N>
__device__ __forceinline__ uint32_t have_loaded(const float (&d)[2][N][4]) {
  uint32_t come = 1;
#pragma unroll
  for (int n = 0; n < N; ++n) come &= has_loaded(d[1][n][0]) & (Weights::kScaled || has_loaded(d[0][n][0]));
  return come;
}

// The two rows of a lane's sums (mma.cuh): a gate and its up, or two features. What their sums need besides is asked for when
// a unit begins and looked at when it ends.
struct LaneRows {
  int feature[2];
  uint32_t top[2], bias[2];

  template <class Weights>
  __device__ __forceinline__ void ask(const ExpertParameters& p, bool gated, const StreamUnit& unit,
                                      int slab) {
    const int row = slab * 16 + static_cast<int>(threadIdx.x % 32) / 4;
    const uint8_t* tops = p.w_scale + unit.expert * p.scale_bytes + p.top_begin + unit.block * kFragmentRows;
    const int64_t rows = static_cast<int64_t>(unit.expert) * (gated ? 2 * p.features : p.features);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      feature[i] = static_cast<int>(fragment_feature(gated, {unit.block, row + 8 * i}).feature);
      top[i] = Weights::kScaled ? __ldg(tops + row + 8 * i) : 0;
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
    if constexpr (Weights::kScaled) sum *= tile::row_factor(top[i]);
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

// A warp has one of the four slabs of a row block. Returns where the stage is that said there is nothing more, full and not given
// back.
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
  int turn = 0;
#pragma unroll 1
  while (true) {
    tile::barrier_wait_by_warp(&m.full[team][place.stage], place.parity);
    const uint4 published = tile::load_shared(ring + place.stage * S::kBytes + S::kUnit);
    const StreamUnit unit = {static_cast<int>(published.x), static_cast<int>(published.y),
                             static_cast<int>(published.z), uniform(static_cast<int>(published.w))};
    if (unit.what == 0) break;
    const int product = unit.product();
    const ExpertParameters& p = work.parameters(product);
    const bool shared = unit.what & StreamUnit::kShared,
               piece = Work::kCuts && unit.what & StreamUnit::kPiece;
    const bool finishes = piece ? unit.first() == 0 : !shared || team == kTeams - 1;
    const int steps = work.part_steps(product);
    LaneRows finish;
    if (finishes) finish.template ask<Weights>(p, work.gated(product), unit, slab);
    float sum[N / 2] = {}, last[N / 2] = {};  // of the parts but the last, and of the last
    const Range range = range_of<kTeams>(work, p, unit.what, team);
    int k = range.begin, part = unit.first();
    bool takes = false;
    [[maybe_unused]] typename Work::Taken taken;
    if constexpr (Work::kCuts) takes = piece && finishes && work.takes(unit);
#pragma unroll 1
    do {
      float d[2][N / 8][4] = {};
      const int k_end = min(k + steps, range.end);
      if constexpr (Work::kAsksEarly) {
        if (takes && k_end == range.end) taken = work.ask(unit, slab);
      }
#pragma unroll 1
      for (; k + S::kSteps <= k_end; k += S::kSteps) {
        tile::barrier_wait_by_warp(&m.full[team][place.stage], place.parity);
        multiply_steps<N, Weights, S::kSteps>(d, at, place.stage * S::kBytes);
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
          multiply_steps<N, Weights, 1>(d, step, place.stage * S::kBytes);
        }
        tile::arrive_by_lane(tile::shared_address(&m.empty[team][place.stage]), have_loaded<Weights>(d));
        place.step(S::kStages);
      }
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sum[i] += last[i], last[i] = d[0][i / 4][i % 4] + d[1][i / 4][i % 4];
      k = k_end;
      if constexpr (Work::kCuts) {
        if (piece && !finishes) work.give(unit, slab, part++, last);
      }
    } while (k < range.end);
    if (shared) {
      float* sums = &m.sums[turn][0][0][slab * 32 + lane];
      turn ^= 1;
      if (!finishes) {  // a first team has added up its parts from the start; others have no more than one
#pragma unroll
        for (int i = 0; i < N / 2; ++i) sums[(team * (N / 2) + i) * 128] = sum[i] + last[i];
      }
      tile::sync_threads<kTeams * 128>(1);
      if (finishes) {
        float before[N / 2] = {};
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
#pragma unroll
          for (int t = 0; t < kTeams - 1; ++t) before[i] += sums[(t * (N / 2) + i) * 128];
          sum[i] += before[i];
        }
      }
    }
    if (finishes) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sum[i] += last[i];
      if constexpr (Work::kCuts) {
        if (takes) work.take(unit, slab, taken, sum);
      }
      finish.template write<N, Weights>(work, product, unit, sum);
    }
    if (unit.what & StreamUnit::kEnds) work.end(product);
  }
  return place;
}

}  // namespace sluice::cuda
