#pragma once
#include "harness/cases.h"
#include "ops/route_topk.h"

namespace sluice::test {

template <>
struct Suite<RouteTopk> {
  using M = RoutingMethod;
  using Problem = RouteTopk::Problem;

  static std::vector<Case<RouteTopk>> cases() {
    auto out = models();
    for (auto part : {awkward(), around_the_choice(), shared_slots()})
      out.insert(out.end(), part.begin(), part.end());
    return out;
  }

  // The routing of each model family in the docs.
  static std::vector<Case<RouteTopk>> models() {
    constexpr DType kB = DType::kBF16;
    const Problem v3{.tokens = 9, .experts = 256, .top_k = 8, .method = M::kDeepSeekV3, .bias = true};
    auto grouped = v3;
    grouped.groups = 8, grouped.topk_groups = 4, grouped.scale = 2.5;
    auto kimi = v3;
    kimi.experts = 384, kimi.scale = 2.827;
    auto super = v3;
    super.experts = 512, super.top_k = 22, super.scale = 5;
    const Problem v4{
        .tokens = 7, .experts = 256, .top_k = 6, .method = M::kSqrtSoftplus, .bias = true, .scale = 1.5};
    auto hash = v4;
    hash.method = M::kHash, hash.bias = false, hash.vocab = 1000;
    auto fused = grouped;
    fused.shared_slots = 1, fused.scale_here = false;
    return {
        {{.tokens = 1, .experts = 128, .top_k = 4, .logits = kB}, "gpt-oss-120b decode"},
        {{.tokens = 70, .experts = 32, .top_k = 4, .logits = kB}, "gpt-oss-20b"},
        {{.tokens = 5, .experts = 128, .top_k = 8, .method = M::kRenormalizeNaive}, "Qwen3"},
        {{.tokens = 5, .experts = 60, .top_k = 4, .method = M::kDefault}, "Qwen2-MoE"},
        {grouped, "DeepSeek V3"},
        {fused, "DeepSeek V3 with its shared expert in a slot, scale applied later"},
        {kimi, "Kimi-K2: one group"},
        {super, "Nemotron-3 Super: 22 of 512"},
        {{.tokens = 6,
          .experts = 160,
          .top_k = 6,
          .method = M::kGroupedSoftmax,
          .groups = 8,
          .topk_groups = 3,
          .scale = 16},
         "DeepSeek V2"},
        {v4, "DeepSeek V4: biases near 8"},
        {hash, "DeepSeek V4's first layers"},
        {{.tokens = 7, .experts = 256, .top_k = 8, .method = M::kMiniMax2, .bias = true}, "MiniMax-M2"},
        {{.tokens = 3, .experts = 16, .top_k = 1, .method = M::kLlama4, .logits = kB}, "Llama 4 Scout"},
        {{.tokens = 3, .experts = 40, .top_k = 5, .method = M::kTopK}, "logits as weights"},
        {{.tokens = 3, .experts = 40, .top_k = 5, .method = M::kSigmoid}, "sigmoids without normalization"},
        {{.tokens = 3, .experts = 40, .top_k = 5, .method = M::kSigmoidRenorm},
         "sigmoids divided by their sum"},
    };
  }

  static std::vector<Case<RouteTopk>> awkward() {
    const Problem soft{.tokens = 11, .experts = 37, .top_k = 5};
    auto all = soft;
    all.method = M::kRenormalizeNaive;
    const Problem biased{.tokens = 11,
                         .experts = 72,
                         .top_k = 9,
                         .method = M::kDeepSeekV3,
                         .bias = true,
                         .groups = 6,
                         .topk_groups = 3};
    auto unbiased = biased;
    unbiased.bias = false;
    auto single = biased;
    single.groups = 72, single.topk_groups = 20;
    const Problem plus{.tokens = 11, .experts = 50, .top_k = 7, .method = M::kSqrtSoftplus, .bias = true};
    auto no_tokens = soft;
    no_tokens.tokens = 0;
    std::vector<Case<RouteTopk>> out = {
        {no_tokens, "no tokens"},
        {{.tokens = 2, .experts = 1, .top_k = 1}, "one expert"},
        {{.tokens = 3, .experts = 32, .top_k = 32}, "top_k is the expert count"},
        {{.tokens = 3, .experts = 1024, .top_k = 32, .method = M::kMiniMax2, .bias = true},
         "the largest expert count and top_k"},
        {{.tokens = 2,
          .experts = 1024,
          .top_k = 32,
          .method = M::kDeepSeekV3,
          .groups = 1024,
          .topk_groups = 33},
         "a thousand groups of one expert"},
        {{.tokens = 300, .experts = 33, .top_k = 3}, "more than one chunk of tokens"},
        {unbiased, "groups ranked by sums of sigmoids, without a bias"},
        {single, "groups of one expert, ranked by its score"},
        {soft, "strided rows", Fill::kNormal, Spread::kStridedRows},
        {biased, "strided rows, groups", Fill::kNormal, Spread::kStridedRows},
    };
    constexpr Fill kFills[] = {Fill::kAllEqual, Fill::kZerosMixed, Fill::kSomeNan, Fill::kInfinite,
                               Fill::kTiny,     Fill::kHuge,       Fill::kEmpty,   Fill::kSkewed};
    for (Fill fill : kFills)
      for (const Problem& p : {soft, all, biased, unbiased, plus}) out.push_back({p, "special values", fill});
    return out;
  }

