// kLanes adjacent lanes of a warp choose the experts of one token and compute their
// weights: lane s of them has experts s * N to s * N + N - 1. This is for many tokens,
// where the time per token is its number of instructions: with 8 lanes per token, an
// instruction of a warp processes 4 tokens. The contract is ops/route_topk.h.
//
// A lane sorts its values c (what the rule ranks experts by) with networks of minima and maxima and keeps the kList best. The lanes merge
// their lists, so that all have the token's list. Experts with c >= the last entry of that list are chosen. A lane lists its chosen experts in
// shared memory; then each lane of the token handles one listed expert and counts its slot. Networks of floats do not handle NaN, and a list
// has kMax entries at most. So a row with NaN, or with more ties for the last slot than that, is processed by the whole warp (tile/topk.cuh).
#pragma once
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/few_tokens.cuh"
#include "backends/cuda/tile/shared.cuh"
#include "backends/cuda/tile/warp.cuh"

namespace sluice::cuda::tile {

template <int kExperts, int kList, int kLanes>
struct LaneShape {
  static constexpr int kPerLane = kExperts / kLanes;
  static constexpr int kTokens = 32 / kLanes;                  // tokens per warp
  static constexpr uint32_t kMax = kLanes < 16 ? kLanes : 16;  // most entries in a token's list of experts
  // Bytes between the parts of adjacent lanes in a row in shared memory; elements have kElement bytes. If a part is whole
  // 16-byte chunks, the stride is an odd number of chunks, so that 16-byte reads of adjacent lanes have no bank conflicts.
  template <int kElement>
  static constexpr int kPitch = kPerLane* kElement % 16 ? kPerLane* kElement
                                                        : (kPerLane* kElement / 16 | 1) * 16;
  template <int kElement>
  static constexpr int kRowBytes = kLanes* kPitch<kElement>;
};

// Shared memory of a warp, besides its rows.
template <int kTokens>
struct LaneMemory {
  uint16_t list[32];  // [tokens, kLanes]: the experts with c >= the last slot's c
  struct {
    float x[8];  // per slot: what the weight is computed from
    uint16_t id[8];
  } slot[kTokens];
};

// A row of bf16 or f32 in shared memory.
template <class Shape>
struct LaneRow {
  std::byte* start;
  int bf16;
  __device__ __forceinline__ float operator[](uint32_t expert) const {
    constexpr uint32_t n = Shape::kPerLane;
    const uint32_t lane = expert / n, at = expert % n;
    float out = 0;
    if (bf16)
      out = to_f32(reinterpret_cast<const __nv_bfloat16*>(start + lane * Shape::template kPitch<2>)[at]);
    if (!bf16) out = reinterpret_cast<const float*>(start + lane * Shape::template kPitch<4>)[at];
    return out;
  }
  // Loads one lane's elements.
  __device__ __forceinline__ void load(float (&out)[Shape::kPerLane], uint32_t lane) const {
    if (bf16) {
      load_part(out, reinterpret_cast<const __nv_bfloat16*>(start + lane * Shape::template kPitch<2>));
    } else {
      load_part(out, reinterpret_cast<const float*>(start + lane * Shape::template kPitch<4>));
    }
  }
  // Stores one lane's elements to a row of f32.
  __device__ __forceinline__ void store(const float (&values)[Shape::kPerLane], uint32_t lane) const {
    constexpr int kWhole = Shape::kPerLane < 4 ? Shape::kPerLane : 4;
    auto* part = reinterpret_cast<float*>(start + lane * Shape::template kPitch<4>);
#pragma unroll
    for (int i = 0; i < Shape::kPerLane; i += kWhole) {
      float few[kWhole];
#pragma unroll
      for (int j = 0; j < kWhole; ++j) few[j] = values[i + j];
      tile::store<kWhole>(part + i, few);
    }
  }
  template <class T>
  static __device__ __forceinline__ void load_part(float (&out)[Shape::kPerLane], const T* part) {
    constexpr int kEach =
        static_cast<int>(16 / sizeof(T)) < Shape::kPerLane ? 16 / sizeof(T) : Shape::kPerLane;
    constexpr int kWhole = Shape::kPerLane % kEach == 0 ? kEach : 4;
#pragma unroll
    for (int i = 0; i < Shape::kPerLane; i += kWhole) {
      float few[kWhole];
      tile::load<kWhole>(few, part + i);
#pragma unroll
      for (int j = 0; j < kWhole; ++j) out[i + j] = few[j];
    }
  }
};

// Issues the copies of a row to shared memory, by kLanes lanes; the caller commits the group. whole: the row is aligned to 16 bytes.
template <class Shape, int kLanes, class T>
__device__ __forceinline__ void fetch_row(std::byte* to, const T* row, int whole, uint32_t lane) {
  constexpr int kElement = sizeof(T), kPart = Shape::kPerLane * kElement;
  constexpr uint32_t kExperts = Shape::kPerLane * kLanes, kCuts = kExperts * kElement / 16;
  constexpr int kPitch = Shape::template kPitch<kElement>;
  if (whole) {
#pragma unroll
    for (uint32_t i = 0; i < kCuts; i += kLanes) {
      const uint32_t from = (i + lane) * 16, at = kPart % 16 ? from : from / kPart * kPitch + from % kPart;
      if (kCuts % kLanes == 0 || i + lane < kCuts)
        copy_16(shared_address(to + at), reinterpret_cast<const std::byte*>(row) + from, true);
    }
  } else {
#pragma unroll 4
    for (uint32_t e = lane; e < kExperts; e += kLanes)
      reinterpret_cast<T*>(to + e / Shape::kPerLane * kPitch)[e % Shape::kPerLane] = row[e];
  }
}

// Replaces v by the kList best of both lists, the largest first.
template <int kList>
__device__ __forceinline__ void merge_best(float (&v)[kList], const float (&other)[kList]) {
#pragma unroll
  for (int i = 0; i < kList; ++i) v[i] = fmaxf(v[i], other[kList - 1 - i]);
#pragma unroll
  for (int far = kList / 2; far >= 1; far /= 2)
#pragma unroll
    for (int i = 0; i < kList; ++i)
      if (!(i & far)) {
        const float most = fmaxf(v[i], v[i + far]);
        v[i + far] = fminf(v[i], v[i + far]);
        v[i] = most;
      }
}

// v = the best values of a lane's c, the largest first, then -inf.
template <int kList, int N>
__device__ __forceinline__ void best_of_lane(float (&v)[kList], const float (&c)[N]) {
#pragma unroll
  for (int start = 0; start < N; start += kList) {
    float next[kList];
#pragma unroll
    for (int i = 0; i < kList; ++i) next[i] = start + i < N ? c[start + i < N ? start + i : 0] : -INFINITY;
    sort_descending(next);
    if (start == 0) {
#pragma unroll
      for (int i = 0; i < kList; ++i) v[i] = next[i];
    } else {
      merge_best(v, next);
    }
  }
}
// Merges the lists of two lanes at distance `far`; both get the result.
template <int kList>
__device__ __forceinline__ void merge_lanes(float (&v)[kList], int far) {
  float other[kList];
#pragma unroll
  for (int i = 0; i < kList; ++i) other[i] = __shfl_xor_sync(kAllLanes, v[i], far);
  merge_best(v, other);
}

// True if this lane's group is kept. A group is in kEach lanes; first, second: its two best values. *odd becomes true if their sum is NaN.
template <int kEach>
__device__ __forceinline__ bool group_stays(float first, float second, uint32_t lane, bool* odd) {
  const float sum = __fadd_rn(first, second);
  if (sum != sum) *odd = true;
  const uint32_t rank = key_of(sum), mine = lane / kEach;
  uint32_t before[2] = {};
#pragma unroll
  for (uint32_t g = 0; g < kTeamGroups; ++g) {
    const uint32_t other = __shfl_sync(kAllLanes, rank, static_cast<int>(g * kEach), kEach * kTeamGroups);
    count_above(before[g % 2], other, bound_of(rank, g < mine));
  }
  return before[0] + before[1] < kTeamGroupsKept;
}

// The c of an expert: x, plus the bias if the rule chooses by scores. x: what its weight is computed from.
template <TeamKind kKind, class Shape>
__device__ __forceinline__ float choice_of(float x, const LaneRow<Shape>& bias, uint32_t expert) {
  if constexpr (kTeamRules[kKind].by_score) return __fadd_rn(x, bias[expert]);
  return x;
}

// Computes the slots of one token with the whole warp, for any values in its row. Not inlined, because it is rarely called.
template <int kExperts, TeamKind kKind, class Shape, class Slots>
__device__ __noinline__ void choose_by_warp(const TokenRule& rule, LaneRow<Shape> row, LaneRow<Shape> bias,
                                            Slots* slots) {
  constexpr int n = kExperts / 32;
  const uint32_t lane = threadIdx.x % 32;
  float c[n];
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    const uint32_t e = lane * n + static_cast<uint32_t>(i);
    const float made = choice_of<kKind>(row[e], bias, e);
#pragma unroll
    for (int j = 0; j < n; ++j) c[j] = j == i ? made : c[j];
  }
  const Taken taken = take_experts<n, true>(rule, c, nullptr);
  if (taken.expert < 0) return;
  slots->id[lane] = static_cast<uint16_t>(taken.expert);
  slots->x[lane] = row[static_cast<uint32_t>(taken.expert)];
}

