// Top-k routing by a tournament. The best key of each block (one vector of keys) is kept. Each of the top_k
// rounds finds the best block, chooses its first best lane, and computes the best key of only that block again.
//
// Wins    always: it is the only kernel of RouteTopk on a CPU. A round costs two horizontal maxima,
//         whatever the data. Sorted or equal rows, which make insertion into a running top-k slow, cost the same as random rows.
// Limits  experts <= 1024 and top_k <= 32 (buffers on the stack), as in the contract.
// Source  original; the contract, including ties, is ops/route_topk.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/route_topk_tournament.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include <algorithm>
#include <bit>
#include <limits>

#include "backends/cpu/card.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/score.h"
#include "ops/route_topk.h"

#ifndef SLUICE_ROUTE_TOPK_TOURNAMENT_ONCE
#define SLUICE_ROUTE_TOPK_TOURNAMENT_ONCE
namespace sluice::cpu {

constexpr int64_t kRouteExpertsMax = 1024, kRouteTopKMax = 32;

// The chosen experts (-1: none) and their weights before scaling.
struct RouteChoice {
  int32_t id[kRouteTopKMax];
  float weight[kRouteTopKMax];
};

}  // namespace sluice::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

using I32 = hn::ScalableTag<int32_t>;
using Score = RoutingRule::Score;
using Weigh = RoutingRule::Weigh;

// Keys are integers, larger for better experts. Numbers come first (the bits of the float, made ascending),
// then NaN, then experts that may not be chosen or are already chosen.
constexpr int32_t kRemoved = std::numeric_limits<int32_t>::min();
constexpr int32_t kNanKey = kRemoved + 1;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

constexpr int64_t kPad = static_cast<int64_t>(hn::MaxLanes(F32()));

// The state of one token. Rows are padded to whole vectors.
struct Row {
  HWY_ALIGN float logit[kRouteExpertsMax + kPad];         // padded with -inf
  HWY_ALIGN int32_t key[kRouteExpertsMax + kPad];         // padded with kRemoved
  HWY_ALIGN int32_t group_key[kRouteExpertsMax + kPad];   // padded with kRemoved
  HWY_ALIGN int32_t group[kRouteExpertsMax];              // the groups that are kept
  HWY_ALIGN int32_t block_best[kRouteExpertsMax + kPad];  // scratch of take_best
};

HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(F32())); }
HWY_INLINE int64_t whole_vectors(int64_t n) { return (n + lanes() - 1) / lanes() * lanes(); }

HWY_INLINE int32_t best_lane(hn::Vec<I32> v) { return hn::GetLane(hn::MaxOfLanes(I32(), v)); }

HWY_INLINE hn::Vec<I32> key_v(hn::Vec<F32> c) {
  const I32 di;
  const auto bits = hn::BitCast(di, hn::Add(c, hn::Zero(F32())));  // -0 + 0 is +0, so -0 and +0 are equal
  const auto monotone = hn::Xor(bits, hn::And(hn::ShiftRight<31>(bits), hn::Set(di, 0x7fffffff)));
  return hn::IfThenElse(hn::RebindMask(di, hn::IsNaN(c)), hn::Set(di, kNanKey), monotone);
}
inline int32_t key_of(float c) {
  const int32_t bits = std::bit_cast<int32_t>(c + 0.f);
  return c != c ? kNanKey : bits ^ ((bits >> 31) & 0x7fffffff);
}
inline float score_of(int32_t key) {
  if (key == kNanKey) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff));
}

template <class L>
HWY_INLINE void widen(const L* HWY_RESTRICT from, int64_t n, float* HWY_RESTRICT to) {
  const F32 d;
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) hn::StoreU(load_f32(from + i), d, to + i);
  for (; i < n; ++i) to[i] = scalar_f32(from[i]);
  std::fill(to + n, to + whole_vectors(n), kMinusInf);
}

HWY_INLINE hn::Vec<F32> score_v(Score score, hn::Vec<F32> x) {
  return score == Score::kSigmoid ? sigmoid_v(x) : sqrt_softplus_v(x);
}
HWY_INLINE float score_one(Score score, float x) {
  return score == Score::kSigmoid ? score_sigmoid(x) : score_sqrt_softplus(x);
}

