// One warp chooses the experts of one token and computes their weights, with the logits in registers. Lane l
// has experts l * N to l * N + N - 1, so a lower lane has lower experts. The contract is ops/route_topk.h.
//
//  choose_experts<N, kScore>(rule, logit, bias, scratch, logit_of)   returns to lane k < top_k the k-th expert and its weight
//
// kScore: the score of the method, or kLogit for kSoftmaxAll. N: experts_per_lane(experts).
#pragma once
#include <cstdint>
#include <utility>

#include "ops/route_topk.h"
#include "ops/score_math.h"

namespace sluice::cuda::tile {

constexpr unsigned kAllLanes = 0xffffffffu;

// How the experts of a token are chosen and weighed, as a kernel parameter.
struct TokenRule {
  int experts = 0, top_k = 0, groups = 1, topk_groups = 1;
  int scratch_words = 0;  // words of shared memory per warp
  int group_lanes = 0;    // lanes per group, a power of two; 0: some group begins inside a lane
  int group_shift = 0;    // log2 of group_lanes
  RoutingRule::Weigh weigh = RoutingRule::Weigh::kScore;
  int softmax_all = 0, by_score = 0,
      sum_of_two = 0;  // booleans as whole words, which a kernel reads in one instruction
};

// The smallest supported N with 32 * N >= experts.
inline int experts_per_lane(int64_t experts) {
  for (int n : {1, 4, 8, 12, 16})
    if (experts <= 32 * n) return n;
  return 32;
}

inline TokenRule token_rule(const RouteTopk::Problem& p) {
  const RoutingRule rule = routing_rule(p.method);
  const int64_t size = p.experts / p.groups;
  TokenRule out{.experts = static_cast<int>(p.experts),
                .top_k = static_cast<int>(p.top_k),
                .weigh = rule.weigh,
                .softmax_all = rule.score == RoutingRule::Score::kSoftmaxAll,
                .by_score = RouteTopk::chooses_by_score(p)};
  if (!rule.grouped || p.topk_groups == p.groups) return out;
  const int n = experts_per_lane(p.experts);
  const int64_t lanes = size / n;
  const bool whole = size % n == 0 && (lanes & (lanes - 1)) == 0;
  out.groups = static_cast<int>(p.groups);
  out.topk_groups = static_cast<int>(p.topk_groups);
  out.scratch_words = whole ? 0 : static_cast<int>(p.experts + p.groups);
  out.group_lanes = whole ? static_cast<int>(lanes) : 0;
  while (1 << out.group_shift < out.group_lanes) ++out.group_shift;
  out.sum_of_two = p.method == RoutingMethod::kDeepSeekV3 && size > 1;
  return out;
}

// Keys are unsigned integers in the contract's order: first floats, whose bits are made monotone; below them NaN; below that "no expert".
constexpr uint32_t kNoKey = 0, kNanKey = 1;

__device__ __forceinline__ uint32_t key_of(float c) {
  // -0 + 0 is +0, so that both zeros get the same key
  const uint32_t bits = __float_as_uint(__fadd_rn(c, 0.f));
  const uint32_t key = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
  return c != c ? kNanKey : key;
}
__device__ __forceinline__ float score_of(uint32_t key) {
  const float c =
      __uint_as_float(key ^ (static_cast<uint32_t>(static_cast<int32_t>(~key) >> 31) | 0x80000000u));
  return key == kNanKey ? __uint_as_float(0x7fffffffu) : c;
}

// The compare-exchange steps of Batcher's merge exchange sort. If N is not a
// power of two, those steps of the next power of two whose indices are below N.
template <int N>
struct SortNetwork {
  int count = 0, low[N * N] = {}, high[N * N] = {};
  constexpr SortNetwork() {
    for (int p = 1; p < N; p *= 2)
      for (int k = p; k >= 1; k /= 2)
        for (int j = k % p; j + k < N; j += 2 * k)
          for (int i = j; i < j + k && i + k < N; ++i)
            if (i / (2 * p) == (i + k) / (2 * p)) low[count] = i, high[count++] = i + k;
  }
};
template <int N>
inline constexpr SortNetwork<N> kSortNetwork{};
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) { return max(a, b); }
__device__ __forceinline__ uint32_t smaller(uint32_t a, uint32_t b) { return min(a, b); }
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ float smaller(float a, float b) { return fminf(a, b); }
// Moves the larger value to index kLow.
template <int kLow, int kHigh, class T, int N>
__device__ __forceinline__ void exchange(T (&v)[N]) {
  const T most = larger(v[kLow], v[kHigh]);
  v[kHigh] = smaller(v[kLow], v[kHigh]);
  v[kLow] = most;
}
template <class T, int N, size_t... kI>
__device__ __forceinline__ void exchange_all(T (&v)[N], std::index_sequence<kI...>) {
  (exchange<kSortNetwork<N>.low[kI], kSortNetwork<N>.high[kI]>(v), ...);
}
// Sorts in descending order. Floats must not be NaN. There are no branches, and all indices are constant, so the values stay in registers.
template <class T, int N>
__device__ __forceinline__ void sort_descending(T (&v)[N]) {
  exchange_all(v, std::make_index_sequence<static_cast<size_t>(kSortNetwork<N>.count)>());
}

