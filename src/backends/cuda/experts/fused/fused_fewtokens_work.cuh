// The Work (stream.cuh) of a team in fused_fewtokens.cuh and fused_slices.cuh: the slots of each expert,
// the team's units of both products, and the exchange of partial sums between the teams that share a unit.
#pragma once
#include "backends/cuda/experts/stream/stream.cuh"
#include "backends/cuda/queue.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/grid_barrier.cuh"
#include "ops/fused/expert_mlp.h"

namespace sluice::cuda {

namespace fewtokens {

constexpr int kThreads = kTeams * kTeamWarps * 32, kColumns = 8;
constexpr int kSharedRounds = 2;  // maximum number of units per SM that its teams share at the end of a
                                  // product
constexpr int kSharedMax = 227 << 10;

struct Parameters {
  ExpertParameters product[2];
  const int32_t* ids;
  uint32_t* grid_words;
  int tokens_slots;  // slots of all tokens
  Splits splits;
};

// Divides `all` items among the teams of the grid: teams of rank < `more` have each + 1 consecutive items, the others `each`.
struct Deal {
  int each, more;

  __device__ __forceinline__ explicit Deal(int all) {
    const int teams = static_cast<int>(gridDim.x) * kTeams;
    each = all / teams, more = all - each * teams;
  }
  __device__ __forceinline__ int begin(int rank) const { return rank * each + min(rank, more); }
};
__device__ __forceinline__ int rank_of(int team) {
  return static_cast<int>(blockIdx.x) + team * static_cast<int>(gridDim.x);
}

// The slots grouped by expert. An entry is up to kColumns slots of one expert; an expert with more slots has several entries.
struct Slots {
  // bit mask of the slots that have an expert; written only if kTwo
  uint32_t have[2];
  int expert[kSlotsMax], count[kSlotsMax];  // per entry
  uint8_t order[kSlotsMax][kColumns];       // slots of an entry's rows
  uint8_t token[kSlotsMax][kColumns];       // tokens of these slots

  // Called by whole warps; a lane handles one slot, or two with kTwo. Returns the number of entries.
  template <bool kTwo>
  __device__ __forceinline__ int make(const Parameters& p) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const uint32_t before = (uint32_t{1} << lane) - 1, up_to = before << 1 | 1;
    const bool two = kTwo && p.tokens_slots > 32;
    int id[2];
    bool has[2];
    // same: in the half (32 slots) of this slot, the mask of slots with its expert; other: the same in the other half.
    uint32_t same[2], other[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int slot = lane + 32 * i;
      id[i] = slot < p.tokens_slots ? p.ids[slot] : -1;
      has[i] = id[i] >= 0 && id[i] < p.product[0].experts;
      if (!has[i]) id[i] = -1;
    }
    same[0] = __match_any_sync(0xffffffffu, id[0]), same[1] = 0;
    if (two) {
      same[1] = __match_any_sync(0xffffffffu, id[1]);
#pragma unroll 4
      for (int l = 0; l < 32; ++l) {
        const int first = __shfl_sync(0xffffffffu, id[0], l), second = __shfl_sync(0xffffffffu, id[1], l);
        if (second == id[0]) other[0] |= uint32_t{1} << l;
        if (first == id[1]) other[1] |= uint32_t{1} << l;
      }
    }
    int nth[2], all[2];
    // heads: the mask of slots that begin an entry; slots_with: the mask of slots that have an expert.
    uint32_t heads[2] = {}, slots_with[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && !two) break;
      nth[i] = __popc(same[i] & before) + (i == 1 ? __popc(other[1]) : 0);
      all[i] = __popc(same[i]) + __popc(other[i]);
      heads[i] = __ballot_sync(0xffffffffu, has[i] && nth[i] % kColumns == 0);
      if constexpr (kTwo) slots_with[i] = __ballot_sync(0xffffffffu, has[i]);
    }
    if (kTwo && lane == 0) have[0] = slots_with[0], have[1] = slots_with[1];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && !two) break;
      if (!has[i]) continue;
      // Of the heads with this slot's expert, the last one at or before the slot begins its entry.
      const uint32_t here = same[i] & heads[i] & up_to;
      const int half = i == 1 && here == 0 ? 0 : i;
      const int head = 31 - __clz(static_cast<int>(half == i ? here : other[1] & heads[0]));
      const uint32_t heads_before = (half == 1 ? heads[1] : heads[0]) & ((uint32_t{1} << head) - 1);
      const int at = (half == 1 ? __popc(heads[0]) : 0) + __popc(heads_before);
      const int row = nth[i] % kColumns, slot = lane + 32 * i;
      order[at][row] = static_cast<uint8_t>(slot);
      token[at][row] = static_cast<uint8_t>(slot / p.product[0].slots);
      if (row == 0) expert[at] = id[i], count[at] = min(all[i] - nth[i], kColumns);
    }
    __syncwarp();
    return __popc(heads[0]) + __popc(heads[1]);
  }
};

