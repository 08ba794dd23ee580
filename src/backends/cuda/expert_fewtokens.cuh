// The experts of few tokens in one launch: both matrix products, and the weighted sums behind them.
//
// A block on each SM, with teams as expert_stream.cuh has them. Each fetching warp lists the experts by itself: there are so
// few slots that this takes less time than to read lists of them. Its team has units of the first product, and then of the
// second: its ring fills with weights of the second while other SMs are still at work on the first, so that memory never
// idles. All blocks meet between the two, before rows of h are read.
//
// Units of the second product that fill no round of all teams are cut into parts of a sum, which any team may have: the last
// of the warps that write the same 16 columns of g adds up parts and slots, in their order, and writes y. Rows of h and of
// g's parts stand at their slots' places.
#pragma once
#include <cmath>

#include "backends/cuda/card.h"
#include "backends/cuda/expert_cost.h"
#include "backends/cuda/expert_stream.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/meeting.cuh"
#include "base/arena.h"
#include "ops/expert_mlp.h"

namespace sluice::cuda {

namespace fewtokens {

constexpr int kSlotsMost = 32;  // one for each lane
constexpr int kTeams = 4, kThreads = kTeams * kTeamWarps * 32, kColumns = 8;
constexpr int kSharedRounds = 2;  // units that an SM's teams share, at most, at the end of the first product
constexpr int kSharedMost = 227 << 10;
constexpr int kSlabs = 4;      // of a row block, a warp each
constexpr int kCounters = 64;  // where in Queue::meeting they begin, one for each slab of y

// What becomes of rows of g.
struct Sums {
  const float* g;  // [kParts][slots of all tokens][hidden]: pieces of each row
  const float* weights;
  const void *shared, *residual;
  void* y;
  int64_t shared_stride, residual_stride, y_stride;  // elements from row to row
  int tokens, y_f32;
  float scale;
};

struct Parameters {
  ExpertParameters product[2];  // whose rows of y are h, and pieces of g
  Sums sums;
  const int32_t* ids;
  uint32_t* meeting;
  int tokens_slots;  // slots of all tokens
};

// The slots by expert, as entries: up to kColumns slots of the same one.
struct Slots {
  int expert[kSlotsMost], count[kSlotsMost];  // of an entry
  uint8_t order[kSlotsMost][kColumns];        // slots of an entry's rows
  uint8_t token[kSlotsMost][kColumns];        // and their tokens
  uint32_t valid;                             // slots that have an expert here: bits
  int listed;                                 // entries
  int whole_blocks;                           // row blocks of y whose units are whole
  int pieces;                                 // that units of others are cut into