  // Layers with shared experts in slots, under different weighting rules.
  static std::vector<Case<RouteTopk>> shared_slots() {
    constexpr DType kB = DType::kBF16;
    std::vector<Case<RouteTopk>> out;
    for (Problem p : some_models())
      for (int64_t slots : {1, 2, 8}) {
        p.shared_slots = slots;
        out.push_back({p, "a known layer with shared slots"});
      }
    Problem p = some_models()[0];
    p.shared_slots = 1;
    for (Fill fill : {Fill::kSomeNan, Fill::kAllEqual, Fill::kHuge})
      out.push_back({p, "special values, a shared slot", fill});
    p.logits = kB, p.scale_here = false;
    out.push_back(
        {p, "strided rows, a shared slot, scale applied later", Fill::kNormal, Spread::kStridedRows});
    return out;
  }
  // Sizes for which dedicated kernels exist.
  static std::vector<Problem> some_models() {
    constexpr DType kB = DType::kBF16;
    const Problem v3{.tokens = 9,
                     .experts = 256,
                     .top_k = 8,
                     .method = M::kDeepSeekV3,
                     .bias = true,
                     .groups = 8,
                     .topk_groups = 4,
                     .scale = 2.5};
    Problem kimi = v3, v4 = v3;
    kimi.experts = 384, kimi.groups = kimi.topk_groups = 1;
    v4.method = M::kSqrtSoftplus, v4.top_k = 6, v4.groups = v4.topk_groups = 1;
    return {v3,
            kimi,
            v4,
            {.tokens = 9, .experts = 32, .top_k = 4, .logits = kB},
            {.tokens = 9, .experts = 128, .top_k = 4, .logits = kB},
            {.tokens = 9, .experts = 128, .top_k = 8, .method = M::kRenormalizeNaive}};
  }

  // Expert scope, padding, capture, shared slots, and precomputed ids.
  static std::vector<Case<RouteTopk>> around_the_choice() {
    Problem p{.tokens = 13,
              .experts = 48,
              .top_k = 6,
              .method = M::kSigmoidRenorm,
              .scale = 1.5,
              .shared_slots = 2,
              .capture = true};
    auto range = p, map = p, padded = p, given = p, packed = p, hash = p;
    range.scope = ExpertScope::kRange, range.expert_begin = 12, range.expert_count = 12;
    map.scope = ExpertScope::kMap, map.padded = true;
    padded.padded = true, padded.scale_here = false;
    given.input = RoutingInput::kPrecomputed;
    packed.input = RoutingInput::kPacked, packed.scope = ExpertScope::kRange, packed.expert_count = 20;
    hash.method = M::kHash, hash.vocab = 20, hash.padded = true, hash.scope = ExpertScope::kMap;
    auto none = range, raw = given;
    none.expert_count = 0;
    raw.scale_here = false, raw.padded = true;
    return {
        {p, "captured, with shared slots"},
        {range, "expert-parallel range"},
        {none, "a rank without experts"},
        {map, "expert map, padding"},
        {padded, "padding, scale applied later"},
        {padded, "only padding tokens", Fill::kEmpty},
        {given, "precomputed ids"},
        {given, "precomputed ids, all empty", Fill::kEmpty},
        {given, "a precomputed NaN weight", Fill::kSomeNan},
        {raw, "precomputed ids, scale applied later, padding"},
        {packed, "packed ids on one rank"},
        {packed, "packed infinities", Fill::kInfinite},
        {hash, "hash with token ids out of range, expert map, padding"},
    };
  }