__device__ __forceinline__ uint32_t group_rank(uint32_t first, uint32_t second, bool sum_of_two) {
  return sum_of_two ? key_of(__fadd_rn(score_of(first), score_of(second))) : first;
}

// True if this lane's group is kept. Groups must be whole lanes. stack: this lane's keys, sorted.
template <int N>
__device__ __forceinline__ bool group_stays(const TokenRule& r, const uint32_t (&stack)[N], int lane) {
  uint32_t first = stack[0], second = N > 1 ? stack[N > 1 ? 1 : 0] : kNoKey;
#pragma unroll 1
  for (int far = 1; far < r.group_lanes; far *= 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, first, far);
    const uint32_t other_second = __shfl_xor_sync(kAllLanes, second, far);
    second = max(min(first, other), max(second, other_second));
    first = max(first, other);
  }
  const uint32_t rank = group_rank(first, second, r.sum_of_two);
  const int mine = lane >> r.group_shift;
  int before = 0;
  constexpr int kUsual = 8;  // for this many groups the loop is unrolled, so that the shuffles overlap
  const auto compare = [&](int g) {
    const uint32_t other = __shfl_sync(kAllLanes, rank, g << r.group_shift);
    before +=
        // equal ranks: the lower group comes first; no rank is 0
        other > rank - static_cast<uint32_t>(g < mine);
  };
  if (r.groups == kUsual) {
#pragma unroll
    for (int g = 0; g < kUsual; ++g) compare(g);
  } else {
#pragma unroll 1
    for (int g = 0; g < r.groups; ++g) compare(g);
  }
  return before < r.topk_groups;
}

// Replaces the keys of experts in groups that are not kept, for any group boundaries. scratch: rule.scratch_words words of this warp.
template <int N>
__device__ __forceinline__ void keep_groups(const TokenRule& r, uint32_t (&key)[N], uint32_t* scratch,
                                            int lane) {
  const int size = r.experts / r.groups;
  uint32_t* rank = scratch + r.experts;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (lane * N + i < r.experts) scratch[lane * N + i] = key[i];
  __syncwarp();
#pragma unroll 1
  for (int g = lane; g < r.groups; g += 32) {
    uint32_t first = kNoKey, second = kNoKey;
#pragma unroll 1
    for (int j = 0; j < size; ++j) {
      const uint32_t v = scratch[g * size + j];
      second = max(second, min(first, v));
      first = max(first, v);
    }
    rank[g] = group_rank(first, second, r.sum_of_two);
  }
  __syncwarp();
  uint32_t stays = 0;  // a bit for each group that this lane handles
#pragma unroll 1
  for (int g = lane; g < r.groups; g += 32) {
    int before = 0;
#pragma unroll 1
    for (int o = 0; o < r.groups; ++o) before += rank[o] > rank[g] || (rank[o] == rank[g] && o < g);
    stays |= static_cast<uint32_t>(before < r.topk_groups) << (g / 32);
  }
  __syncwarp();
#pragma unroll 1
  for (int g = lane; g < r.groups; g += 32) rank[g] = stays >> (g / 32) & 1;
  __syncwarp();
  int group = lane * N / size, within = lane * N % size;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (group < r.groups && !rank[group]) key[i] = kNoKey;
    if (++within == size) within = 0, ++group;
  }
}