  // By a whole warp, whose lanes have a slot each.
  __device__ __forceinline__ void make(const Parameters& p) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const uint32_t before = (uint32_t{1} << lane) - 1;
    const int id = lane < p.tokens_slots ? p.ids[lane] : -1;
    const bool has = id >= 0 && id < p.product[0].experts;
    const uint32_t all = __ballot_sync(0xffffffffu, has), same = __match_any_sync(0xffffffffu, has ? id : -1);
    // Where an expert has more than kColumns slots, those of the same entry.
    constexpr int kChunks = kSlotsMost / kColumns;
    const int chunk = has ? id * kChunks + __popc(same & before) / kColumns : -1;
    const uint32_t entry = __match_any_sync(0xffffffffu, chunk);
    const int row = __popc(entry & before), head = __ffs(static_cast<int>(entry)) - 1;
    const uint32_t heads = __ballot_sync(0xffffffffu, has && row == 0);
    const int at = __popc(heads & ((uint32_t{1} << head) - 1));
    if (has) {
      order[at][row] = static_cast<uint8_t>(lane);
      token[at][row] = static_cast<uint8_t>(lane / p.product[0].slots);
      if (row == 0) expert[at] = id, count[at] = __popc(entry);
    }
    if (lane == 0) valid = all, listed = __popc(heads);
    __syncwarp();
  }
};

// Of a slab of y and two tokens, in Queue::meeting: warps that have written their piece of g.
__device__ __forceinline__ int counter_of(const Parameters& p, int slab, int pair) {
  return kCounters + pair * p.product[1].row_blocks * kSlabs + slab;
}
// Of a team among all of the grid, in the order in which they have the second product: blocks that have more of the first one
// have less of it.
__device__ __forceinline__ int place_of_team(int team) {
  return static_cast<int>(gridDim.x) - 1 - static_cast<int>(blockIdx.x) + team * static_cast<int>(gridDim.x);
}

template <class Weights>
struct alignas(128) Memory {
  StreamMemory<kColumns, kTeams, Weights> stream;
  Slots slots[kTeams];
  int arrived;  // warps whose rows of h are written
};

// Waits until all that belongs to 16 columns of y is in g, then adds it up for two tokens: by a warp, a lane has one number.
// rehearse: goes through the instructions once before, without memory. They take longer to come than what they do, and who
// waits has the time.
__device__ __forceinline__ void sum_slots(const Parameters& p, const Slots& its, int slab, int pair,
                                          bool rehearse) {
  constexpr int kAtOnce = 4;
  const Sums& s = p.sums;
  const int lane = static_cast<int>(threadIdx.x % 32), feature = slab * 16 + lane % 16;
  const int token = 2 * pair + lane / 16, slots = p.product[0].slots, hidden = p.product[1].features;
  const int pieces = slab / kSlabs < its.whole_blocks ? 1 : its.pieces;
  const uint32_t valid = its.valid, wanted = static_cast<uint32_t>(its.listed * pieces);
  const bool in = feature < hidden && token < s.tokens;
  const auto added = [&](const void* from, int64_t stride) {
    if (!from || !in) return 0.f;
    const int64_t at = token * stride + feature;
    return s.y_f32 ? static_cast<const float*>(from)[at]
                   : __bfloat162float(static_cast<const __nv_bfloat16*>(from)[at]);
  };
  const float shared = added(s.shared, s.shared_stride), residual = added(s.residual, s.residual_stride);
  uint32_t* counter = p.meeting + counter_of(p, slab, pair);
#pragma unroll 1
  for (int pass = rehearse ? 0 : 1; pass < 2; ++pass) {
    int truly = pass;
    asm volatile("" : "+r"(truly));  // a number to the compiler, so that no branch leaves anything out
    if (lane == 0 && truly) {
      tile::wait_for_meeting(counter, wanted);
      *counter = 0;
    }
    __syncwarp();
    float sum = 0;
#pragma unroll 1
    for (int k = 0; k < slots; k += kAtOnce) {
      float value[kAtOnce][kParts], weight[kAtOnce];
      bool there[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int slot = token * slots + k + i;
        there[i] = truly && in && k + i < slots && (valid >> slot & 1);
        weight[i] = there[i] && s.weights ? s.weights[slot] : 1.f;
#pragma unroll
        for (int piece = 0; piece < kParts; ++piece)
          value[i][piece] =
              there[i] && piece < pieces
                  ? __ldcg(s.g + (static_cast<int64_t>(piece) * p.tokens_slots + slot) * hidden + feature)
                  : 0.f;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float all = (value[i][0] + value[i][1]) + (value[i][2] + value[i][3]);
        if (there[i]) sum = fmaf(weight[i], all, sum);
      }
    }
    sum *= s.scale;
    if (s.shared) sum += shared;
    if (s.residual) sum += residual;
    if (!in || !truly) continue;
    const int64_t at = token * s.y_stride + feature;
    if (s.y_f32) {
      static_cast<float*>(s.y)[at] = sum;
    } else {
      static_cast<__nv_bfloat16*>(s.y)[at] = __float2bfloat16_rn(sum);
    }
  }
}
static_assert(kParts == 4);

template <class Weights, bool kGated>
struct Work {
  const Parameters& p;
  Memory<Weights>& m;
  Slots& slots;  // of the team