// key[e] from c[e], for each expert.
void make_keys(const RouteTopk::Problem& p, const RouteTopk::Args& a, Row& row) {
  const F32 d;
  const I32 di;
  const Score score = routing_rule(p.method).score;
  const bool by_score = RouteTopk::chooses_by_score(p);
  const float* bias = p.bias ? a.bias.as<const float>() : nullptr;
  int64_t i = 0;
  for (; i + lanes() <= p.experts; i += lanes()) {
    auto c = hn::Load(d, row.logit + i);
    if (by_score) c = score_v(score, c);
    if (bias) c = hn::Add(c, hn::LoadU(d, bias + i));
    hn::Store(key_v(c), di, row.key + i);
  }
  for (; i < p.experts; ++i) {
    float c = row.logit[i];
    if (by_score) c = score_one(score, c);
    if (bias) c += bias[i];
    row.key[i] = key_of(c);
  }
  std::fill(row.key + p.experts, row.key + whole_vectors(p.experts), kRemoved);
}

// Finds the indices of the `count` largest of key[n], largest first, equal keys by
// index, and removes them. key is aligned and padded with kRemoved to whole vectors.
void take_best(int32_t* key, int64_t n, int64_t count, int32_t* block_best, int32_t* out) {
  const I32 di;
  const int64_t blocks = whole_vectors(n) / lanes();
  for (int64_t b = 0; b < blocks; ++b) block_best[b] = best_lane(hn::Load(di, key + b * lanes()));
  std::fill(block_best + blocks, block_best + whole_vectors(blocks), kRemoved);
  for (int64_t k = 0; k < count; ++k) {
    auto largest = hn::Load(di, block_best);
    for (int64_t b = lanes(); b < blocks; b += lanes())
      largest = hn::Max(largest, hn::Load(di, block_best + b));
    largest = hn::MaxOfLanes(di, largest);
    int64_t block = 0;
    for (int64_t b = 0; b < blocks; b += lanes()) {
      const intptr_t found = hn::FindFirstTrue(di, hn::Eq(hn::Load(di, block_best + b), largest));
      block = b + found;
      if (found >= 0) break;
    }
    int32_t* at = key + block * lanes();
    const auto keys = hn::Load(di, at);
    const intptr_t lane = hn::FindFirstTrue(di, hn::Eq(keys, largest));
    const auto here = hn::Eq(hn::Iota(di, 0), hn::Set(di, static_cast<int32_t>(lane)));
    const auto rest = hn::IfThenElse(here, hn::Set(di, kRemoved), keys);
    hn::Store(rest, di, at);
    block_best[block] = best_lane(rest);
    out[k] = static_cast<int32_t>(block * lanes() + lane);
  }
}

// The rank of the group whose keys start at `key`, as a key.
int32_t group_rank(const int32_t* key, int64_t size, bool sum_of_two) {
  const I32 di;
  auto first = hn::Set(di, kRemoved), second = first;  // per lane
  for (int64_t i = 0; i < size; i += lanes()) {
    const auto inside = hn::FirstN(di, static_cast<size_t>(std::min(lanes(), size - i)));
    const auto v = hn::IfThenElse(inside, hn::LoadU(di, key + i), hn::Set(di, kRemoved));
    second = hn::Max(second, hn::Min(first, v));
    first = hn::Max(first, v);
  }
  const auto best = hn::MaxOfLanes(di, first);
  if (!sum_of_two) return hn::GetLane(best);
  const intptr_t lane = hn::FindFirstTrue(di, hn::Eq(first, best));
  const auto here = hn::Eq(hn::Iota(di, 0), hn::Set(di, static_cast<int32_t>(lane)));
  const int32_t runner_up = best_lane(hn::IfThenElse(here, second, first));
  return key_of(score_of(hn::GetLane(best)) + score_of(runner_up));
}