  static void fill(const Problem& p, Fill fill, HostArgs<RouteTopk>& host, Random& random) {
    fill_args(p, fill, host.args(), random);
  }
  static void fill_args(const Problem& p, Fill fill, const RouteTopk::Args& a, Random& random) {
    const auto id = [&](int64_t limit) { return fill == Fill::kEmpty ? -1 : random.integer(-1, limit); };
    fill_floats(a.logits, fill, random, 2);
    if (a.logits.present() && fill == Fill::kEmpty)
      set_each(a.logits, [](int64_t, int64_t) { return -std::numeric_limits<double>::infinity(); });
    if (a.logits.present() && fill == Fill::kSkewed)
      set_each(a.logits, [&](int64_t, int64_t e) { return e == p.experts / 2 ? 60 : random.normal(); });
    // Nearly equal biases around 8, as in DeepSeek V4, leave few bits for the scores.
    const double centre = p.method == M::kSqrtSoftplus ? 8.08 : 0;
    if (a.bias.present()) set_each(a.bias, [&](int64_t, int64_t) { return centre + 0.05 * random.normal(); });
    if (a.bias.present() && fill == Fill::kAllEqual) set_each(a.bias, [](int64_t, int64_t) { return 0.25; });
    const auto wild = [&](int64_t, int64_t) { return id(p.experts); };
    if (a.hash_table.present()) set_each(a.hash_table, wild);
    if (a.token_ids.present()) set_each(a.token_ids, [&](int64_t, int64_t) { return id(p.vocab); });
    if (a.expert_map.present())
      set_each(a.expert_map, [&](int64_t, int64_t) { return random.integer(-2, 90); });
    if (a.tokens_valid.present())
      set_each(a.tokens_valid,
               [&](int64_t, int64_t) { return fill == Fill::kEmpty ? -3 : p.tokens * 2 / 3; });
    if (a.ids_in.present()) set_each(a.ids_in, wild);
    fill_floats(a.weights_in, fill, random);
    if (!a.packed_in.present()) return;
    const Tensor row = make_tensor(nullptr, DType::kBF16, {1, p.top_k});
    std::vector<BF16> weights(static_cast<size_t>(p.top_k));
    for (int64_t t = 0; t < p.tokens; ++t) {
      Tensor view = row;
      view.data = weights.data();
      fill_floats(view, fill, random);
      for (int64_t k = 0; k < p.top_k; ++k)
        a.packed_in.row<int32_t>(t)[k] = static_cast<int32_t>(static_cast<uint32_t>(wild(t, k)) << 16 |
                                                              weights[static_cast<size_t>(k)].bits);
    }
  }

  static Problem random(Random& r) {
    if (r.integer(0, 3) == 0) {
      std::vector<Problem> models = some_models();
      Problem p = models[static_cast<size_t>(r.integer(0, static_cast<int64_t>(models.size()) - 1))];
      p.tokens = r.integer(1, 70), p.shared_slots = r.integer(0, 8), p.scale_here = coin(r);
      return p;
    }
    Problem p{.tokens = r.integer(0, 24), .experts = r.integer(1, 150)};
    p.top_k = std::min(r.integer(1, 33), p.experts);
    p.method = static_cast<M>(r.integer(0, static_cast<int64_t>(M::kSigmoidRenorm)));
    p.logits = any_float(r);
    p.input = static_cast<RoutingInput>(r.integer(0, 5) < 4 ? 0 : r.integer(1, 2));
    const RoutingRule rule = routing_rule(p.method);
    const bool chooses = p.input == RoutingInput::kLogits;
    p.bias = chooses && rule.biased && coin(r);
    if (rule.by_hash) p.vocab = r.integer(1, 40);
    if (rule.grouped && chooses) {
      p.groups = one_of(r, {1, 2, 4, 7, 16});
      p.experts = (p.experts + p.groups - 1) / p.groups * p.groups;
      p.topk_groups = r.integer(1, p.groups);
      p.top_k = std::min(p.top_k, p.topk_groups * (p.experts / p.groups));
    }
    p.scale = coin(r) ? 1 : 2.5;
    p.scale_here = coin(r);
    p.shared_slots = r.integer(0, 2);
    p.scope = static_cast<ExpertScope>(r.integer(0, 2));
    p.expert_begin = r.integer(0, p.experts);
    p.expert_count = r.integer(0, p.experts - p.expert_begin);
    p.padded = coin(r);
    p.capture = coin(r);
    return p;
  }
};

}  // namespace sluice::test