// Assigns slots if several lanes had the best key of a round. In: lane r has the key of round r, and in `tied`
// the lanes that had it. Out: lane k has the key of slot k, the bit of the lane that owns it, and in `skip` how
// many equal keys of that lane come before. Equal keys are ordered by lane, then by their order within the lane.
__device__ __forceinline__ void settle_ties(int count, int lane, uint32_t& key, uint32_t& tied, int& skip) {
  uint32_t my_key = kNoKey, my_owner = 1;
#pragma unroll 1
  for (int r = 0, slot = 0; slot < count;) {
    const uint32_t v = __shfl_sync(kAllLanes, key, r);
    uint32_t owners = __shfl_sync(kAllLanes, tied, r);
    const int rounds = __popc(__ballot_sync(kAllLanes, lane >= r && lane < count && key == v));
    if (rounds == 1) {
      const int nth = lane - slot;
      slot += __popc(owners);
      if (nth >= 0 && lane < slot) {
        for (int i = 0; i < nth; ++i) owners &= owners - 1;
        my_key = v, my_owner = owners, skip = 0;
      }
    } else {
      for (; owners; owners &= owners - 1) {
        const uint32_t owner = owners & (0u - owners);
        const bool had = lane >= r && lane < r + rounds && tied & owner;
        const int times = __popc(__ballot_sync(kAllLanes, had)), nth = lane - slot;
        slot += times;
        if (nth >= 0 && lane < slot) my_key = v, my_owner = owner, skip = nth;
      }
    }
    r += rounds;
  }
  key = my_key, tied = my_owner;
}

// Returns to lane k < count the k-th best key and its expert.
// stack: this lane's keys in sorted order, or no keys; overwritten.
//
// A round removes the best key of all lanes from every lane that has it; a vote for one lane would cost a third more. After the rounds,
// settle_ties() assigns the slots if there were ties. Then lane k finds its key's expert among the keys of the lane that owns it.
template <int N>
__device__ __forceinline__ int take_best(const uint32_t (&key)[N], uint32_t (&stack)[N], int count, int lane,
                                         uint32_t* taken) {
  uint32_t mine = kNoKey, tied = 1;
  const auto round = [&](int k) {
    const uint32_t best = __reduce_max_sync(kAllLanes, stack[0]);
    const bool own = stack[0] == best;
    const uint32_t owners = __ballot_sync(kAllLanes, own);
#pragma unroll
    for (int i = 0; i + 1 < N; ++i) stack[i] = own ? stack[i + 1] : stack[i];
    stack[N - 1] = own ? kNoKey : stack[N - 1];
    mine = lane == k ? best : mine;
    tied = lane == k ? owners : tied;
  };
#pragma unroll 1
  for (int k = 0; k < count; k += 2) {
    round(k);
    round(k + 1);  // an extra round changes nothing
  }
  int skip = 0;
  if (__any_sync(kAllLanes, lane < count && (tied & (tied - 1)))) {
    settle_ties(count, lane, mine, tied, skip);
  } else if constexpr (N > 1) {
    // A lane may have equal keys. They were removed in successive rounds, and `skip` of them come before this one.
    const uint32_t last = __shfl_up_sync(kAllLanes, mine, 1), last_owner = __shfl_up_sync(kAllLanes, tied, 1);
    const bool again = lane > 0 && lane < count && last == mine && last_owner == tied;
    const uint32_t repeats = __ballot_sync(kAllLanes, again);
    if (repeats) skip = __clz(static_cast<int>(~(repeats << (31 - lane))));
  }
  *taken = mine;
  const int owner = __ffs(static_cast<int>(tied)) - 1;
  if constexpr (N == 1) {
    return owner;
  } else {
    uint32_t theirs[N], same = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) theirs[i] = __shfl_sync(kAllLanes, key[i], owner);
#pragma unroll
    for (int i = 0; i < N; ++i) same |= theirs[i] == mine ? 1u << i : 0u;
#pragma unroll 1
    for (; skip > 0; --skip) same &= same - 1;
    return owner * N + __ffs(static_cast<int>(same)) - 1;
  }
}

// The sum over lanes 0 to count - 1, in all lanes. The other lanes must pass 0.
__device__ __forceinline__ float sum_of_lanes(float v, int count) {
#pragma unroll
  for (int far = 1; far < 32; far *= 2)
    if (far < count) v += __shfl_xor_sync(kAllLanes, v, far);
  return v;
}

// The softmax over all logits of a row: their maximum, and the sum of exp(logit - maximum).
struct RowSoftmax {
  float most, sum;
};
template <int N>
__device__ __forceinline__ RowSoftmax row_softmax(const float (&logit)[N], uint32_t best) {
  RowSoftmax s{.most = score_of(best), .sum = 0};
#pragma unroll
  for (int i = 0; i < N; ++i) s.sum += expf(logit[i] - s.most);  // expf(-inf) = 0 past the last expert
  s.sum = sum_of_lanes(s.sum, 32);
  return s;
}

