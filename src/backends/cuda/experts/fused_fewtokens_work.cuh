// What a team of expert_fewtokens.cuh and expert_slices.cuh does: which slots an expert has, which units of both products are
// the team's, and how teams add up the sum of a unit that several have pieces of.
#pragma once
#include "backends/cuda/experts/stream.cuh"
#include "backends/cuda/queue.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/grid_barrier.cuh"
#include "ops/expert_mlp.h"

namespace sluice::cuda {

namespace fewtokens {

constexpr int kThreads = kTeams * kTeamWarps * 32, kColumns = 8;
constexpr int kSharedRounds = 2;  // units that the teams of an SM share, at most, at the end of a product
constexpr int kSharedMost = 227 << 10;

struct Parameters {
  ExpertParameters product[2];
  const int32_t* ids;
  uint32_t* grid_words;
  int tokens_slots;  // slots of all tokens
  Parts parts;
};

// Things one behind the other, dealt to the teams of all blocks: the first `more` of them, by rank, have one more than `each`.
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

// The slots by expert, as entries: up to kColumns slots of the same one.
struct Slots {
  uint32_t have[2];                           // slots that have an expert, where kTwo
  int expert[kSlotsMost], count[kSlotsMost];  // of an entry
  uint8_t order[kSlotsMost][kColumns];        // slots of an entry's rows
  uint8_t token[kSlotsMost][kColumns];        // and their tokens

  // By a whole warp, whose lanes have a slot each, or two (kTwo): how many entries there are.
  template <bool kTwo>
  __device__ __forceinline__ int make(const Parameters& p) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const uint32_t before = (uint32_t{1} << lane) - 1, up_to = before << 1 | 1;
    const bool two = kTwo && p.tokens_slots > 32;
    int id[2];
    bool has[2];
    uint32_t same[2], other[2] = {};  // slots of the same expert: of the lane's half, of the other half
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
    uint32_t heads[2] = {}, slots_with[2] = {};  // of entries the first slots, and slots that have an expert
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
      // Of the same expert, the last head up to here is that of this slot's entry.
      const uint32_t here = same[i] & heads[i] & up_to;
      const int half = i == 1 && here == 0 ? 0 : i;
      const int head = 31 - __clz(static_cast<int>(half == i ? here : other[1] & heads[0]));
      const uint32_t in_front = (half == 1 ? heads[1] : heads[0]) & ((uint32_t{1} << head) - 1);
      const int at = (half == 1 ? __popc(heads[0]) : 0) + __popc(in_front);
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
  int arrived;           // warps whose rows of h are written
  uint64_t met, h_full;  // of short sums
};

template <class Weights, bool kGated, bool kCut, bool kEarly = kCut>
struct Work {
  static constexpr bool kCuts = kCut, kAsksEarly = kEarly;
  const Parameters& p;
  Memory<Weights>& m;
  Slots& slots;  // of the team
  int rank;      // of the team

  __device__ __forceinline__ const ExpertParameters& parameters(int product) const {
    return p.product[product];
  }
  __device__ __forceinline__ bool gated(int product) const { return kGated && product == 0; }
  __device__ __forceinline__ int order(int row) const { return slots.order[0][row]; }
  __device__ __forceinline__ int64_t x_row(int product, int row) const {
    return product == 0 ? slots.token[0][row] : slots.order[0][row];
  }
  __device__ __forceinline__ int64_t y_row(const StreamUnit&, int row) const { return slots.order[0][row]; }
  __device__ __forceinline__ int part_steps(int product) const {
    return kCuts && product == 0 ? p.parts.steps : cuda::part_steps(p.product[product]);
  }

  // Sums of parts that a team gives another are words of the meeting, where zero says that one has not come: who takes them
  // leaves zeros. [slots, row blocks, parts but the first][64 rows, those of a lane side by side].
  static constexpr int kPartWords = static_cast<int>(kFragmentRows);
  // Of a lane's two rows, in its column `c` of two, which is there.
  __device__ __forceinline__ uint32_t* sums(const StreamUnit& unit, int slab, int c, int part) const {
    const int lane = static_cast<int>(threadIdx.x % 32), slot = order(unit.row + lane % 4 * 2 + c);
    const int at = (slot * p.product[0].row_blocks + unit.block) * (p.parts.count - 1) + part - 1;
    return p.grid_words + kGridWordsBytes / 4 + at * kPartWords + slab * 16 + lane / 4 * 2;
  }
  __device__ __forceinline__ static bool has_column(const StreamUnit& unit, int c) {
    return static_cast<int>(threadIdx.x % 4) * 2 + c < unit.rows();
  }
  __device__ __forceinline__ void give(const StreamUnit& unit, int slab, int part,
                                       const float (&sum)[kColumns / 2]) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (!has_column(unit, c)) continue;
      uint32_t word[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        word[i] = __float_as_uint(sum[i * 2 + c]);
        if (word[i] == 0)
          word[i] = 0x80000000u;  // -0: what it is added to never is, so the sum stays as it is
      }
      asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(sums(unit, slab, c, part)),
                   "r"(word[0]), "r"(word[1])
                   : "memory");
    }
  }
  __device__ __forceinline__ bool takes(const StreamUnit& unit) const { return unit.end() < p.parts.count; }
  // Parts behind a piece, of one column of the lane: all that there may be, or, where they are not asked for early, as many as
  // there are registers for.
  static constexpr int kAtOnce = kAsksEarly ? kPartsMost - 1 : 4;
  struct Taken {
    uint32_t word[kAtOnce][2];

    __device__ __forceinline__ void load(const uint32_t* from, int count) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i >= count) break;
        asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                     : "=r"(word[i][0]), "=r"(word[i][1])
                     : "l"(from + i * kPartWords)
                     : "memory");
      }
    }
    __device__ __forceinline__ bool have_loaded(int count) const {
      bool come = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (i < count) come = come && word[i][0] != 0 && word[i][1] != 0;
      return come;
    }
  };
  __device__ __forceinline__ Taken ask(const StreamUnit& unit, int slab) const {
    Taken out;
    if (has_column(unit, 0)) out.load(sums(unit, slab, 0, unit.end()), p.parts.count - unit.end());
    return out;
  }
  __device__ __forceinline__ void take(const StreamUnit& unit, int slab, Taken& taken,
                                       float (&sum)[kColumns / 2]) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (!has_column(unit, c)) continue;
      uint32_t* from = sums(unit, slab, c, unit.end());
