// What the stages of an MoE layer are for its config.
#include "nn/moe_problems.h"

#include <cmath>
#include <type_traits>

namespace sluice {
namespace {

ExpertGemm::Problem up_problem(const MoeConfig& c, int64_t experts, int64_t intermediate, DType w) {
  return {.rows = 0,
          .experts = experts,
          .features = intermediate,
          .width = c.hidden,
          .tokens = 0,
          .slots = 1,
          .x = c.x,
          .w = w,
          .y = c.x,
          .layout = c.layout,
          .gate_order = c.gate_order,
          .act = c.act,
          .alpha = c.alpha,
          .beta = c.beta,
          .limit = c.limit,
          .bias = c.up_bias,
          .x_unaligned = c.x_unaligned};
}

// Of the matrices that `up` feeds.
ExpertGemm::Problem down_problem(const MoeConfig& c, const ExpertGemm::Problem& up, DType y) {
  return {.rows = 0,
          .experts = up.experts,
          .experts_routed = up.experts_routed,
          .features = c.hidden,
          .width = up.features,
          .x = c.x,
          .w = up.w,
          .y = y,
          .layout = c.layout,
          .bias = c.down_bias,
          .settled = true};  // the groups are as old as those of `up`
}

}  // namespace

MoeProblems problems_of(const MoeConfig& c) {
  MoeProblems p;
  p.mlp = expert_problems(c);
  const int64_t slots = slots_of(c), experts = p.mlp.up.experts;
  p.router = {.experts = c.experts,
              .hidden = c.hidden,
              .x = c.x,
              .w = c.router_w,
              .y = c.logits,
              .bias = c.router_bias};
  p.route.route = {.experts = c.experts,
                   .top_k = c.top_k,
                   .method = c.method,
                   .logits = c.logits,
                   .bias = c.correction_bias,
                   .groups = c.groups,
                   .topk_groups = c.topk_groups,
                   .scale = c.scale,
                   .shared_slots = shared_slots(c),
                   .scope = c.scope,
                   .expert_begin = c.expert_begin,
                   .expert_count = c.expert_count,
                   .vocab = c.hash_vocab};
  p.front = {
      .route = p.route.route, .hidden = c.hidden, .x = c.x, .w = c.router_w, .gate_bias = c.router_bias};
  p.route.mapped_experts = c.scope == ExpertScope::kMap ? experts : 0;
  p.combine = {.tokens = 0,
               .slots = slots,
               .rows = 0,
               .hidden = c.hidden,
               .experts = experts,
               .g = c.g,
               .y = c.x,
               .weighted = !c.weight_on_input,
               .shared = shared_apart(c),
               .residual = c.residual,
               .settled = true};
  p.as_one = {.tokens = 0,
              .slots = slots,
              .experts = experts,
              .experts_routed = p.mlp.up.experts_routed,
              .hidden = c.hidden,
              .intermediate = c.intermediate,
              .x = c.x,
              .w = c.expert_w,
              .g = c.g,
              .y = c.x,
              .layout = c.layout,
              .gate_order = c.gate_order,
              .act = c.act,
              .alpha = c.alpha,
              .beta = c.beta,
              .limit = c.limit,
              .up_bias = c.up_bias,
              .down_bias = c.down_bias,
              .weight_on_input = c.weight_on_input,
              .shared = p.combine.shared,
              .residual = c.residual,
              .x_unaligned = c.x_unaligned};
  p.shared_group = {.slots = 1, .experts = 1};
  return p;
}

ExpertProblems expert_problems(const MoeConfig& c) {
  ExpertProblems p;
  const int64_t shared = shared_slots(c);
  p.up = up_problem(c, local_experts(c) + shared, c.intermediate, c.expert_w);
  p.up.slots = slots_of(c);
  if (c.scope == ExpertScope::kRange) {
    // All rows of shared slots are here, so the share of rows that stay is larger than that of experts.
    const double rows = static_cast<double>(c.top_k * local_experts(c)) / static_cast<double>(c.experts) +
                        static_cast<double>(shared);
    p.up.experts_routed =
        shared == 0 ? c.experts : std::llround(static_cast<double>(p.up.experts * p.up.slots) / rows);
  }
  p.up.weighted = c.weight_on_input;
  p.down = down_problem(c, p.up, c.g);
  p.shared_up = up_problem(c, 1, c.shared_intermediate, c.shared_w);
  p.shared_down = down_problem(c, p.shared_up, c.x);
  return p;
}

WeightLayout layout_for(Backend backend) {
  return backend == Backend::kCuda ? WeightLayout::kFragments : WeightLayout::kPanels16;
}

int64_t local_experts(const MoeConfig& c) {
  return c.scope == ExpertScope::kRange ? c.expert_count : c.experts;
}

bool shared_fits_slots(const MoeConfig& c) {
  constexpr int64_t kSlotsMost = 8;  // ops/route_topk.h
  return c.intermediate > 0 && c.shared_intermediate % c.intermediate == 0 &&
         c.shared_intermediate >= c.intermediate && c.shared_intermediate / c.intermediate <= kSlotsMost &&
         c.shared_w == c.expert_w;
}

int64_t shared_slots(const MoeConfig& c) {
  return c.shared_as_slots && c.shared_intermediate > 0 ? c.shared_intermediate / c.intermediate : 0;
}

int64_t slots_of(const MoeConfig& c) { return c.top_k + shared_slots(c); }
bool shared_apart(const MoeConfig& c) { return c.shared_intermediate > 0 && !c.shared_as_slots; }

Status check_shared(const MoeConfig& c) {
  if (!c.shared_as_slots || c.shared_intermediate == 0 || shared_fits_slots(c)) return {};
  return invalid("shared_as_slots: wanted a shared expert 1 to 8 times as wide as a routed one, " +
                 std::to_string(c.intermediate) + ", with weights in " + text(c.expert_w) + ", found " +
                 std::to_string(c.shared_intermediate) + " in " + text(c.shared_w));
}

std::vector<std::pair<SlotSpec, Tensor*>> weight_slots(const MoeConfig& c, MoeWeights* w) {
  std::vector<std::pair<SlotSpec, Tensor*>> out;
  const auto add = [&](std::string_view name, DType dtype, std::initializer_list<int64_t> shape, bool used,
                       Tensor* tensor) {
    out.emplace_back(slot(name, Role::kIn, dtype, shape, used), tensor);
  };
  add("router", c.router_w, {c.experts, c.hidden}, true, &w->router);
  add("router_bias", c.router_w, {c.experts}, c.router_bias, &w->router_bias);
  add("correction_bias", DType::kF32, {c.experts}, c.correction_bias, &w->correction_bias);
  add("hash_table", DType::kI32, {c.hash_vocab, c.top_k}, c.method == RoutingMethod::kHash, &w->hash_table);
  add("expert_map", DType::kI32, {c.experts}, c.scope == ExpertScope::kMap, &w->expert_map);
  const auto add_experts = [&](const ExpertGemm::Problem& p, std::array<std::string_view, 3> names, bool used,
                               std::array<Tensor*, 3> tensors) {
    ExpertGemm::slots(p, [&](SlotSpec spec, Tensor ExpertGemm::Args::*member) {
      const int which = member == &ExpertGemm::Args::w         ? 0
                        : member == &ExpertGemm::Args::w_scale ? 1
                        : member == &ExpertGemm::Args::bias    ? 2
                                                               : -1;
      if (which < 0) return;
      spec.name = names[static_cast<size_t>(which)];
      spec.used &= used;
      out.emplace_back(spec, tensors[static_cast<size_t>(which)]);
    });
  };
  ExpertWeights& e = w->experts;
  const ExpertProblems p = expert_problems(c);
  add_experts(p.up, {"experts.up", "experts.up_scale", "experts.up_bias"}, true,
              {&e.up, &e.up_scale, &e.up_bias});
  add_experts(p.down, {"experts.down", "experts.down_scale", "experts.down_bias"}, true,
              {&e.down, &e.down_scale, &e.down_bias});
  if (!shared_apart(c)) return out;
  ExpertWeights& s = w->shared;
  add_experts(p.shared_up, {"shared.up", "shared.up_scale", "shared.up_bias"}, true,
              {&s.up, &s.up_scale, &s.up_bias});
  add_experts(p.shared_down, {"shared.down", "shared.down_scale", "shared.down_bias"}, true,
              {&s.down, &s.down_scale, &s.down_bias});
  return out;
}

std::vector<std::pair<SlotSpec, Tensor*>> io_slots(const MoeConfig& c, int64_t tokens, MoeIo* io) {
  std::vector<std::pair<SlotSpec, Tensor*>> out;
  for_each_io(c, tokens,
              [&](const SlotSpec& spec, Tensor MoeIo::*member) { out.emplace_back(spec, &(io->*member)); });
  return out;
}

std::vector<StageProblem> moe_problems(const MoeConfig& c, int64_t tokens, MoePath path) {
  const MoeProblems p = problems_of(c);
  std::vector<StageProblem> out;
  const auto add = [&]<class Op>(const char* stage, std::type_identity<Op>,
                                 const typename Op::Problem& problem, int64_t n) {
    out.push_back({stage, any_problem<Op>(Op::at_tokens(problem, n))});
  };
  const bool as_one = path == MoePath::kAsOne;
  if (as_one) {
    add("route", std::type_identity<RouterRoute>{}, p.front, tokens);
  } else {
    add("router", std::type_identity<RouterGemm>{}, p.router, tokens);
    add("route", std::type_identity<RouteGroup>{}, p.route, tokens);
    add("experts.up", std::type_identity<ExpertGemm>{}, p.mlp.up, tokens);
    add("experts.down", std::type_identity<ExpertGemm>{}, p.mlp.down, tokens * slots_of(c));
  }
  if (shared_apart(c)) {
    add("shared.group", std::type_identity<GroupRows>{}, p.shared_group, tokens);
    add("shared.up", std::type_identity<ExpertGemm>{}, p.mlp.shared_up, tokens);
    add("shared.down", std::type_identity<ExpertGemm>{}, p.mlp.shared_down, tokens);
  }
  if (as_one) {
    add("experts", std::type_identity<ExpertMlp>{}, p.as_one, tokens);
  } else {
    add("combine", std::type_identity<Combine>{}, p.combine, tokens);
  }
  return out;
}

}  // namespace sluice