// Removes the experts of the groups that are not kept.
void keep_groups(const RouteTopk::Problem& p, Row& row) {
  const int64_t size = p.experts / p.groups;
  const bool sum_of_two = p.method == RoutingMethod::kDeepSeekV3 && size > 1;
  for (int64_t g = 0; g < p.groups; ++g) row.group_key[g] = group_rank(row.key + g * size, size, sum_of_two);
  std::fill(row.group_key + p.groups, row.group_key + whole_vectors(p.groups), kRemoved);
  take_best(row.group_key, p.groups, p.topk_groups, row.block_best, row.group);
  // take_best set the chosen groups to kRemoved, which is no group's rank
  for (int64_t g = 0; g < p.groups; ++g)
    if (row.group_key[g] != kRemoved) std::fill_n(row.key + g * size, size, kRemoved);
}

// Replaces v[i] by exp(v[i] - max), padding included; returns the sum over whole vectors. If a v[i] is NaN, the sum is NaN
// whatever Max returns, because the exponential of v[i] is a term.
float exponentials(float* v, int64_t n) {
  const F32 d;
  auto largest = hn::Set(d, kMinusInf);
  for (int64_t i = 0; i < n; i += lanes()) largest = hn::Max(largest, hn::LoadU(d, v + i));
  largest = hn::MaxOfLanes(d, largest);
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < n; i += lanes()) {
    const auto e = exp_v(hn::Sub(hn::LoadU(d, v + i), largest));
    hn::StoreU(e, d, v + i);
    sum = hn::Add(sum, e);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void weigh(const RouteTopk::Problem& p, const RoutingRule& rule, Row& row, RouteChoice& choice) {
  const F32 d;
  HWY_ALIGN float w[kRouteTopKMax + kPad];
  float denominator = 1;
  if (rule.score == Score::kSoftmaxAll) denominator = exponentials(row.logit, p.experts);
  for (int64_t k = 0; k < p.top_k; ++k) w[k] = choice.id[k] < 0 ? kMinusInf : row.logit[choice.id[k]];
  std::fill(w + p.top_k, w + whole_vectors(p.top_k), kMinusInf);
  if (rule.weigh == Weigh::kSoftmaxChosen) denominator = exponentials(w, p.top_k);
  const bool sigmoid = rule.score == Score::kSigmoid || rule.weigh == Weigh::kSigmoid;
  if (sigmoid || rule.score == Score::kSqrtSoftplus)
    for (int64_t k = 0; k < p.top_k; k += lanes())
      hn::Store(score_v(sigmoid ? Score::kSigmoid : Score::kSqrtSoftplus, hn::Load(d, w + k)), d, w + k);
  for (int64_t k = 0; k < p.top_k; ++k) w[k] = choice.id[k] < 0 ? 0.f : w[k] / denominator;
  if (rule.weigh == Weigh::kRenormalize) {
    float sum = 0;
    for (int64_t k = 0; k < p.top_k; ++k) sum += w[k];
    for (int64_t k = 0; k < p.top_k; ++k) w[k] /= sum + 1e-20f;
  }
  std::copy_n(w, p.top_k, choice.weight);
}

}  // namespace