// The weight, before scaling, of the expert with logit x. none: this lane has no expert.
template <RoutingRule::Score kScore>
__device__ __forceinline__ float weigh(const TokenRule& r, float x, bool none, RowSoftmax row) {
  using Weigh = RoutingRule::Weigh;
  float w = x;
  if constexpr (kScore == RoutingRule::Score::kSigmoid) {
    w = score_sigmoid(x);
  } else if constexpr (kScore == RoutingRule::Score::kSqrtSoftplus) {
    w = score_sqrt_softplus(x);
  } else if (r.softmax_all) {
    w = expf(x - row.most) * score::reciprocal(row.sum);
  } else if (r.weigh == Weigh::kSoftmaxChosen) {
    const float most = __shfl_sync(kAllLanes, x, 0);  // of the first chosen expert
    w = none ? 0.f : expf(x - most);
    w *= score::reciprocal(sum_of_lanes(w, r.top_k));
  } else if (r.weigh == Weigh::kSigmoid) {
    w = score_sigmoid(x);
  }
  if (none) w = 0.f;
  if (r.weigh == Weigh::kRenormalize) w *= score::reciprocal(sum_of_lanes(w, r.top_k) + 1e-20f);
  return w;
}

struct Chosen {
  int expert;  // in lanes k < top_k; -1 in the other lanes
  float weight;
};

template <RoutingRule::Score kScore>
__device__ __forceinline__ float biased_score(float logit, float bias) {
  return __fadd_rn(kScore == RoutingRule::Score::kSigmoid ? score_sigmoid(logit) : score_sqrt_softplus(logit),
                   bias);
}
// The c of the contract, by which experts are ranked. bias: 0 if the method has none.
template <RoutingRule::Score kScore>
__device__ __forceinline__ float choice_score(const TokenRule& r, float logit, float bias) {
  if constexpr (kScore != RoutingRule::Score::kLogit)
    if (r.by_score) return biased_score<kScore>(logit, bias);
  return logit;
}

// What lane k < top_k gets: the k-th expert by c, its c, and the softmax over all c if the rule needs it.
struct Taken {
  int expert;
  float c;
  RowSoftmax row;
};
// Called by all lanes. c: of this lane's experts; -inf past the last expert. kFull: there are exactly 32 N experts, and scratch_words is 0.
template <int N, bool kFull = false>
__device__ __forceinline__ Taken take_experts(const TokenRule& r, const float (&c)[N], uint32_t* scratch) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint32_t key[N], stack[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    key[i] = key_of(c[i]);
    if constexpr (!kFull) key[i] &= static_cast<uint32_t>((lane * N + i - r.experts) >> 31);
  }
  if constexpr (!kFull)
    if (r.groups > 1 && r.group_lanes == 0) keep_groups(r, key, scratch, lane);
#pragma unroll
  for (int i = 0; i < N; ++i) stack[i] = key[i];
  sort_descending(stack);
  RowSoftmax row{};
  if (r.softmax_all) row = row_softmax(c, __reduce_max_sync(kAllLanes, stack[0]));
  if (r.groups > 1 && r.group_lanes > 0 && !group_stays(r, stack, lane)) {
#pragma unroll
    for (int i = 0; i < N; ++i) stack[i] = kNoKey;
  }
  uint32_t taken;
  const int expert = take_best(key, stack, r.top_k, lane, &taken);
  return {lane < r.top_k ? expert : -1, score_of(taken), row};
}

// Computes the weights of the chosen experts. logit_of(expert) returns
// a logit of this row; it is called if experts were chosen by scores.
template <RoutingRule::Score kScore, class LogitOf>
__device__ __forceinline__ Chosen weigh_taken(const TokenRule& r, const Taken& taken, LogitOf logit_of) {
  float x = taken.c;
  if constexpr (kScore != RoutingRule::Score::kLogit)
    if (r.by_score && taken.expert >= 0) x = logit_of(taken.expert);
  return {taken.expert, weigh<kScore>(r, x, taken.expert < 0, taken.row)};
}

// Chooses experts and computes their weights. logit: -inf past the last expert. kFull: as in take_experts().
template <int N, RoutingRule::Score kScore, bool kFull = false, class LogitOf>
__device__ __forceinline__ Chosen choose_experts(const TokenRule& r, const float (&logit)[N],
                                                 const float (&bias)[N], uint32_t* scratch,
                                                 LogitOf logit_of) {
  float c[N];
#pragma unroll
  for (int i = 0; i < N; ++i) c[i] = logit[i];
  if constexpr (kScore != RoutingRule::Score::kLogit) {
    if (r.by_score) {  // one branch for all experts of the lane
#pragma unroll
      for (int i = 0; i < N; ++i) c[i] = biased_score<kScore>(logit[i], bias[i]);
    }
  }
  return weigh_taken<kScore>(r, take_experts<N, kFull>(r, c, scratch), logit_of);
}

}  // namespace sluice::cuda::tile