// v = the best c of a token, from its lanes' c. Returns false in the lanes of groups that are not kept.
template <int kLanes, TeamKind kKind, int kList, int N>
__device__ __forceinline__ bool best_of_token(float (&v)[kList], const float (&c)[N], uint32_t sub,
                                              bool* odd) {
  constexpr TeamRule kRule = kTeamRules[kKind];
  constexpr int kEach = kRule.grouped ? 32 / N : 1;  // lanes per group
  best_of_lane(v, c);
  bool stays = true;
#pragma unroll
  for (int far = 1; far < kEach; far *= 2) merge_lanes(v, far);
  if constexpr (kRule.grouped) {
    stays = group_stays<kEach>(v[0], v[1], sub, odd);
#pragma unroll
    for (int i = 0; i < kList; ++i) v[i] = stays ? v[i] : -INFINITY;
  }
#pragma unroll
  for (int far = kEach; far < kLanes; far *= 2) merge_lanes(v, far);
  return stays;
}

// Converts a lane's logits to scores, which replace the logits in the row, and sets c to score plus bias.
template <TeamKind kKind, class Shape>
__device__ __forceinline__ void score_row(float (&c)[Shape::kPerLane], LaneRow<Shape>& row,
                                          const LaneRow<Shape>& bias, uint32_t sub) {
  constexpr uint32_t n = Shape::kPerLane;
  float b[n], made[n];
  bias.load(b, sub);
#pragma unroll
  for (uint32_t i = 0; i < n; ++i) {
    made[i] = kTeamRules[kKind].score == RoutingRule::Score::kSigmoid ? score_sigmoid(c[i])
                                                                      : score_sqrt_softplus(c[i]);
    c[i] = __fadd_rn(made[i], b[i]);
  }
  __syncwarp();  // all lanes have read their logits; bf16 logits are narrower than the scores that replace them
  row.bf16 = 0;
  row.store(made, sub);
}

