// A team of threads chooses the experts of one token and computes their weights, one thread per
// expert. This is for few tokens, where the time per token is the chain of dependent instructions
// of a warp (docs/lab/cuda-routing.md). A thread computes the score of its expert and counts how
// many scores are better, so there is no loop over slots. The contract is ops/route_topk.h.
//
// Keys are scores as integers. The rank of a key in its warp is the number of the warp's keys that come before it. Only the first kList keys of a warp
// can be among the top_k, so every warp lists those. The slot of a key is its rank plus the number of keys in the other warps' lists that come before it.
//
//  choose_by_team<kExperts, kList, kKind>(...)   the thread of a chosen expert gets its slot; other threads get at least kList
//   weigh_by_team<...>(...)                       lane k < top_k of a warp gets the k-th expert and its weight
#pragma once
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/team.h"
#include "backends/cuda/tile/topk.cuh"
#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda::tile {

constexpr int kNoExpert = 0xffff;  // fits in 16 bits

// Shared memory of a team.
template <int kExperts, int kList>
struct alignas(16) TeamMemory {
  static constexpr int kWarps = kExperts / 32;
  uint32_t key[kExperts];
  uint32_t list[kWarps * kList];  // the first kList keys of each warp, in order
  uint16_t id[8];                 // per slot; 16 bytes, sent as one chunk; kNoExpert from top_k on
  float x[8];                     // per slot: what the weight is computed from
  float sum[kWarps];              // per warp: sum of exponentials
};

// before += (key > ~bound), in two instructions: the carry of key + bound, and an addition with
// carry. For a comparison the compiler emits three instructions that depend on each other.
__device__ __forceinline__ void count_above(uint32_t& before, uint32_t key, uint32_t bound) {
  asm("{ .reg .u32 sum; add.cc.u32 sum, %1, %2; addc.u32 %0, %0, 0; }" : "+r"(before) : "r"(key), "r"(bound));
}
// A count of keys in four independent parts, which shortens the chain of dependent additions.
struct KeyCount {
  uint32_t part[4] = {};
  __device__ __forceinline__ void above(uint4 keys, uint32_t bound) {
    count_above(part[0], keys.x, bound);
    count_above(part[1], keys.y, bound);
    count_above(part[2], keys.z, bound);
    count_above(part[3], keys.w, bound);
  }
  __device__ __forceinline__ uint32_t all() const { return part[0] + part[1] + (part[2] + part[3]); }
};
// The bound with which count_above() counts the keys > `mine`, or >= `mine` if not_below. No key is 0.
__device__ __forceinline__ uint32_t bound_of(uint32_t mine, bool not_below) {
  return ~mine + static_cast<uint32_t>(not_below);
}

// The number of the warp's 32 keys in shared memory that come before this lane's key.
__device__ __forceinline__ uint32_t rank_in_warp(const uint32_t* keys, uint32_t mine, uint32_t lane) {
  const uint4* four = reinterpret_cast<const uint4*>(keys);
  KeyCount before;
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) before.above(four[i], bound_of(mine, i < lane / 4));
  const uint4 near = four[lane / 4];  // among these four keys, ties go to the lower lane
  const uint32_t at = lane % 4;
  const int ties = (at > 0 && near.x == mine) + (at > 1 && near.y == mine) + (at > 2 && near.z == mine);
  return before.all() + static_cast<uint32_t>(ties);
}

// A mask of the kept groups. Called by all lanes. lists: the lists of all kTeamGroups warps, one per group.
template <int kList>
__device__ __forceinline__ uint32_t groups_kept(const uint32_t* lists, uint32_t lane) {
  const uint32_t group = lane % kTeamGroups;
  const uint2 two = *reinterpret_cast<const uint2*>(lists + group * kList);
  const uint32_t rank = key_of(__fadd_rn(score_of(two.x), score_of(two.y)));
  uint32_t before[2] = {};
#pragma unroll
  for (uint32_t g = 0; g < kTeamGroups; ++g)
    count_above(before[g % 2], __shfl_sync(kAllLanes, rank, static_cast<int>(g)), bound_of(rank, g < group));
  return __ballot_sync(kAllLanes, lane < kTeamGroups && before[0] + before[1] < kTeamGroupsKept);
}

// Counts the keys in the list of warp `from` that come before key `mine` of warp `warp`.
template <int kList>
__device__ __forceinline__ void count_in_list(KeyCount& before, const uint32_t* lists, uint32_t from,
                                              uint32_t warp, uint32_t mine) {
  const uint32_t bound = from == warp ? 0 : bound_of(mine, from < warp);
#pragma unroll
  for (int i = 0; i < kList; i += 4)
    before.above(*reinterpret_cast<const uint4*>(lists + from * kList + i), bound);
}

__device__ __forceinline__ float load_logit(const void* logits, int64_t at, int bf16) {
  float logit = 0;
  if (bf16) logit = to_f32(static_cast<const __nv_bfloat16*>(logits)[at]);
  if (!bf16) logit = static_cast<const float*>(logits)[at];
  return logit;
}