  __device__ __forceinline__ const ExpertParameters& parameters(int product) const {
    return p.product[product];
  }
  __device__ __forceinline__ bool gated(int product) const { return kGated && product == 0; }
  __device__ __forceinline__ int order(int row) const { return slots.order[0][row]; }
  __device__ __forceinline__ int64_t x_row(int product, int row) const {
    return product == 0 ? slots.token[0][row] : slots.order[0][row];
  }
  __device__ __forceinline__ int64_t y_row(const StreamUnit& unit, int row) const {
    return unit.piece() * p.tokens_slots + slots.order[0][row];
  }
  // By whole warps.
  __device__ __forceinline__ void wait_for_x() const {
    if (threadIdx.x % 32 == 0) tile::wait_for_meeting(p.meeting, gridDim.x);
    __syncwarp();
  }
  // Slabs of y that a warp has written a piece of g of and has told nobody yet: one a lane, `pending` of them.
  struct State {
    int slab = 0, pending = 0;
  };
  // What a warp has written is told when it has nothing else to do, since that takes half a microsecond. Then each warp has
  // its share of y.
  __device__ __forceinline__ void begin(State& state, const StreamUnit& unit) const {
    if (unit.what != 0 && state.pending < 32) return;
    const int lane = static_cast<int>(threadIdx.x % 32), pairs = ceil_div(p.sums.tokens, 2);
    __syncwarp();
    if (lane < state.pending) {
      tile::fence_gpu();
#pragma unroll 1
      for (int pair = 0; pair < pairs; ++pair)
        tile::add_to_meeting(p.meeting + counter_of(p, state.slab, pair));
    }
    state.pending = 0;
    if (unit.what != 0) return;
    // From behind: teams in front have more of the second product, and the last ones may have none of it.
    const int slabs = p.product[1].row_blocks * kSlabs, blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x / 32) - kTeams, warps = kTeams * kSlabs * blocks;
    const int mine = warps - 1 - place_of_team(warp / kSlabs) * kSlabs - warp % kSlabs;
#pragma unroll 1
    for (int i = mine; i < slabs * pairs; i += warps) sum_slots(p, slots, i % slabs, i / slabs, i == mine);
  }
  __device__ __forceinline__ void end(State& state, const StreamUnit& unit, int slab) const {
    if (unit.product() == 0) {
      __syncwarp();
      if (unit.what & StreamUnit::kEnds) arrive(1);
      return;
    }
    if (static_cast<int>(threadIdx.x % 32) == state.pending) state.slab = unit.block * kSlabs + slab;
    ++state.pending;
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
    if (before + warps == kTeams * kSlabs) tile::arrive_at_meeting(p.meeting);
  }
};

// The units of the second product, by their place in a list: whole ones, as many as fill rounds of all teams, and then
// pieces, as small as they may be for one round. The units of a row block are all cut alike.
struct SecondUnits {
  const Slots& slots;
  int all, whole;                // units, pieces counted as such; whole ones, which come first
  int whole_blocks, cut_blocks;  // row blocks of both kinds
  int cut, cut_parts, pieces;  // of those that are cut: StreamUnit's word, parts of a piece, pieces of a unit

  __device__ __forceinline__ SecondUnits(const ExpertParameters& p, const Slots& its_slots, int teams)
      : slots(its_slots), cut(0), cut_parts(kParts), pieces(1) {
    const int listed = uniform(slots.listed), units = listed * p.row_blocks, parts = parts_of(p);
    whole_blocks = units < teams ? 0 : units / teams * teams / listed;
    cut_blocks = p.row_blocks - whole_blocks;
    whole = whole_blocks * listed;
    const int rest = units - whole, halves = ceil_div(parts, 2);
    if (rest * parts <= teams) {
      cut = StreamUnit::kOnePart, cut_parts = 1, pieces = parts;
    } else if (rest * halves <= teams) {
      cut = StreamUnit::kTwoParts, cut_parts = 2, pieces = halves;
    }
    all = whole + rest * pieces;
  }
  __device__ __forceinline__ StreamUnit at(int index) const {
    int what = StreamUnit::kSecond, unit = index, first_block = 0, blocks = whole_blocks;
    if (index >= whole) {
      const int of_pieces = index - whole;
      unit = of_pieces / pieces;
      what += cut + StreamUnit::kPart * cut_parts * (of_pieces - unit * pieces);
      first_block = whole_blocks, blocks = cut_blocks;
    }
    const int entry = unit / blocks;
    return {uniform(slots.expert[entry]), uniform(first_block + unit - entry * blocks), entry * kColumns,
            uniform(what + StreamUnit::kRow * slots.count[entry])};
  }
};