void route_topk_choose(const RouteTopk::Problem& p, const RouteTopk::Args& a, int64_t t,
                       RouteChoice& choice) {
  Row row;
  const RoutingRule rule = routing_rule(p.method);
  with_float(p.logits, [&]<class L>(const L*) { widen(a.logits.row<const L>(t), p.experts, row.logit); });
  if (rule.by_hash) {
    const int32_t token = a.token_ids.as<const int32_t>()[t];
    for (int64_t k = 0; k < p.top_k; ++k) {
      const int32_t id =
          token >= 0 && token < p.vocab ? a.hash_table.as<const int32_t>()[token * p.top_k + k] : -1;
      choice.id[k] = id >= 0 && id < p.experts ? id : -1;
    }
  } else {
    make_keys(p, a, row);
    if (p.topk_groups < p.groups) keep_groups(p, row);
    take_best(row.key, p.experts, p.top_k, row.block_best, choice.id);
  }
  weigh(p, rule, row, choice);
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(route_topk_choose);

namespace {

void given(const RouteTopk::Problem& p, const RouteTopk::Args& a, int64_t t, RouteChoice& choice) {
  for (int64_t k = 0; k < p.top_k; ++k) {
    int32_t id;
    float weight;
    if (p.input == RoutingInput::kPacked) {
      const int32_t packed = a.packed_in.as<const int32_t>()[t * p.top_k + k];
      id = packed >> 16;
      weight = to_float(BF16{static_cast<uint16_t>(packed & 0xffff)});
    } else {
      id = a.ids_in.as<const int32_t>()[t * p.top_k + k];
      weight = a.weights_in.as<const float>()[t * p.top_k + k];
    }
    const bool known = id >= 0 && id < p.experts;
    choice.id[k] = known ? id : -1;
    choice.weight[k] = known ? weight : 0.f;
  }
}

int32_t scoped(const RouteTopk::Problem& p, const RouteTopk::Args& a, int32_t id) {
  if (id < 0 || p.scope == ExpertScope::kAll) return id;
  if (p.scope == ExpertScope::kMap) return std::max(a.expert_map.as<const int32_t>()[id], -1);
  const int64_t local = id - p.expert_begin;
  return local >= 0 && local < p.expert_count ? static_cast<int32_t>(local) : -1;
}

// Writes row t; `choice` is null for a padding row.
void emit(const RouteTopk::Problem& p, const RouteTopk::Args& a, int64_t t, const RouteChoice* choice) {
  const int64_t slots = p.top_k + p.shared_slots;
  int32_t* ids = a.ids.as<int32_t>() + t * slots;
  float* weights = a.weights.as<float>() + t * slots;
  int32_t* captured = p.capture ? a.captured.as<int32_t>() + t * p.top_k : nullptr;
  if (!choice) {
    std::fill_n(ids, slots, -1);
    std::fill_n(weights, slots, 0.f);
    if (captured) std::fill_n(captured, p.top_k, -1);
    return;
  }
  const float scale = p.scale_here ? static_cast<float>(p.scale) : 1.f;
  for (int64_t k = 0; k < p.top_k; ++k) {
    ids[k] = scoped(p, a, choice->id[k]);
    weights[k] = choice->weight[k] * scale;
    if (captured) captured[k] = choice->id[k];
  }
  const int64_t first_shared = p.scope == ExpertScope::kRange ? p.expert_count : p.experts;
  for (int64_t j = 0; j < p.shared_slots; ++j) {
    ids[p.top_k + j] = static_cast<int32_t>(first_shared + j);
    weights[p.top_k + j] = p.scale_here ? 1.f : static_cast<float>(1 / p.scale);
  }
}

Refusal supports(const RouteTopk::Problem&, const DeviceInfo&) { return {}; }

// Fitted to 0.2 us (128 experts, top 4), 0.6 (256, top 8, 8 groups) and 1.7 us (1024, top 32) with AVX-512.
double token_us(const RouteTopk::Problem& p) {
  if (!RouteTopk::reads_logits(p)) return 0.003 * static_cast<double>(p.top_k);
  return 0.05 + 0.001 * static_cast<double>(p.experts) + 0.025 * static_cast<double>(p.top_k);
}

double cost_us(const RouteTopk::Problem& p, const DeviceInfo& d) {
  return d.launch_us + token_us(p) * static_cast<double>(p.tokens) / d.cores;
}

constexpr double kChunkUs = 8;  // waking a thread costs about a quarter of this

Status enqueue(const RouteTopk::Problem& p, const RouteTopk::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    if (p.tokens == 0) return;
    const int64_t valid = p.padded ? a.tokens_valid.as<const int32_t>()[0] : p.tokens;
    const auto grain = static_cast<int64_t>(kChunkUs / token_us(p)) + 1;
    q.pool->run(p.tokens, grain, [&](int64_t begin, int64_t end, int) {
      RouteChoice choice;
      for (int64_t t = begin; t < end; ++t) {
        if (t < valid && RouteTopk::reads_logits(p)) {
          SLUICE_SIMD(q, route_topk_choose)(p, a, t, choice);
        } else if (t < valid) {
          given(p, a, t, choice);
        }
        emit(p, a, t, t < valid ? &choice : nullptr);
      }
    });
  });
}

}  // namespace

extern const Candidate<RouteTopk> route_topk_tournament = {
    .name = "cpu.route_topk.tournament",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouteTopk>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