template <class Weights>
struct alignas(128) Memory {
  StreamMemory<kColumns, kTeams, Weights> stream;
  Slots slots[kTeams];
  int arrived;  // consumer warps that have written their rows of h
  // mbarriers: all rows of h are in global memory; rows of h are in shared memory
  uint64_t grid_ready, h_full;
};

template <class Weights, bool kGated, bool kCut, bool kEarly = kCut>
struct Work {
  static constexpr bool kCuts = kCut, kLoadsEarly = kEarly;
  const Parameters& p;
  Memory<Weights>& m;
  Slots& slots;  // of this team
  int rank;

  __device__ __forceinline__ const ExpertParameters& parameters(int product) const {
    return p.product[product];
  }
  __device__ __forceinline__ bool gated(int product) const { return kGated && product == 0; }
  __device__ __forceinline__ int order(int row) const { return slots.order[0][row]; }
  __device__ __forceinline__ int64_t x_row(int product, int row) const {
    return product == 0 ? slots.token[0][row] : slots.order[0][row];
  }
  __device__ __forceinline__ int64_t y_row(const StreamUnit&, int row) const { return slots.order[0][row]; }
  __device__ __forceinline__ int split_steps(int product) const {
    return kCuts && product == 0 ? p.splits.steps : cuda::split_steps(p.product[product]);
  }

  // One team passes partial sums to another through the grid words. A word is 0 until the sum is written; the reader
  // resets it to 0. Layout: [slots, row blocks, splits after the first][64 rows, a lane's two rows adjacent].
  static constexpr int kPartialWords = static_cast<int>(kFragmentRows);
  // Address of a lane's two partial sums in its column `c` (0 or 1), which must exist.
  __device__ __forceinline__ uint32_t* sums(const StreamUnit& unit, int slab, int c, int split) const {
    const int lane = static_cast<int>(threadIdx.x % 32), slot = order(unit.row + lane % 4 * 2 + c);
    const int at = (slot * p.product[0].row_blocks + unit.block) * (p.splits.count - 1) + split - 1;
    return p.grid_words + kGridWordsBytes / 4 + at * kPartialWords + slab * 16 + lane / 4 * 2;
  }
  __device__ __forceinline__ static bool has_column(const StreamUnit& unit, int c) {
    return static_cast<int>(threadIdx.x % 4) * 2 + c < unit.rows();
  }
  __device__ __forceinline__ void publish_partial(const StreamUnit& unit, int slab, int split,
                                                  const float (&sum)[kColumns / 2]) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (!has_column(unit, c)) continue;
      uint32_t word[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        word[i] = __float_as_uint(sum[i * 2 + c]);
        if (word[i] == 0)
          // 0 would mean "not written". The running sum is never -0, so adding -0 does not change it
          word[i] = 0x80000000u;
      }
      asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(sums(unit, slab, c, split)),
                   "r"(word[0]), "r"(word[1])
                   : "memory");
    }
  }
  __device__ __forceinline__ bool has_partials(const StreamUnit& unit) const {
    return unit.end() < p.splits.count;
  }
  // Partial sums of the splits that follow this team's part of a unit, for one column of the lane.
  // With early loads all of them are loaded at once, otherwise as many as fit into registers.
  static constexpr int kAtOnce = kLoadsEarly ? kSplitsMax - 1 : 4;
  struct Partials {
    uint32_t word[kAtOnce][2];

    __device__ __forceinline__ void load(const uint32_t* from, int count) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i >= count) break;
        asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                     : "=r"(word[i][0]), "=r"(word[i][1])
                     : "l"(from + i * kPartialWords)
                     : "memory");
      }
    }
    __device__ __forceinline__ bool have_loaded(int count) const {
      bool loaded = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (i < count) loaded = loaded && word[i][0] != 0 && word[i][1] != 0;
      return loaded;
    }
  };
  __device__ __forceinline__ Partials load_partials(const StreamUnit& unit, int slab) const {
    Partials out;
    if (has_column(unit, 0)) out.load(sums(unit, slab, 0, unit.end()), p.splits.count - unit.end());
    return out;
  }
  __device__ __forceinline__ void add_partials(const StreamUnit& unit, int slab, Partials& partials,
                                               float (&sum)[kColumns / 2]) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (!has_column(unit, c)) continue;
      uint32_t* from = sums(unit, slab, c, unit.end());