struct TeamChoice {
  int slot;  // >= kList: not chosen
  // What the weight of this thread's expert is computed from: its score if the rule chooses by scores, otherwise its logit.
  float x;
  RowSoftmax row;  // only `most` is set, and only if weights are a softmax over all experts
};

// The slot of expert `e`, which belongs to this thread. Called by all threads
// of the team, after clear_team(). sync() is a barrier over the team.
template <int kExperts, int kList, TeamKind kKind, class Sync>
__device__ __forceinline__ TeamChoice choose_by_team(TeamMemory<kExperts, kList>& m, float logit, float bias,
                                                     uint32_t e, Sync sync) {
  constexpr int kWarps = kExperts / 32;
  constexpr TeamRule kRule = kTeamRules[kKind];
  const uint32_t lane = e % 32, warp = e / 32;
  float c = logit;
  TeamChoice out{.slot = kList, .x = logit, .row = {}};
  if constexpr (kRule.by_score) {
    out.x = kRule.score == RoutingRule::Score::kSigmoid ? score_sigmoid(logit) : score_sqrt_softplus(logit);
    c = __fadd_rn(out.x, bias);
  }
  const uint32_t mine = key_of(c);
  m.key[e] = mine;
  __syncwarp();
  const uint32_t rank = rank_in_warp(m.key + warp * 32, mine, lane);
  if (rank < kList) m.list[warp * kList + rank] = mine;
  sync();
  if constexpr (kRule.score == RoutingRule::Score::kSoftmaxAll) {
    uint32_t best = kNoKey;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) best = max(best, m.list[w * kList]);
    out.row.most = score_of(best);
    const float sum = sum_of_lanes(expf(logit - out.row.most), 32);
    if (lane == 0) m.sum[warp] = sum;
  }
  KeyCount before;
  if constexpr (kRule.grouped) {
    static_assert(kWarps == kTeamGroups);
    uint32_t kept = groups_kept<kList>(m.list, lane);
    if (!(kept >> warp & 1)) return out;
#pragma unroll
    for (int i = 0; i < kTeamGroupsKept; ++i) {
      count_in_list<kList>(before, m.list, static_cast<uint32_t>(__ffs(static_cast<int>(kept)) - 1), warp,
                           mine);
      kept &= kept - 1;
    }
  } else {
#pragma unroll 4
    for (uint32_t w = 0; w < kWarps; ++w) count_in_list<kList>(before, m.list, w, warp, mine);
  }
  if (rank < kList) out.slot = rank + before.all();
  return out;
}

template <int kExperts, int kList>
__device__ __forceinline__ void clear_team(TeamMemory<kExperts, kList>& m, uint32_t e) {
  if (e < 8) m.id[e] = kNoExpert;
}

// Called by the thread of a chosen expert: stores the expert for weigh_by_team().
template <int kExperts, int kList>
__device__ __forceinline__ void leave_choice(TeamMemory<kExperts, kList>& m, const TeamChoice& mine,
                                             uint32_t e) {
  m.id[mine.slot] = static_cast<uint16_t>(e);
  m.x[mine.slot] = mine.x;
}

// The sum over kList adjacent lanes, in every one of them.
template <int kList>
__device__ __forceinline__ float sum_of_list(float v) {
#pragma unroll
  for (int far = 1; far < kList; far *= 2) v += __shfl_xor_sync(kAllLanes, v, far);
  return v;
}

// The weight, before scaling, of a slot with input x. A token's slots are in kList adjacent
// lanes. first: x of slot 0. most, sum: maximum and sum of the softmax over all experts.
template <int kList, TeamKind kKind>
__device__ __forceinline__ float weigh_slot(float x, float first, float most, float sum, bool real) {
  using Score = RoutingRule::Score;
  using Weigh = RoutingRule::Weigh;
  constexpr TeamRule kRule = kTeamRules[kKind];
  float w = x;
  if constexpr (kRule.score == Score::kSoftmaxAll) {
    w = expf(x - most) * score::reciprocal(sum);
  } else if constexpr (kRule.weigh == Weigh::kSoftmaxChosen) {
    w = real ? expf(x - first) : 0.f;
    w *= score::reciprocal(sum_of_list<kList>(w));
  }
  if (!real) w = 0.f;
  if constexpr (kRule.weigh == Weigh::kRenormalize) w *= score::reciprocal(sum_of_list<kList>(w) + 1e-20f);
  return w;
}

// Returns to lane k < top_k the k-th expert and its weight before scaling. Called
// by a whole warp of the team, after leave_choice() and a barrier over the team.
template <int kExperts, int kList, TeamKind kKind>
__device__ __forceinline__ Chosen weigh_by_team(const TeamMemory<kExperts, kList>& m, uint32_t top_k,
                                                float most, uint32_t lane) {
  const uint32_t slot = lane % kList;
  float sum = 0;
  if constexpr (kTeamRules[kKind].score == RoutingRule::Score::kSoftmaxAll) {
#pragma unroll
    for (int i = 0; i < kExperts / 32; ++i) sum += m.sum[i];
  }
  return {static_cast<int>(m.id[slot]), weigh_slot<kList, kKind>(m.x[slot], m.x[0], most, sum, slot < top_k)};
}

}  // namespace sluice::cuda::tile