// As many units of the first product as the grid has teams at a time, one each; the teams of an SM share what is left over
// where it is little. Then those of the second.
template <class Weights, class W>
__device__ __forceinline__ void fetch_all(const W& work, int team) {
  Slots& slots = work.slots;
  StreamFetch<kColumns, kTeams, W, Weights> fetch(work, work.m.stream, team);
  const int blocks = static_cast<int>(gridDim.x), teams = kTeams * blocks;
  const int mine = static_cast<int>(blockIdx.x) + team * blocks;
  tile::wait_for_previous();
  slots.make(work.p);
  const int listed = uniform(slots.listed);
  {
    const ExpertParameters& p = work.p.product[0];
    const int all = listed * p.row_blocks, over = all % teams;
    const int alone = over <= kSharedRounds * blocks && may_share(p) ? all - over : all;
    int index = mine;
    bool shared = index >= alone;
    if (shared) index = alone + static_cast<int>(blockIdx.x);
    if (index >= all) work.arrive(kSlabs);  // for those who have nothing to do
#pragma unroll 1
    while (index < all) {
      const int entry = index / p.row_blocks, block = index - entry * p.row_blocks;
      int what = StreamUnit::kRow * slots.count[entry];
      if (shared) what += StreamUnit::kShared;
      index += shared ? blocks : teams;
      if (!shared && index >= alone) shared = true, index = alone + static_cast<int>(blockIdx.x);
      if (index >= all) what += StreamUnit::kEnds;
      fetch.run({uniform(slots.expert[entry]), uniform(block), entry * kColumns, uniform(what)});
    }
  }
  const SecondUnits second(work.p.product[1], slots, teams);
  if (threadIdx.x % 32 == 0) slots.whole_blocks = second.whole_blocks, slots.pieces = second.pieces;
  const int first = place_of_team(team);
  // Weights of all its units, as many as the ring holds, while other blocks are at the first product.
  const auto wait = [&] {
#pragma unroll 1
    for (int index = first + teams; index < second.all && fetch.has_room(); index += teams)
      fetch.ask_ahead(second.at(index));
    work.wait_for_x();
  };
  if (first >= second.all) wait();
#pragma unroll 1
  for (int index = first; index < second.all; index += teams)
    fetch.run(second.at(index), index == first, wait);
  fetch.no_more();
  if (threadIdx.x % 32 == 0) tile::leave_meeting(work.p.meeting, gridDim.x * kTeams);
}

template <class Weights, bool kGated>
__global__ void __launch_bounds__(kThreads, 1) expert_mlp(const __grid_constant__ Parameters p) {
  extern __shared__ uint8_t dynamic[];
  auto& m = *reinterpret_cast<Memory<Weights>*>(dynamic + (128 - tile::shared_address(dynamic) % 128) % 128);
  const int warp = uniform(static_cast<int>(threadIdx.x / 32));
  if (warp < kTeams) m.stream.init(warp);
  if (threadIdx.x == 0) m.arrived = 0;
  __syncthreads();
  if (warp < kTeams) {
    fetch_all<Weights>(Work<Weights, kGated>{p, m, m.slots[warp]}, warp);
    return;
  }
  tile::wait_for_previous();
  tile::release_next();
  const int team = (warp - kTeams) / kSlabs, slab = (warp - kTeams) % kSlabs;
  stream_multiply(Work<Weights, kGated>{p, m, m.slots[team]}, m.stream, team, slab);
}

}  // namespace fewtokens

// What stands in the workspace: rows of h, and kParts times as many of g.
struct FewTokensBetween {
  Tensor h, g;
  size_t bytes = 0;