#pragma unroll 1
      for (int left = p.splits.count - unit.end(); left > 0;
           left -= kAtOnce, from += kAtOnce * kPartialWords) {
        if (c == 1 || !kLoadsEarly) partials.load(from, left);
        while (!partials.have_loaded(left)) partials.load(from, left);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (i >= left) break;
#pragma unroll
          for (int row = 0; row < 2; ++row) sum[row * 2 + c] += __uint_as_float(partials.word[i][row]);
          asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %1};" ::"l"(from + i * kPartialWords), "r"(0)
                       : "memory");
        }
      }
    }
    __syncwarp();
  }
  // Waits at the grid barrier between the products. Called by whole warps.
  __device__ __forceinline__ void wait_for_x(int) const {
    if (threadIdx.x % 32 == 0) tile::wait_at_grid_barrier(p.grid_words, gridDim.x);
    __syncwarp();
  }
  __device__ __forceinline__ void end(int product) const {
    if (product != 0) return;
    __syncwarp();
    arrive(1);
  }
  // Counts `warps` consumer warps of this CTA as done with the first product. The
  // last of them arrives at the grid barrier. The acq_rel addition orders a warp's
  // writes before its arrival here, and thus before the arrival at the grid barrier.
  __device__ __forceinline__ void arrive(int warps) const {
    if (threadIdx.x % 32 != 0) return;
    int before;
    asm volatile("atom.acq_rel.cta.shared::cta.add.s32 %0, [%1], %2;"
                 : "=r"(before)
                 : "r"(tile::shared_address(&m.arrived)), "r"(warps)
                 : "memory");
    if (before + warps == kTeams * 4) tile::arrive_at_grid_barrier(p.grid_words);
  }
};

// A copy of 16 bytes of a row of h to shared memory.
struct ChunkOfH {
  const __nv_bfloat16* from;
  uint32_t to;
  int there;  // bytes to read; 0: write zeros; negative: no such chunk
};
// Copies `all` chunks to shared memory; this thread copies `first`, first + kApart, ... Called by all consumer threads.
// chunk(i) computes the addresses of a chunk and does not read h, so the first of them are computed before the grid barrier.
template <int kApart, class Weights, class ChunkOf>
__device__ __forceinline__ void copy_h_chunks(Memory<Weights>& m, int first, int all, const ChunkOf& chunk) {
  constexpr int kAhead = 4;
  const auto copy = [&](const ChunkOfH& a) {
    if (a.there >= 0) tile::copy_16(a.to, a.from, a.there);
  };
  ChunkOfH ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    ahead[i].there = -1;
    if (first + i * kApart < all) ahead[i] = chunk(first + i * kApart);
  }
  // The grid barrier already waits until all rows of x have been read. This CTA barrier is for
  // compute-sanitizer's racecheck, which does not see synchronization through global memory.
  tile::sync_threads<kTeams * 128>(2);
  tile::barrier_wait_by_warp(&m.grid_ready, 0);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) copy(ahead[i]);
