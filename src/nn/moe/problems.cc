// The problems of an MoE layer's stages, derived from its config.
#include "nn/moe/problems.h"

#include <cmath>
#include <tuple>

namespace sluice {
namespace {

ExpertGemm::Problem up_problem(const MoeConfig& c, int64_t experts, int64_t width, int64_t intermediate,
                               WeightFormat w) {
  return {.rows = 0,
          .experts = experts,
          .features = intermediate,
          .width = width,
          .tokens = 0,
          .slots = 1,
          .x = c.x,
          .w = w.w,
          .y = c.x,
          .scales = w.scales,
          .layout = c.layout,
          .gate_order = c.gate_order,
          .act = c.act,
          .alpha = c.alpha,
          .beta = c.beta,
          .limit = c.limit,
          .bias = c.up_bias,
          .x_unaligned = c.x_unaligned,
          .fp8_x = c.fp8_activations};
}

// The problem of W2, the product that reads the result of `up`.
ExpertGemm::Problem down_problem(const MoeConfig& c, const ExpertGemm::Problem& up, DType y) {
  return {.rows = 0,
          .experts = up.experts,
          .experts_routed = up.experts_routed,
          .features = up.width,
          .width = up.features,
          .x = c.x,
          .w = up.w,
          .y = y,
          .scales = up.scales,
          .layout = c.layout,
          .bias = c.down_bias,
          .settled = true,  // `up` runs in between, so the groups are already written
          .fp8_x = c.fp8_activations};
}

// The product without bias and activation, as ops/expert_lora.h reads it.
ExpertGemm::Problem bare(ExpertGemm::Problem p, DType y) {
  p.features = product_columns(p.layout, p.features, is_gated(p.act));
  p.act = Activation::kIdentity, p.alpha = 1, p.beta = p.limit = 0;
  p.gate_order = GateOrder::kInterleaved;
  p.bias = p.per_expert = false;
  p.y = y;
  return p;
}

// The operation that completes `product`.
ExpertLora::Problem completing(const MoeConfig& c, const ExpertGemm::Problem& product) {
  return {.rows = 0,
          .tokens = 0,
          .slots = slots_of(c),
          .experts = product.experts,
          .experts_routed = product.experts_routed,
          .features = product.features,
          .width = product.width,
          .rank = c.expert_lora_rank,
          .adapters = c.lora_adapters,
          .x = product.x,
          .z = c.g,
          .w = c.lora_w,
          .bias_type = product.b,
          .y = product.y,
          .layout = product.layout,
          .gate_order = product.gate_order,
          .act = product.act,
          .alpha = product.alpha,
          .beta = product.beta,
          .limit = product.limit,
          .gathers = product.slots > 0,
          .split = c.expert_lora_split && is_gated(product.act),
          .bias = product.bias,
          .per_expert = product.per_expert,
          .x_unaligned = product.x_unaligned,
          .settled = true};  // the product's launch runs in between
}

}  // namespace

AdaptedProblems adapted_problems(const MoeConfig& c) {
  const ExpertProblems p = expert_problems(c);
  return {bare(p.up, c.g), bare(p.down, c.g), completing(c, p.up), completing(c, p.down)};
}

RouterGemm::Problem router_problem(const MoeConfig& c) {
  return {.tokens = 0,
          .experts = c.experts,
          .hidden = c.hidden,
          .x = c.x,
          .w = c.router_w,
          .y = c.logits,
          .bias = c.router_bias};
}

LoraDelta::Problem lora_problem(const MoeConfig& c) {
  return {.tokens = 0,
          .features = c.experts,
          .hidden = c.hidden,
          .rank = c.lora_rank,
          .adapters = c.lora_adapters,
          .x = c.x,
          .w = c.lora_w,
          .y = c.logits};
}

RouteTopk::Problem route_problem(const MoeConfig& c) {
  const bool chooses = has_router(c);
  return {.tokens = 0,
          .experts = c.experts,
          .top_k = c.top_k,
          .method = c.method,
          .input = c.input,
          .logits = c.logits,
          .bias = chooses && c.correction_bias,
          .groups = chooses ? c.groups : 1,
          .topk_groups = chooses ? c.topk_groups : 1,
          .scale = c.scale,
          .shared_slots = shared_slots(c),
          .scope = c.scope,
          .expert_begin = c.expert_begin,
          .expert_count = c.expert_count,
          .vocab = c.hash_vocab,
          .padded = c.padded,
          .capture = c.capture && !chooses_in_captured(c)};
}

GroupRows::Problem group_problem(const MoeConfig& c) {
  return {.tokens = 0, .slots = slots_of(c), .experts = local_experts(c) + shared_slots(c)};
}

Combine::Problem combine_problem(const MoeConfig& c) {
  return {.tokens = 0,
          .slots = slots_of(c),
          .rows = 0,
          .hidden = expert_width(c),
          .experts = local_experts(c) + shared_slots(c),
          .g = c.g,
          .y = c.x,
          .weighted = !c.weight_on_input && !c.dense,
          .shared = shared_apart(c) && c.latent == 0,
          .residual = c.residual && c.latent == 0,
          .settled = true};
}

RmsNorm::Problem norm_problem(const MoeConfig& c) {
  return {.tokens = 0, .hidden = c.hidden, .eps = c.norm_eps, .x = c.x, .y = c.x};
}

Combine::Problem latent_add_problem(const MoeConfig& c) {
  return {.tokens = 0,
          .slots = 1,
          .rows = 0,
          .hidden = c.hidden,
          .experts = 1,
          .g = c.g,
          .y = c.x,
          .weighted = false,
          .shared = shared_apart(c),
          .residual = c.residual,
          .settled = true};
}

GroupRows::Problem shared_group_problem(const MoeConfig&) { return {.tokens = 0, .slots = 1, .experts = 1}; }

ExpertProblems expert_problems(const MoeConfig& c) {
  ExpertProblems p;
  const int64_t shared = shared_slots(c);
  p.up = up_problem(c, local_experts(c) + shared, expert_width(c), c.intermediate,
                    {c.expert_w, c.expert_scales});
  if (c.latent > 0) p.up.x_unaligned = false;
  p.up.slots = slots_of(c);
  if (c.scope == ExpertScope::kRange) {
    // Every rank keeps all rows of the shared slots, so its share of rows exceeds its share of experts.
    const double rows = static_cast<double>(c.top_k * local_experts(c)) / static_cast<double>(c.experts) +
                        static_cast<double>(shared);
    p.up.experts_routed =
        shared == 0 ? c.experts : std::llround(static_cast<double>(p.up.experts * p.up.slots) / rows);
  }
  p.up.weighted = c.weight_on_input;
  p.up.per_expert = c.per_expert;
  p.down = down_problem(c, p.up, c.g);
  p.shared_up = up_problem(c, 1, c.hidden, c.shared_intermediate, {c.shared_w, c.shared_scales});
  p.shared_down = down_problem(c, p.shared_up, c.x);
  p.latent_in = {.rows = 0,
                 .experts = 1,
                 .features = c.latent,
                 .width = c.hidden,
                 .tokens = 0,
                 .slots = 1,
                 .x = c.x,
                 .w = DType::kBF16,
                 .y = c.x,
                 .layout = c.layout,
                 .act = Activation::kIdentity,
                 .x_unaligned = c.x_unaligned};
  p.latent_out = down_problem(c, p.latent_in, c.g);
  p.latent_out.bias = false;
  return p;
}

WeightLayout layout_for(Backend backend) {
  return backend == Backend::kCuda ? WeightLayout::kFragments : WeightLayout::kPanels16;
}

int64_t local_experts(const MoeConfig& c) {
  return c.scope == ExpertScope::kRange ? c.expert_count : c.experts;
}

bool shared_fits_slots(const MoeConfig& c) {
  constexpr int64_t kSlotsMax = 8;  // ops/route_topk.h
  return c.latent == 0 && c.intermediate > 0 && c.shared_intermediate % c.intermediate == 0 &&
         c.shared_intermediate >= c.intermediate && c.shared_intermediate / c.intermediate <= kSlotsMax &&
         c.shared_w == c.expert_w && c.shared_scales == c.expert_scales;
}

int64_t shared_slots(const MoeConfig& c) {
  return c.shared_as_slots && c.shared_intermediate > 0 ? c.shared_intermediate / c.intermediate : 0;
}

bool chooses_in_captured(const MoeConfig& c) {
  return c.capture && has_router(c) && c.scope == ExpertScope::kAll && shared_slots(c) == 0;
}

int64_t slots_of(const MoeConfig& c) { return c.top_k + shared_slots(c); }
bool shared_apart(const MoeConfig& c) { return c.shared_intermediate > 0 && !c.shared_as_slots; }

bool has_router(const MoeConfig& c) { return c.input == RoutingInput::kLogits && !c.dense; }

int64_t expert_width(const MoeConfig& c) { return c.latent > 0 ? c.latent : c.hidden; }

Status check_shared(const MoeConfig& c) {
  if (c.shared_as_slots && c.latent > 0)
    return invalid(
        "shared_as_slots: wanted 0 with a latent width, because the shared expert reads x (latent=" +
        std::to_string(c.latent) + "), found 1");
  if (!c.shared_as_slots || c.shared_intermediate == 0 || shared_fits_slots(c)) return {};
  return invalid("shared_as_slots: wanted a shared expert 1 to 8 times as wide as a routed one, " +
                 std::to_string(c.intermediate) + ", with weights in " +
                 text(WeightFormat{c.expert_w, c.expert_scales}) + ", found " +
                 std::to_string(c.shared_intermediate) + " in " +
                 text(WeightFormat{c.shared_w, c.shared_scales}));
}

// kInvalidArgument: a dense MLP sets a field that does not belong to its two products.
Status check_dense(const MoeConfig& c) {
  MoeConfig plain;
  plain.hidden = c.hidden, plain.intermediate = c.intermediate, plain.experts = plain.top_k = 1;
  plain.dense = true;
  plain.x = c.x, plain.g = c.g;
  plain.expert_w = c.expert_w, plain.expert_scales = c.expert_scales, plain.layout = c.layout,
  plain.gate_order = c.gate_order;
  plain.act = c.act, plain.alpha = c.alpha, plain.beta = c.beta, plain.limit = c.limit;
  plain.up_bias = c.up_bias, plain.down_bias = c.down_bias;
  plain.residual = c.residual, plain.norm_x = c.norm_x, plain.norm_y = c.norm_y, plain.norm_eps = c.norm_eps;
  plain.x_unaligned = c.x_unaligned;
  Status status;
  std::vector<std::string> wanted;
  for_each_field(plain, [&](const Field& f) { wanted.push_back(f.value_text()); });
  MoeConfig found = c;
  size_t i = 0;
  for_each_field(found, [&](const Field& f) {
    const std::string& want = wanted[i++];
    if (status.ok() && f.value_text() != want)
      status =
          invalid(std::string(f.name) + ": wanted " + want +
                  " in a dense MLP (dense=1), which is one expert without a router, found " + f.value_text());
  });
  return status;
}

// kInvalidArgument: the fields of adapters disagree, or ops/expert_lora.h cannot express the layer.
Status check_adapters(const MoeConfig& c) {
  if (has_adapters(c) != (c.lora_adapters > 0)) {
    const bool experts = c.expert_lora_rank > 0;
    return invalid(std::string(!has_adapters(c) ? "lora_rank or expert_lora_rank"
                               : experts        ? "expert_lora_rank"
                                                : "lora_rank") +
                   " and lora_adapters: wanted both above 0 or neither, found " +
                   std::to_string(experts ? c.expert_lora_rank : c.lora_rank) + " and " +
                   std::to_string(c.lora_adapters));
  }
  if (c.lora_w != DType::kBF16 && c.lora_w != DType::kF32)
    return invalid("lora_w: wanted bf16 or f32, found " + std::string(text(c.lora_w)));
  if (c.expert_lora_split && (c.expert_lora_rank == 0 || !is_gated(c.act)))
    return invalid("expert_lora_split: wanted 0 without adapters on the experts or without a gate, found 1");
  if (c.expert_lora_rank == 0) return {};
  if (c.weight_on_input)
    return invalid(
        "expert_lora_rank: wanted 0 with weight_on_input, because the adapters read unweighted inputs, "
        "found " +
        std::to_string(c.expert_lora_rank));
  if (shared_slots(c) > 0)
    return invalid(
        "expert_lora_rank: wanted 0 with shared_as_slots, because shared experts have no adapters, found " +
        std::to_string(c.expert_lora_rank));
  if (product_columns(c.layout, c.intermediate, is_gated(c.act)) > 65536)
    return invalid("intermediate: wanted at most 32768 with adapters on gated experts, found " +
                   std::to_string(c.intermediate));
  return {};
}

Status check_moe(const MoeConfig& c) {
  SLUICE_TRY(check_ranges(c));
  SLUICE_TRY(check_shared(c));
  if (c.dense) SLUICE_TRY(check_dense(c));
  if (c.lora_rank > 0 && !has_router(c))
    return invalid("lora_rank: wanted 0 when the caller gives ids and weights (no router), found " +
                   std::to_string(c.lora_rank));
  return check_adapters(c);
}

std::vector<std::pair<SlotSpec, Tensor*>> weight_slots(const MoeConfig& c, MoeWeights* w) {
  std::vector<std::pair<SlotSpec, Tensor*>> out;
  const auto add = [&](std::string_view name, DType dtype, std::initializer_list<int64_t> shape, bool used,
                       Tensor* tensor) {
    out.emplace_back(slot(name, Role::kIn, dtype, shape, used), tensor);
  };
  const bool router = has_router(c), lora = c.lora_rank > 0;
  add("router", c.router_w, {c.experts, c.hidden}, router, &w->router);
  add("router_bias", c.router_w, {c.experts}, router && c.router_bias, &w->router_bias);
  add("correction_bias", DType::kF32, {c.experts}, router && c.correction_bias, &w->correction_bias);
  add("hash_table", DType::kI32, {c.hash_vocab, c.top_k}, router && c.method == RoutingMethod::kHash,
      &w->hash_table);
  add("expert_map", DType::kI32, {c.experts}, c.scope == ExpertScope::kMap, &w->expert_map);
  add("lora_a", c.lora_w, {c.lora_adapters, c.lora_rank, c.hidden}, lora, &w->lora_a);
  add("lora_b", c.lora_w, {c.lora_adapters, c.experts, c.lora_rank}, lora, &w->lora_b);
  add("lora_scale", DType::kF32, {c.lora_adapters}, lora, &w->lora_scale);
  // Adds the tensors of one matrix product. `named`: names and tensors of w, w_scale, bias, act_params, in
  // this order.
  using Named = std::pair<std::string_view, Tensor*>;
  const auto add_experts = [&](const ExpertGemm::Problem& p, std::vector<Named> named) {
    ExpertGemm::slots(p, [&](SlotSpec spec, Tensor ExpertGemm::Args::*member) {
      const size_t which = member == &ExpertGemm::Args::w            ? 0
                           : member == &ExpertGemm::Args::w_scale    ? 1
                           : member == &ExpertGemm::Args::bias       ? 2
                           : member == &ExpertGemm::Args::act_params ? 3
                                                                     : 4;
      if (which >= named.size()) return;
      spec.name = named[which].first;
      out.emplace_back(spec, named[which].second);
    });
  };
  ExpertWeights &e = w->experts, &s = w->shared;
  const ExpertProblems p = expert_problems(c);
  add_experts(p.up, {{"experts.up", &e.up},
                     {"experts.up_scale", &e.up_scale},
                     {"experts.up_bias", &e.up_bias},
                     {"experts.act_params", &e.act_params}});
  add_experts(p.down, {{"experts.down", &e.down},
                       {"experts.down_scale", &e.down_scale},
                       {"experts.down_bias", &e.down_bias}});
  if (c.expert_lora_rank > 0) {
    const AdaptedProblems adapted = adapted_problems(c);
    MoeWeights::ExpertAdapters& to = w->expert_adapters;
    for (const auto& [problem, a, b, a_name, b_name] :
         {std::tuple{&adapted.up_lora, &to.up_a, &to.up_b, "experts.up_lora_a", "experts.up_lora_b"},
          std::tuple{&adapted.down_lora, &to.down_a, &to.down_b, "experts.down_lora_a",
                     "experts.down_lora_b"}})
      ExpertLora::slots(*problem, [&](SlotSpec spec, Tensor ExpertLora::Args::*member) {
        if (member != &ExpertLora::Args::a && member != &ExpertLora::Args::b) return;
        const bool is_a = member == &ExpertLora::Args::a;
        spec.name = is_a ? a_name : b_name;
        out.emplace_back(spec, is_a ? a : b);
      });
    add("experts.lora_scale", DType::kF32, {c.lora_adapters}, true, &to.scale);
  }
  if (c.latent > 0) {
    add_experts(p.latent_in, {{"latent.in", &w->latent_in}});
    add_experts(p.latent_out, {{"latent.out", &w->latent_out}});
  }
  if (!shared_apart(c)) return out;
  add_experts(p.shared_up,
              {{"shared.up", &s.up}, {"shared.up_scale", &s.up_scale}, {"shared.up_bias", &s.up_bias}});
  add_experts(
      p.shared_down,
      {{"shared.down", &s.down}, {"shared.down_scale", &s.down_scale}, {"shared.down_bias", &s.down_bias}});
  return out;
}

std::vector<std::pair<SlotSpec, Tensor*>> io_slots(const MoeConfig& c, int64_t tokens, MoeIo* io) {
  std::vector<std::pair<SlotSpec, Tensor*>> out;
  for_each_io(c, tokens,
              [&](const SlotSpec& spec, Tensor MoeIo::*member) { out.emplace_back(spec, &(io->*member)); });
  return out;
}

}  // namespace sluice