  static FewTokensBetween at(std::byte* base, const ExpertMlp::Problem& p, Backend where) {
    constexpr int64_t kPartsOfG = 4;
    FewTokensBetween out;
    const auto take = [&](DType dtype, std::initializer_list<int64_t> shape) {
      Tensor t = make_tensor(base ? base + out.bytes : nullptr, dtype, shape, where);
      out.bytes += Arena::footprint(static_cast<size_t>(bytes_of(dtype, elements_of(t))));
      return t;
    };
    out.h = take(p.x, {ExpertMlp::rows(p), p.intermediate});
    out.g = take(DType::kF32, {kPartsOfG * ExpertMlp::rows(p), p.hidden});
    return out;
  }
};

// Conditions of every kernel here, whatever the type of its weights.
inline void need_fewtokens(Refusal& r, const ExpertMlp::Problem& p, const DeviceInfo& d) {
  constexpr int64_t kHiddenMost = 32768;
  static_assert((fewtokens::kCounters + kHiddenMost / 16 * fewtokens::kSlotsMost / 2) * sizeof(uint32_t) <=
                kMeetingBytes);
  need_expert_blocks(r, ExpertMlp::up(p), d);
  need_multiple(r, "intermediate", p.intermediate, 8, "copies of 16 bytes");
  r.need(ExpertMlp::rows(p) <= fewtokens::kSlotsMost,
         "tokens * slots <= " + std::to_string(fewtokens::kSlotsMost) + " (one for each lane)",
         "tokens * slots", ExpertMlp::rows(p));
  r.need(p.hidden <= kHiddenMost, "hidden <= " + std::to_string(kHiddenMost) + " (counters of y)", "hidden",
         p.hidden);
}

struct FewTokensCost {
  double begin_us, memory_share, unit_us;  // unit_us: of the second product, a round of all teams
};
inline double fewtokens_us(const ExpertMlp::Problem& p, const DeviceInfo& d, const FewTokensCost& of) {
  const ExpertGemm::Problem up = ExpertMlp::up(p), down = ExpertMlp::down(p);
  const double bytes = ExpertGemm::bytes(up) + ExpertGemm::bytes(down);
  const double units = expert_load(up).active * std::ceil(static_cast<double>(p.hidden) / 64);
  return of.begin_us + bytes / (of.memory_share * d.mem_bytes_per_us) +
         of.unit_us * units / (fewtokens::kTeams * d.cores);
}

template <class Weights>
Status enqueue_fewtokens(std::string_view name, const ExpertMlp::Problem& p, const ExpertMlp::Args& a,
                         Workspace w, Stream stream) {
  using namespace fewtokens;
  if (p.tokens == 0) return {};
  constexpr size_t kBytes = 128 + sizeof(Memory<Weights>);
  static_assert(kBytes <= kSharedMost);
  const FewTokensBetween between = FewTokensBetween::at(w.data, p, stream.where);
  int sms = 0;
  SLUICE_TRY(check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, queue_of(stream).device),
                   "counting SMs"));
  const Combine::Args sums = ExpertMlp::combine(p, a, {}, between.g);
  const Parameters parameters{
      .product = {expert_parameters(ExpertMlp::up(p), ExpertMlp::up(p, a, {}, between.h)),
                  expert_parameters(ExpertMlp::down(p), ExpertMlp::down(a, {}, between.h, between.g))},
      .sums = {.g = between.g.as<const float>(),
               .weights = sums.weights.as<const float>(),
               .shared = sums.shared.data,
               .residual = sums.residual.data,
               .y = sums.y.data,
               .shared_stride = sums.shared.stride[0],
               .residual_stride = sums.residual.stride[0],
               .y_stride = sums.y.stride[0],
               .tokens = static_cast<int>(p.tokens),
               .y_f32 = p.y == DType::kF32,
               .scale = static_cast<float>(p.scale)},
      .ids = a.ids.as<const int32_t>(),
      .meeting = queue_of(stream).meeting,
      .tokens_slots = static_cast<int>(ExpertMlp::rows(p))};
  const Launch how{.grid = {static_cast<unsigned>(sms), 1, 1},
                   .block = {kThreads, 1, 1},
                   .shared_bytes = kBytes,
                   .cooperative = true};
  return launch(name, is_gated(p.act) ? expert_mlp<Weights, true> : expert_mlp<Weights, false>, how, stream,
                parameters);
}

}  // namespace sluice::cuda