#pragma unroll 1
  for (int i = first + kAhead * kApart; i < all; i += kApart) copy(chunk(i));
  tile::arrive_after_copies(tile::shared_address(&m.h_full));
  tile::barrier_wait_by_warp(&m.h_full, 0);
}

// Each product has its own code, so that its parameters are compile-time constants. Code before the first weight copies runs
// only once, so every instruction there is an instruction cache miss. Both functions return true if the team had a unit.
//
// The first product, if sums are split. Every team gets the same number of consecutive splits, give or take one. Its first unit may
// begin inside a sum: another team adds the partial sums of that unit. In its last unit, partial sums of other teams may be missing.
template <class W, class Fetch>
__device__ __forceinline__ bool fetch_splits(const W& work, Fetch& fetch, int listed) {
  const Slots& slots = work.slots;
  const int row_blocks = work.p.product[0].row_blocks, splits = work.p.splits.count;
  const Deal deal(listed * row_blocks * splits);
  int at = deal.begin(work.rank);
  const int end = deal.begin(work.rank + 1);
  if (at >= end) return false;
  int unit = at / splits, first = at - unit * splits, entry = unit / row_blocks,
      block = unit - entry * row_blocks;
#pragma unroll 1
  do {
    const int last = min(splits, first + end - at);
    at += last - first;
    int what = StreamUnit::kPartial + StreamUnit::kFirst * first + StreamUnit::kEnd * last;
    if (at >= end) what += StreamUnit::kEnds;
    fetch.unit(uniform(slots.expert[entry]), uniform(block), uniform(what), false, [&] {
      return typename Fetch::Rows{entry * kColumns, uniform(slots.count[entry])};
    });
    first = 0;
    if (++block == row_blocks) block = 0, ++entry;
  } while (at < end);
  return true;
}

// Used without split sums, and for the second product. In each round every team of the grid
// computes one unit. If few units remain for the last round, the teams of an SM share each unit.
template <int kProduct, class W, class Fetch>
__device__ __forceinline__ bool fetch_units(const W& work, Fetch& fetch, int listed) {
  const Slots& slots = work.slots;
  const ExpertParameters& p = work.p.product[kProduct];
  const int blocks = static_cast<int>(gridDim.x), all = listed * p.row_blocks, over = all % (kTeams * blocks);
  const int alone = over <= kSharedRounds * blocks && may_share(p) ? all - over : all;
  int index = work.rank;
  bool shared = index >= alone, early = kProduct == 1;
  if (shared) index = alone + static_cast<int>(blockIdx.x);
  if (index >= all) return false;
#pragma unroll 1
  do {
    const int entry = index / p.row_blocks, block = index - entry * p.row_blocks;
    int what = kProduct == 1 ? StreamUnit::kSecond : 0;
    if (shared) what += StreamUnit::kShared;
    index += shared ? blocks : kTeams * blocks;
    if (!shared && index >= alone) shared = true, index = alone + static_cast<int>(blockIdx.x);
    if (index >= all) what += StreamUnit::kEnds;
    fetch.unit(uniform(slots.expert[entry]), uniform(block), uniform(what), early, [&] {
      return typename Fetch::Rows{entry * kColumns, uniform(slots.count[entry])};
    });
    early = false;
  } while (index < all);
  return true;
}

template <class W, class Fetch>
__device__ __forceinline__ bool fetch_first(const W& work, Fetch& fetch, int listed) {
  if constexpr (W::kCuts) {
    return fetch_splits(work, fetch, listed);
  } else {
    return fetch_units<0>(work, fetch, listed);
  }
}

}  // namespace fewtokens
}  // namespace sluice::cuda
