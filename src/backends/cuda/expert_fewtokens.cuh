// The experts of few tokens: both products in one launch, and the weighted sums behind them in another.
//
// A block on each SM, with teams as expert_stream.cuh has them. Each team lists the experts by itself: there are so few slots
// that this takes less time than to read lists of them. It has units of the first product, and then of the second: its ring
// fills with weights of the second while other SMs are still at work on the first, so that memory never idles. All blocks
// meet between the two, before rows of h are read. Rows of h and g stand at their slots' places.
#pragma once
#include "backends/cuda/card.h"
#include "backends/cuda/combine_rows.h"
#include "backends/cuda/expert_cost.h"
#include "backends/cuda/expert_stream.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/meeting.cuh"
#include "dispatch/expert_mlp_in_turn.h"

namespace sluice::cuda {

namespace fewtokens {

constexpr int kTeams = 4, kThreads = kTeams * kTeamWarps * 32, kColumns = 8;
constexpr int kSharedRounds = 2;  // units that the teams of an SM share, at most, at the end of a product
constexpr int kSlotsMost = 32;    // one for each lane
constexpr int kSharedMost = 227 << 10;

struct Parameters {
  ExpertParameters product[2];
  const int32_t* ids;
  uint32_t* meeting;
  int tokens_slots;  // slots of all tokens
};

// The slots by expert, as entries: up to kColumns slots of the same one.
struct Slots {
  int expert[kSlotsMost], count[kSlotsMost];  // of an entry
  uint8_t order[kSlotsMost][kColumns];        // slots of an entry's rows
  uint8_t token[kSlotsMost][kColumns];        // and their tokens

  // By a whole warp, whose lanes have a slot each: how many entries there are.
  __device__ __forceinline__ int make(const Parameters& p) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const uint32_t before = (uint32_t{1} << lane) - 1;
    const int id = lane < p.tokens_slots ? p.ids[lane] : -1;
    const bool has = id >= 0 && id < p.product[0].experts;
    const uint32_t same = __match_any_sync(0xffffffffu, has ? id : -1);
    const int nth = __popc(same & before), row = nth % kColumns;
    const uint32_t heads = __ballot_sync(0xffffffffu, has && row == 0);
    // Of the same expert, the last head up to here is that of this lane's entry.
    const int head = 31 - __clz(static_cast<int>(same & heads & (before << 1 | 1)));
    const int at = __popc(heads & ((uint32_t{1} << head) - 1));
    if (has) {
      order[at][row] = static_cast<uint8_t>(lane);
      token[at][row] = static_cast<uint8_t>(lane / p.product[0].slots);
      if (row == 0) expert[at] = id, count[at] = min(__popc(same) - nth, kColumns);
    }
    __syncwarp();
    return __popc(heads);
  }
};

template <class Weights>
struct alignas(128) Memory {
  StreamMemory<kColumns, kTeams, Weights> stream;
  Slots slots[kTeams];
  int arrived;  // warps whose rows of h are written
};

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
  __device__ __forceinline__ int64_t y_row(const StreamUnit&, int row) const { return slots.order[0][row]; }
  // By whole warps.
  __device__ __forceinline__ void wait_for_x(int) const {
    if (threadIdx.x % 32 == 0) tile::wait_for_meeting(p.meeting, gridDim.x);
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
    if (before + warps == kTeams * 4) tile::arrive_at_meeting(p.meeting);
  }
};