// Writes the experts in a lane's `mask` to the list, beginning at list[at].
template <class Shape, class Mask>
__device__ __forceinline__ void list_chosen(uint16_t* list, Mask mask, uint32_t at, uint32_t sub) {
  constexpr uint32_t n = Shape::kPerLane;
#pragma unroll 1
  for (; mask; ++at) {
    const int i = n > 32 ? __ffsll(static_cast<long long>(mask)) : __ffs(static_cast<int>(mask));
    list[at] = static_cast<uint16_t>(sub * n + static_cast<uint32_t>(i) - 1);
    mask &= mask - 1;
  }
}

// The slot of a lane's listed expert: the number of listed experts that come before it.
// own: its c. v: the token's best c. all: the number of listed experts. If some c are
// equal, the lower expert comes first; then the lanes' entries are compared one by one.
template <int kLanes, class Shape, int kList>
__device__ __forceinline__ uint32_t rank_of(const float (&v)[kList], float own, uint32_t expert, uint32_t all,
                                            int top_k, bool odd) {
  uint32_t rank = 0;
  bool ties = all != static_cast<uint32_t>(top_k);
#pragma unroll
  for (int i = 0; i < kList; ++i) {
    rank += v[i] > own;
    if (i > 0) ties |= v[i] == v[i - 1];
  }
  if (__any_sync(kAllLanes, ties && !odd)) {
    rank = 0;
#pragma unroll 1
    for (int i = 0; i < static_cast<int>(Shape::kMax); ++i) {
      const float other = __shfl_sync(kAllLanes, own, i, kLanes);
      const uint32_t other_expert = __shfl_sync(kAllLanes, expert, i, kLanes);
      if (i < static_cast<int>(all)) rank += other > own || (other == own && other_expert < expert);
    }
  }
  return rank;
}

