// The problems of chain_test.cc, several per operation.
#pragma once
#include <vector>

#include "cases/adjust_logits.h"
#include "cases/all_reduce_norm.h"
#include "cases/attention.h"
#include "cases/combine_norm.h"
#include "cases/count_experts.h"
#include "cases/embedding.h"
#include "cases/expert_lora.h"
#include "cases/expert_mlp.h"
#include "cases/group_rows.h"
#include "cases/grouped_mlp.h"
#include "cases/kv_write.h"
#include "cases/latent_attention.h"
#include "cases/latent_norm_rope_kv_write.h"
#include "cases/linear.h"
#include "cases/linear_argmax.h"
#include "cases/lora_delta.h"
#include "cases/mask_logits.h"
#include "cases/norm_router_route.h"
#include "cases/qk_norm_rope_kv_write.h"
#include "cases/qkv_rope_kv_write.h"
#include "cases/rms_norm.h"
#include "cases/rope.h"
#include "cases/rope_kv_write.h"
#include "cases/route_group.h"
#include "cases/router_gemm.h"
#include "cases/router_route.h"
#include "cases/sample.h"
#include "cases/take_tokens.h"
#include "cases/top_logprobs.h"

namespace sluice::test {

template <class Op>
struct Problems;
// For operations that are another operation plus norms.
template <class Op, class Part>
struct ProblemsAround {
  static std::vector<typename Op::Problem> list() {
    std::vector<typename Op::Problem> out;
    for (const typename Part::Problem& p : Problems<Part>::list()) out.push_back({p});
    return out;
  }
};
template <>
struct Problems<Combine> {
  static std::vector<Combine::Problem> list() {
    return {
        {.tokens = 1, .slots = 4, .rows = 4, .hidden = 2880, .experts = 128, .bias = true, .residual = true},
        {.tokens = 70, .slots = 6, .rows = 420, .hidden = 4096, .shared = true, .scale = 1.5}};
  }
};

template <>
struct Problems<CombineNorm> : ProblemsAround<CombineNorm, Combine> {};

// Grouped rows: tiles of both products in more than one wave.
template <>
struct Problems<GroupedMlp> {
  static std::vector<GroupedMlp::Problem> list() {
    std::vector<GroupedMlp::Problem> out;
    for (const auto& [tokens, experts] : {std::pair{9, 4}, {70, 16}, {60, 160}}) {
      ExpertMlp::Problem p = Suite<ExpertMlp>::gpt_oss(tokens, experts, 416, 256);
      p.layout = WeightLayout::kFragments;
      out.push_back(GroupedMlp::of(p));
    }
    return out;
  }
};

template <>
struct Problems<ExpertMlp> {
  static std::vector<ExpertMlp::Problem> list() {
    std::vector<ExpertMlp::Problem> out;
    for (const int64_t tokens : {1, 9, 64, 70}) {
      ExpertMlp::Problem p = Suite<ExpertMlp>::gpt_oss(tokens, 16, 512, 256);
      p.layout = WeightLayout::kFragments;
      out.push_back(p);
      p.residual = p.shared = true, p.w = DType::kBF16;
      out.push_back(p);
    }
    return out;
  }
};

// Few tokens; one cluster of CTAs; several clusters, the last of which finishes the result; two launches.
constexpr int64_t kRoutedTokens[] = {1, 40, 300, 1100};
template <>
struct Problems<RouteGroup> {
  static std::vector<RouteGroup::Problem> list() {
    std::vector<RouteGroup::Problem> out;
    for (const int64_t tokens : kRoutedTokens)
      out.push_back(
          {.route = {.tokens = tokens, .experts = 128, .top_k = 4, .logits = DType::kBF16}, .tile_rows = 16});
    return out;
  }
};
template <>
struct Problems<RouteTopk> {
  static std::vector<RouteTopk::Problem> list() {
    return {{.tokens = 65, .experts = 256, .top_k = 8, .method = RoutingMethod::kMiniMax2, .bias = true}};
  }
};
template <>
struct Problems<GroupRows> {
  static std::vector<GroupRows::Problem> list() {
    std::vector<GroupRows::Problem> out;
    for (const int64_t tokens : kRoutedTokens)
      out.push_back({.tokens = tokens, .slots = 8, .experts = 64, .row_align = 8, .tile_rows = 32});
    return out;
  }
};

template <>
struct Problems<RouterGemm> {
  static std::vector<RouterGemm::Problem> list() {
    std::vector<RouterGemm::Problem> out;
    for (const int64_t tokens : {1, 3, 64, 200, 600})
      out.push_back({.tokens = tokens, .y = DType::kBF16, .bias = true});
    for (const int64_t tokens : {1, 33, 130})
      out.push_back({.tokens = tokens, .experts = 256, .hidden = 7168});
    for (const int64_t tokens : {5, 600})
      out.push_back({.tokens = tokens, .experts = 40, .hidden = 136, .w = DType::kF32});
    out.push_back({.tokens = 600, .experts = 256, .hidden = 3072, .w = DType::kF32});
    return out;
  }
};
template <>
struct Problems<Linear> {
  static std::vector<Linear::Problem> list() {
    std::vector<Linear::Problem> out;
    for (const int64_t tokens : {1, 8, 20, 64, 150})
      out.push_back({.tokens = tokens, .features = 2880, .width = 512, .bias = true, .residual = true});
    out.push_back({.tokens = 3, .features = 4400, .width = 2880, .y = DType::kF32});
    out.push_back({.tokens = 600, .features = 4400, .width = 256, .y = DType::kF32, .bias = true});
    return out;
  }
};
template <>
struct Problems<LinearArgmax> {
  static std::vector<LinearArgmax::Problem> list() {
    return {{.tokens = 1, .features = 20000}, {.tokens = 40, .features = 5003, .width = 256}};
  }
};
template <>
struct Problems<RouterRoute> {
  static std::vector<RouterRoute::Problem> list() {
    std::vector<RouterRoute::Problem> out;
    for (const int64_t experts : {32, 128})
      for (const int64_t tokens : {1, 19, 64})
        out.push_back(
            {.route = {.tokens = tokens, .experts = experts, .logits = DType::kBF16}, .gate_bias = true});
    for (const int64_t tokens : {1, 9, 200})
      out.push_back({.route = {.tokens = tokens,
                               .experts = 256,
                               .top_k = 6,
                               .method = RoutingMethod::kSqrtSoftplus,
                               .bias = true},
                     .hidden = 4096});
    return out;
  }
};
template <>
struct Problems<LoraDelta> {
  static std::vector<LoraDelta::Problem> list() { return {{.tokens = 1}, {.tokens = 70, .adapters = 3}}; }
};
template <>
struct Problems<ExpertLora> {
  static std::vector<ExpertLora::Problem> list() {
    ExpertLora::Problem up = Suite<ExpertLora>::gate_up(2, 8, 192, 1440);
    up.layout = WeightLayout::kFragments;
    return {up, Suite<ExpertLora>::down(40, 8, 640, 192)};
  }
};
template <>
struct Problems<NormRouterRoute> : ProblemsAround<NormRouterRoute, RouterRoute> {};
template <>
struct Problems<RmsNorm> {
  static std::vector<RmsNorm::Problem> list() {
    return {{.tokens = 1}, {.tokens = 64, .hidden = 7168, .residual = true}, {.tokens = 300, .hidden = 4096}};
  }
};

template <>
struct Problems<AllReduceNorm> {
  static std::vector<AllReduceNorm::Problem> list() {
    return {{.tokens = 1}, {.tokens = 300, .hidden = 2048}, {.tokens = 9, .x = DType::kF32, .norm = false}};
  }
};

template <>
struct Problems<TakeTokens> {
  static std::vector<TakeTokens::Problem> list() { return {{.tokens = 1}, {.tokens = 300, .rows = 256}}; }
};
template <>
struct Problems<CountExperts> {
  static std::vector<CountExperts::Problem> list() {
    return {{.tokens = 1}, {.layers = 24, .tokens = 300, .experts = 32}};
  }
};
template <>
struct Problems<Attention> {
  static std::vector<Attention::Problem> list() {
    const Attention::Problem p{.sequences = 4, .heads = 16, .kv_heads = 2, .pages = 90, .pages_per_seq = 20};
    std::vector<Attention::Problem> out{p, p, p};
    out[0].tokens = 4, out[0].rows_max = 1, out[0].sinks = true;
    out[1].tokens = 70, out[1].window = 50;
    out[2].tokens = 9, out[2].q = DType::kF32;
    return out;
  }
};
template <>
struct Problems<KvWrite> {
  static std::vector<KvWrite::Problem> list() {
    return {{.tokens = 1}, {.tokens = 70, .kv_heads = 3, .head_dim = 17, .kv = DType::kF32}};
  }
};
template <>
struct Problems<Embedding> {
  static std::vector<Embedding::Problem> list() {
    return {{.tokens = 1, .vocab = 300}, {.tokens = 70, .vocab = 300, .hidden = 37, .y = DType::kF32}};
  }
};
template <>
struct Problems<Rope> {
  static std::vector<Rope::Problem> list() {
    return {{.tokens = 1, .heads = 72},
            {.tokens = 300, .heads = 9, .table_rows = 500, .pairs = RopePairs::kInterleaved}};
  }
};
template <>
struct Problems<RopeKvWrite> {
  static std::vector<RopeKvWrite::Problem> list() {
    return {
        {.rope = {.tokens = 1}},
        {.rope = {.tokens = 40, .heads = 32, .head_dim = 128, .rotary = 128}, .cache = CacheType::kE4M3},
        {.rope = {.tokens = 40, .heads = 9, .head_dim = 17, .rotary = 14, .table_rows = 50, .x = DType::kF32},
         .kv_heads = 3}};
  }
};
template <>
struct Problems<QkNormRopeKvWrite> : ProblemsAround<QkNormRopeKvWrite, RopeKvWrite> {};
template <>
struct Problems<LatentNormRopeKvWrite> {
  static std::vector<LatentNormRopeKvWrite::Problem> list() {
    using P = LatentNormRopeKvWrite::Problem;
    const auto woven = RopePairs::kInterleaved;
    return {P{.rope = {.heads = 16, .head_dim = 192, .first = 128, .pairs = woven}},
            P{.rope = {.tokens = 70, .heads = 128, .head_dim = 192, .first = 128, .pairs = woven}},
            P{.rope = {.tokens = 5,
                       .heads = 3,
                       .head_dim = 24,
                       .rotary = 8,
                       .first = 16,
                       .pairs = woven,
                       .x = DType::kF32},
              .rank = 40}};
  }
};
template <>
struct Problems<QkvRopeKvWrite> {
  static std::vector<QkvRopeKvWrite::Problem> list() {
    return {{.rope = {.rope = {.tokens = 1}}, .bias = true},
            {.rope = {.rope = {.tokens = 8, .heads = 4, .head_dim = 128, .rotary = 128}, .kv_heads = 2},
             .width = 256}};
  }
};
template <>
struct Problems<Sample> {
  static std::vector<Sample::Problem> list() {
    return {{.rows = 1, .vocab = 60000}, {.rows = 40, .vocab = 5003}};
  }
};
template <>
struct Problems<AdjustLogits> {
  static std::vector<AdjustLogits::Problem> list() {
    return {{.entries = 700, .rows = 3, .vocab = 2003},
            {.entries = 700, .rows = 3, .vocab = 2003, .way = AdjustWay::kRestore}};
  }
};
template <>
struct Problems<MaskLogits> {
  static std::vector<MaskLogits::Problem> list() {
    return {{.masks = 2, .rows = 3, .vocab = 2003},
            {.masks = 2, .rows = 3, .vocab = 2003, .way = MaskWay::kRestore}};
  }
};
template <>
struct Problems<TopLogprobs> {
  static std::vector<TopLogprobs::Problem> list() {
    return {{.rows = 1, .logit_rows = 2, .vocab = 60000},
            {.rows = 40, .logit_rows = 40, .vocab = 5003, .top = 5}};
  }
};
template <>
struct Problems<LatentAttention> {
  static std::vector<LatentAttention::Problem> list() {
    return {{.tokens = 2, .sequences = 2, .heads = 17, .pages = 64, .pages_per_seq = 32},
            {.tokens = 9, .heads = 70, .rank = 128, .nope = 32, .rope = 16, .v_dim = 40, .pages_per_seq = 40},
            {.tokens = 20,
             .heads = 3,
             .rank = 36,
             .nope = 20,
             .rope = 12,
             .v_dim = 9,
             .pages = 9,
             .pages_per_seq = 9}};
  }
};

}  // namespace sluice::test