// Each product has code of its own, so that its parameters are constants to it: what comes before the first weights are asked
// for runs once, and its instructions come from memory. As many units as the grid has teams at a time, one each; the teams of an SM share what is left over where it
// is little. Says whether there was any.
template <int kProduct, class W, class Fetch>
__device__ __forceinline__ bool fetch_product(const W& work, Fetch& fetch, int team, int listed) {
  const Slots& slots = work.slots;
  const ExpertParameters& p = work.p.product[kProduct];
  const int blocks = static_cast<int>(gridDim.x), all = listed * p.row_blocks, over = all % (kTeams * blocks);
  const int alone = over <= kSharedRounds * blocks && may_share(p) ? all - over : all;
  int index = static_cast<int>(blockIdx.x) + team * blocks;
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

template <class Weights, class W>
__device__ __forceinline__ void fetch_all(const W& work, int team) {
  StreamFetch<kColumns, kTeams, W, Weights> fetch(work, work.m.stream, team);
  const int listed = work.slots.make(work.p);
  if (!fetch_product<0>(work, fetch, team, listed)) work.arrive(4);
  if (!fetch_product<1>(work, fetch, team, listed)) work.wait_for_x(1);
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
  tile::wait_for_previous();
  tile::release_next();
  if (warp < kTeams) {
    fetch_all<Weights>(Work<Weights, kGated>{p, m, m.slots[warp]}, warp);
  } else {
    const int team = (warp - kTeams) / 4;
    stream_multiply<kColumns, kTeams>(Work<Weights, kGated>{p, m, m.slots[team]}, m.stream, team,
                                      (warp - kTeams) % 4);
  }
}

}  // namespace fewtokens

// Conditions of every kernel here, whatever the type of its weights.
inline void need_fewtokens(Refusal& r, const ExpertMlp::Problem& p, const DeviceInfo& d) {
  need_expert_blocks(r, ExpertMlp::up(p), d);
  need_multiple(r, "intermediate", p.intermediate, 8, "copies of 16 bytes");
  r.need(ExpertMlp::rows(p) <= fewtokens::kSlotsMost,
         "tokens * slots <= " + std::to_string(fewtokens::kSlotsMost) + " (one for each lane)",
         "tokens * slots", ExpertMlp::rows(p));
}

// Both products' weights at the rate of a stream, and what it takes to begin, to meet and to end.
struct FewTokensCost {
  double begin_us, memory_share;
};
inline double fewtokens_us(const ExpertMlp::Problem& p, const DeviceInfo& d, const FewTokensCost& of) {
  const double bytes = ExpertGemm::bytes(ExpertMlp::up(p)) + ExpertGemm::bytes(ExpertMlp::down(p));
  return of.begin_us + bytes / (of.memory_share * d.mem_bytes_per_us);
}

template <class Weights>
Status enqueue_fewtokens(std::string_view name, const ExpertMlp::Problem& p, const ExpertMlp::Args& a,
                         Workspace w, Stream stream) {
  using namespace fewtokens;
  if (p.tokens == 0) return {};
  constexpr size_t kBytes = 128 + sizeof(Memory<Weights>);
  static_assert(kBytes <= kSharedMost);
  const ExpertMlpBetween between = ExpertMlpBetween::at(w.data, p, stream.where);
  int sms = 0;
  SLUICE_TRY(check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, queue_of(stream).device),
                   "counting SMs"));
  const ExpertGemm::Problem up = ExpertMlp::up(p), down = ExpertMlp::down(p);
  const Parameters parameters{
      .product = {expert_parameters(up, ExpertMlp::up(p, a, {}, between.h)),
                  expert_parameters(down, ExpertMlp::down(a, {}, between.h, between.g))},
      .ids = a.ids.as<const int32_t>(),
      .meeting = queue_of(stream).meeting,
      .tokens_slots = static_cast<int>(ExpertMlp::rows(p))};
  const Launch how{.grid = {static_cast<unsigned>(sms), 1, 1},
                   .block = {kThreads, 1, 1},
                   .shared_bytes = kBytes,
                   .cooperative = true};
  SLUICE_TRY(launch(name, is_gated(p.act) ? expert_mlp<Weights, true> : expert_mlp<Weights, false>, how,
                    stream, parameters));
  GroupRows::Args groups;
  groups.position = a.ids;  // rows of g stand at their slots
  return launch_combine_by_slot(name, ExpertMlp::combine(p), ExpertMlp::combine(p, a, groups, between.g),
                                stream);
}

}  // namespace sluice::cuda