// rows: logits of the warp's tokens in shared memory, kRowBytes<4> apart; if the rule chooses by scores,
// they are replaced by scores. Returns slot s to lane s < top_k of a token's lanes. Called by all lanes.
template <int kExperts, int kList, int kLanes, TeamKind kKind>
__device__ __forceinline__ Chosen choose_by_lanes(const TokenRule& rule, std::byte* rows, int bf16,
                                                  float* bias_row, LaneMemory<32 / kLanes>& m) {
  using Shape = LaneShape<kExperts, kList, kLanes>;
  constexpr TeamRule kRule = kTeamRules[kKind];
  constexpr uint32_t n = Shape::kPerLane;
  const uint32_t lane = threadIdx.x % 32, sub = lane % kLanes, token = lane / kLanes;
  LaneRow<Shape> row{rows + token * Shape::template kRowBytes<4>, bf16};
  const LaneRow<Shape> bias{reinterpret_cast<std::byte*>(bias_row), 0};
  float c[n];
  row.load(c, sub);
  if constexpr (kRule.by_score) score_row<kKind>(c, row, bias, sub);
  bool odd = false;
#pragma unroll
  for (uint32_t i = 0; i < n; i += 2)
    odd |= !(c[i] <= c[i + 1 < n ? i + 1 : i] || c[i] > c[i + 1 < n ? i + 1 : i]);
  float v[kList];
  const bool stays = best_of_token<kLanes, kKind>(v, c, sub, &odd);
  float last = v[kList - 1];
#pragma unroll
  for (int i = 0; i + 1 < kList; ++i) last = rule.top_k == i + 1 ? v[i] : last;
  float sum = 0;  // of the softmax over all experts
  if constexpr (kRule.score == RoutingRule::Score::kSoftmaxAll) {
#pragma unroll
    for (uint32_t i = 0; i < n; ++i) sum += expf(c[i] - v[0]);
#pragma unroll
    for (int far = 1; far < kLanes; far *= 2) sum += __shfl_xor_sync(kAllLanes, sum, far);
  }
  using Mask = std::conditional_t<(n > 32), uint64_t, uint32_t>;
  Mask mask = 0;
#pragma unroll
  for (uint32_t i = 0; i < n; ++i) mask |= c[i] >= last ? Mask{1} << i : Mask{0};
  if (!stays) mask = 0;
  const uint32_t count = n > 32 ? __popcll(mask) : __popc(static_cast<uint32_t>(mask));
  uint32_t up_to = count;
  add_lanes_before<kLanes, kLanes>(static_cast<int>(sub), up_to);
  const uint32_t all = __shfl_sync(kAllLanes, up_to, kLanes - 1, kLanes);
  odd |= all < static_cast<uint32_t>(rule.top_k) || all > Shape::kMax;
  constexpr uint32_t kOwn = kLanes == 32 ? kAllLanes : (1u << kLanes % 32) - 1;
  const uint32_t odd_lanes = __ballot_sync(kAllLanes, odd);
  odd = odd_lanes >> token * kLanes & kOwn;
  if (odd) mask = 0;
  uint16_t* list = m.list + token * kLanes;
  list_chosen<Shape>(list, mask, up_to - count, sub);
  __syncwarp();
  const bool mine = !odd && sub < all;
  const uint32_t expert = mine ? list[sub] : 0;
  const float x = row[expert], own = choice_of<kKind>(x, bias, expert);
  const uint32_t rank = rank_of<kLanes, Shape>(v, own, expert, all, rule.top_k, odd);
  if (mine && rank < static_cast<uint32_t>(rule.top_k)) {
    m.slot[token].id[rank] = static_cast<uint16_t>(expert);
    m.slot[token].x[rank] = x;
  }
  if (odd_lanes) {
#pragma unroll 1
    for (uint32_t q = 0; q < Shape::kTokens; ++q)
      if (odd_lanes >> q * kLanes & kOwn)
        choose_by_warp<kExperts, kKind>(
            rule, LaneRow<Shape>{rows + q * Shape::template kRowBytes<4>, row.bf16}, bias, &m.slot[q]);
  }
  __syncwarp();
  const auto& slot = m.slot[token];
  const uint32_t own_slot = sub % kList;
  return {slot.id[own_slot], weigh_slot<kList, kKind>(slot.x[own_slot], slot.x[0], v[0], sum,
                                                      own_slot < static_cast<uint32_t>(rule.top_k))};
}

}  // namespace sluice::cuda::tile