#pragma unroll 1
      for (int left = p.parts.count - unit.end(); left > 0; left -= kAtOnce, from += kAtOnce * kPartWords) {
        if (c == 1 || !kAsksEarly) taken.load(from, left);
        while (!taken.have_loaded(left)) taken.load(from, left);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (i >= left) break;
#pragma unroll
          for (int row = 0; row < 2; ++row) sum[row * 2 + c] += __uint_as_float(taken.word[i][row]);
          asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %1};" ::"l"(from + i * kPartWords), "r"(0)
                       : "memory");
        }
      }
    }
    __syncwarp();
  }
  // By whole warps.
  __device__ __forceinline__ void wait_for_x(int) const {
    if (threadIdx.x % 32 == 0) tile::wait_at_grid_barrier(p.grid_words, gridDim.x);
    __syncwarp();
  }
  __device__ __forceinline__ void end(int product) const {
    if (product != 0) return;
    __syncwarp();
    arrive(1);
  }
  // So many warps of this block are through with the first product; the last of all tells the other blocks. What they wrote
  // comes before what they say here, and that before what the last one says.
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

// 16 bytes of a row of h on their way to shared memory.
struct PieceOfH {
  const __nv_bfloat16* from;
  uint32_t to;
  int there;  // 0: zeros; negative: no such piece
};
// By all that multiply, each from piece `first` of `all` on, kApart further each time: where from and where to (`piece(i)`) is
// known before rows of h are there.
template <int kApart, class Weights, class PieceOf>
__device__ __forceinline__ void fetch_pieces(Memory<Weights>& m, int first, int all, const PieceOf& piece) {
  constexpr int kAhead = 4;
  const auto copy = [&](const PieceOfH& a) {
    if (a.there >= 0) tile::copy_16(a.to, a.from, a.there);
  };
  PieceOfH ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    ahead[i].there = -1;
    if (first + i * kApart < all) ahead[i] = piece(first + i * kApart);
  }
  // The meeting waits for those who read rows of x as well, but racecheck does not follow a counter in global memory.
  tile::sync_threads<kTeams * 128>(2);
  tile::barrier_wait_by_warp(&m.met, 0);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) copy(ahead[i]);
#pragma unroll 1
  for (int i = first + kAhead * kApart; i < all; i += kApart) copy(piece(i));
  tile::arrive_after_copies(tile::shared_address(&m.h_full));
  tile::barrier_wait_by_warp(&m.h_full, 0);
}

// Each product has code of its own, so that its parameters are constants to it: what comes before the first weights are asked
// for runs once, and its instructions come from memory. Both say whether there was any.
//
// The first, where it is cut: parts of sums, all teams as many. What a team gives another is what it begins with, and what it
// takes it needs at its end.
template <class W, class Fetch>
__device__ __forceinline__ bool fetch_pieces(const W& work, Fetch& fetch, int listed) {
  const Slots& slots = work.slots;
  const int row_blocks = work.p.product[0].row_blocks, parts = work.p.parts.count;
  const Deal deal(listed * row_blocks * parts);
  int at = deal.begin(work.rank);
  const int end = deal.begin(work.rank + 1);
  if (at >= end) return false;
  int unit = at / parts, first = at - unit * parts, entry = unit / row_blocks,
      block = unit - entry * row_blocks;
#pragma unroll 1
  do {
    const int last = min(parts, first + end - at);
    at += last - first;
    int what = StreamUnit::kPiece + StreamUnit::kFirst * first + StreamUnit::kEnd * last;
    if (at >= end) what += StreamUnit::kEnds;
    fetch.unit(uniform(slots.expert[entry]), uniform(block), uniform(what), false, [&] {
      return typename Fetch::Rows{entry * kColumns, uniform(slots.count[entry])};
    });
    first = 0;
    if (++block == row_blocks) block = 0, ++entry;
  } while (at < end);
  return true;
}

// Else, and the second: as many units as the grid has teams at a time, one each; the teams of an SM share what is left over
// where it is little.
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
    return fetch_pieces(work, fetch, listed);
  } else {
    return fetch_units<0>(work, fetch, listed);
  }
}

}  // namespace fewtokens
}  // namespace sluice::cuda
