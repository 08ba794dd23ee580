#include "nn/moe.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <type_traits>

#include "base/arena.h"
#include "nn/host_copy.h"
#include "nn/plan_into.h"

namespace sluice {

struct Moe::Shared {
  PlanTable<GroupRows> group;
  PlanTable<ExpertGemm> up, down;
};
struct Moe::Plans {
  std::optional<PlanTable<RouterGemm>> router;
  std::optional<PlanTable<RouteGroup>> route;
  std::optional<PlanTable<ExpertGemm>> up, down;
  std::optional<PlanTable<Combine>> combine;
  std::optional<Shared> shared;
};

namespace {

// Of a token: of the experts that it chose, and of its shared one.
int64_t slots_of(const MoeConfig& c) { return c.top_k + shared_slots(c); }
// Whether the shared expert has a path of its own.
bool shared_apart(const MoeConfig& c) { return c.shared_intermediate > 0 && !c.shared_as_slots; }

// Between the two GEMMs of an expert: the second multiplies what the first rounded to.
DType hidden_type(const MoeConfig& c) { return c.x; }

ExpertGemm::Problem up_problem(const MoeConfig& c, int64_t experts, int64_t intermediate, DType w) {
  return {.rows = 0,
          .experts = experts,
          .features = intermediate,
          .width = c.hidden,
          .tokens = 0,
          .slots = 1,
          .x = c.x,
          .w = w,
          .y = hidden_type(c),
          .layout = c.layout,
          .gate_order = c.gate_order,
          .act = c.act,
          .alpha = c.alpha,
          .beta = c.beta,
          .limit = c.limit,
          .bias = c.up_bias};
}

// Of the matrices that `up` feeds.
ExpertGemm::Problem down_problem(const MoeConfig& c, const ExpertGemm::Problem& up, DType y) {
  return {.rows = 0,
          .experts = up.experts,
          .experts_routed = up.experts_routed,
          .features = c.hidden,
          .width = up.features,
          .x = hidden_type(c),
          .w = up.w,
          .y = y,
          .layout = c.layout,
          .bias = c.down_bias,
          .settled = true};  // the groups are as old as those of `up`
}

// What each stage is, for no tokens yet.
struct Problems {
  RouterGemm::Problem router;
  RouteGroup::Problem route;
  GroupRows::Problem shared_group;
  ExpertProblems mlp;
  Combine::Problem combine;
};

Problems problems_of(const MoeConfig& c) {
  Problems p;
  p.mlp = expert_problems(c);
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
  p.route.mapped_experts = c.scope == ExpertScope::kMap ? p.mlp.up.experts : 0;
  p.combine = {.tokens = 0,
               .slots = slots_of(c),
               .rows = 0,
               .hidden = c.hidden,
               .experts = p.mlp.up.experts,
               .g = DType::kF32,
               .y = c.x,
               .weighted = !c.weight_on_input,
               .shared = shared_apart(c),
               .residual = c.residual,
               .settled = true};
  p.shared_group = {.slots = 1, .experts = 1};
  return p;
}

}  // namespace

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
  p.down = down_problem(c, p.up, DType::kF32);
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

Moe::Moe(Device& device, const MoeConfig& config, int64_t tokens_max)
    : device_(device), config_(config), tokens_max_(tokens_max), plans_(std::make_unique<Plans>()) {}

Moe::~Moe() {
  if (zeros_) device_.release(zeros_);
}

Result<std::unique_ptr<Moe>> Moe::plan(Device& device, const MoeConfig& config, int64_t tokens_max,
                                       const Policy& policy) {
  if (tokens_max < 1)
    return invalid("moe: tokens_max: wanted at least 1, found " + std::to_string(tokens_max));
  SLUICE_TRY(check_shared(config));
  std::unique_ptr<Moe> moe(new Moe(device, config, tokens_max));
  SLUICE_TRY(moe->make_plans(policy));
  if (shared_apart(config)) SLUICE_TRY(moe->make_shared(policy));
  moe->lay_out();
  return moe;
}

Status Moe::make_plans(const Policy& policy) {
  const Problems p = problems_of(config_);
  SLUICE_TRY(plan_into<RouterGemm>(&plans_->router, device_, p.router, tokens_max_, policy));
  SLUICE_TRY(plan_into<RouteGroup>(&plans_->route, device_, p.route, tokens_max_, policy));
  SLUICE_TRY(plan_into<ExpertGemm>(&plans_->up, device_, p.mlp.up, tokens_max_, policy));
  SLUICE_TRY(
      plan_into<ExpertGemm>(&plans_->down, device_, p.mlp.down, tokens_max_ * slots_of(config_), policy));
  return plan_into<Combine>(&plans_->combine, device_, p.combine, tokens_max_, policy);
}

Status Moe::make_shared(const Policy& policy) {
  const Problems p = problems_of(config_);
  std::optional<PlanTable<GroupRows>> group;
  std::optional<PlanTable<ExpertGemm>> up, down;
  SLUICE_TRY(plan_into<GroupRows>(&group, device_, p.shared_group, tokens_max_, policy));
  SLUICE_TRY(plan_into<ExpertGemm>(&up, device_, p.mlp.shared_up, tokens_max_, policy));
  SLUICE_TRY(plan_into<ExpertGemm>(&down, device_, p.mlp.shared_down, tokens_max_, policy));
  plans_->shared = Shared{*std::move(group), *std::move(up), *std::move(down)};
  const size_t bytes = static_cast<size_t>(tokens_max_) * sizeof(int32_t);
  Result<void*> zeros = device_.allocate(bytes);
  if (!zeros.ok()) return zeros.status();
  zeros_ = zeros.value();
  const std::vector<int32_t> host(static_cast<size_t>(tokens_max_), 0);
  SLUICE_TRY(device_.copy(zeros_, host.data(), bytes, device_.stream()));
  return device_.wait(device_.stream());
}

void Moe::lay_out() {
  const MoeConfig& c = config_;
  const int64_t n = tokens_max_, rows = n * slots_of(c), experts = local_experts(c) + shared_slots(c);
  size_t used = 0;
  const auto take = [&](DType dtype, int64_t elements) {
    const size_t at = used;
    used += Arena::footprint(static_cast<size_t>(bytes_of(dtype, elements)));
    return at;
  };
  at_.logits = take(c.logits, n * c.experts);
  at_.ids = take(DType::kI32, rows);
  at_.weights = take(DType::kF32, rows);
  at_.row_count = take(DType::kI32, experts);
  at_.row_begin = take(DType::kI32, experts + 1);
  at_.order = take(DType::kI32, rows);
  at_.position = take(DType::kI32, rows);
  at_.h = take(hidden_type(c), rows * c.intermediate);
  at_.g = take(DType::kF32, rows * c.hidden);
  const bool shared = plans_->shared.has_value();
  if (shared) {
    at_.shared_count = take(DType::kI32, 1);
    at_.shared_begin = take(DType::kI32, 2);
    at_.shared_order = take(DType::kI32, n);
    at_.shared_position = take(DType::kI32, n);
    at_.shared_h = take(hidden_type(c), n * c.shared_intermediate);
    at_.shared_y = take(c.x, n * c.hidden);
  }
  at_.scratch = used;
  size_t scratch = 0;
  const auto need = [&](const auto& table) { scratch = std::max(scratch, table.workspace_bytes()); };
  need(*plans_->router), need(*plans_->route), need(*plans_->up), need(*plans_->down), need(*plans_->combine);
  if (shared) need(plans_->shared->group), need(plans_->shared->up), need(plans_->shared->down);
  workspace_bytes_ = used + scratch;
}

template <class Visit>
Status Moe::shared_stages(const MoeIo& io, const MoeWeights& w, std::byte* base, Visit visit) const {
  const MoeConfig& c = config_;
  const int64_t n = io.x.shape[0];
  const Backend where = device_.info().backend;
  const auto view = [&](size_t at, DType dtype, std::initializer_list<int64_t> shape) {
    return make_tensor(base + at, dtype, shape, where);
  };
  const Tensor count = view(at_.shared_count, DType::kI32, {1}),
               begin = view(at_.shared_begin, DType::kI32, {2});
  const Tensor order = view(at_.shared_order, DType::kI32, {n});
  const Tensor h = view(at_.shared_h, hidden_type(c), {n, c.shared_intermediate});
  SLUICE_TRY(visit("shared.group", plans_->shared->group, n,
                   GroupRows::Args{.ids = make_tensor(zeros_, DType::kI32, {n, 1}, where),
                                   .row_count = count,
                                   .row_begin = begin,
                                   .order = order,
                                   .position = view(at_.shared_position, DType::kI32, {n, 1}),
                                   .tile_count = {},
                                   .tiles = {}}));
  ExpertGemm::Args up{.x = io.x,
                      .w = w.shared.up,
                      .w_scale = w.shared.up_scale,
                      .bias = w.shared.up_bias,
                      .act_params = {},
                      .row_begin = begin,
                      .row_count = count,
                      .order = order,
                      .weights = {},
                      .y = h};
  SLUICE_TRY(visit("shared.up", plans_->shared->up, n, up));
  ExpertGemm::Args down{.x = h,
                        .w = w.shared.down,
                        .w_scale = w.shared.down_scale,
                        .bias = w.shared.down_bias,
                        .act_params = {},
                        .row_begin = begin,
                        .row_count = count,
                        .order = {},
                        .weights = {},
                        .y = view(at_.shared_y, c.x, {n, c.hidden})};
  return visit("shared.down", plans_->shared->down, n, down);
}

template <class Visit>
Status Moe::stages(const MoeIo& io, const MoeWeights& w, std::byte* base, Visit visit) const {
  const MoeConfig& c = config_;
  const int64_t n = io.x.shape[0], slots = slots_of(c), rows = n * slots,
                experts = local_experts(c) + shared_slots(c);
  const Backend where = device_.info().backend;
  const auto view = [&](size_t at, DType dtype, std::initializer_list<int64_t> shape) {
    return make_tensor(base + at, dtype, shape, where);
  };
  const Tensor logits = view(at_.logits, c.logits, {n, c.experts});
  SLUICE_TRY(visit("router", *plans_->router, n,
                   RouterGemm::Args{.x = io.x, .w = w.router, .bias = w.router_bias, .y = logits}));
  const Tensor ids = view(at_.ids, DType::kI32, {n, slots}),
               weights = view(at_.weights, DType::kF32, {n, slots});
  const Tensor count = view(at_.row_count, DType::kI32, {experts});
  const Tensor begin = view(at_.row_begin, DType::kI32, {experts + 1});
  const Tensor order = view(at_.order, DType::kI32, {rows});
  const Tensor position = view(at_.position, DType::kI32, {n, slots});
  RouteGroup::Args route;
  route.logits = logits;
  route.bias = w.correction_bias;
  route.hash_table = w.hash_table;
  route.token_ids = io.token_ids;
  route.expert_map = w.expert_map;
  route.ids = ids;
  route.weights = weights;
  route.row_count = count, route.row_begin = begin;
  route.order = order, route.position = position;
  SLUICE_TRY(visit("route", *plans_->route, n, route));
  const Tensor h = view(at_.h, hidden_type(c), {rows, c.intermediate}),
               g = view(at_.g, DType::kF32, {rows, c.hidden});
  const Tensor flat = c.weight_on_input ? view(at_.weights, DType::kF32, {rows}) : Tensor{};
  SLUICE_TRY(visit("experts.up", *plans_->up, n,
                   ExpertGemm::Args{.x = io.x,
                                    .w = w.experts.up,
                                    .w_scale = w.experts.up_scale,
                                    .bias = w.experts.up_bias,
                                    .act_params = {},
                                    .row_begin = begin,
                                    .row_count = count,
                                    .order = order,
                                    .weights = flat,
                                    .y = h}));
  SLUICE_TRY(visit("experts.down", *plans_->down, rows,
                   ExpertGemm::Args{.x = h,
                                    .w = w.experts.down,
                                    .w_scale = w.experts.down_scale,
                                    .bias = w.experts.down_bias,
                                    .act_params = {},
                                    .row_begin = begin,
                                    .row_count = count,
                                    .order = {},
                                    .weights = {},
                                    .y = g}));
  Combine::Args combine;
  if (plans_->shared) {
    SLUICE_TRY(shared_stages(io, w, base, visit));
    combine.shared = view(at_.shared_y, c.x, {n, c.hidden});
  }
  combine.g = g;
  combine.position = position;
  if (!c.weight_on_input) combine.weights = weights;
  combine.residual = io.residual;
  combine.y = io.y;
  return visit("combine", *plans_->combine, n, combine);
}

Status Moe::check_workspace(Workspace workspace) const {
  if (workspace.data && workspace.bytes >= workspace_bytes_) return {};
  return invalid("moe: workspace: wanted " + std::to_string(workspace_bytes_) + " bytes, found " +
                 std::to_string(workspace.data ? workspace.bytes : 0));
}

Status Moe::forward(const MoeIo& io, const MoeWeights& weights, Workspace workspace, Stream stream) const {
  SLUICE_TRY(check_workspace(workspace));
  const Workspace scratch{workspace.data + at_.scratch, workspace.bytes - at_.scratch};
  return stages(io, weights, workspace.data,
                [&]<class Op>(const char* stage, const PlanTable<Op>& table, int64_t tokens,
                              const typename Op::Args& args) -> Status {
                  Status status = table.run(tokens, args, scratch, stream);
                  if (!status.ok()) status.message = std::string("moe ") + stage + ": " + status.message;
                  return status;
                });
}

Result<std::vector<StageCheck>> Moe::check(const MoeIo& io, const MoeWeights& weights, Workspace workspace,
                                           Stream stream) const {
  SLUICE_TRY(check_workspace(workspace));
  const Workspace scratch{workspace.data + at_.scratch, workspace.bytes - at_.scratch};
  std::vector<StageCheck> out;
  const auto hold_to_reference = [&]<class Op>(const char* stage, const PlanTable<Op>& table, int64_t tokens,
                                               const typename Op::Args& args) -> Status {
    // Before the run: an output may be one of the inputs.
    const typename Op::Problem problem = Op::at_tokens(table.at(tokens).problem(), tokens);
    Result<HostCopy<Op>> host = HostCopy<Op>::make(device_, problem, args, stream);
    if (!host.ok()) return host.status();
    const Expectations wanted = reference(problem, host.value().args());
    SLUICE_TRY(table.run(tokens, args, scratch, stream));
    SLUICE_TRY(host.value().fetch(stream));
    StageCheck result{.stage = stage, .kernel = std::string(table.at(tokens).kernel())};
    Op::slots(problem, [&](const SlotSpec& spec, Tensor Op::Args::*member) {
      for (const Expected& want : wanted) {
        if (want.slot != spec.name) continue;
        const Comparison c = compare(want, host.value().args().*member);
        if (c.worst_share <= result.worst) continue;
        result.worst = c.worst_share;
        result.detail = c.text;
      }
    });
    out.push_back(std::move(result));
    return {};
  };
  const Status status = stages(io, weights, workspace.data, hold_to_reference);
  if (!status.ok()) return status;
  return out;
}

std::vector<std::pair<std::string, std::string>> Moe::kernels(int64_t tokens) const {
  std::vector<std::pair<std::string, std::string>> out;
  const auto add = [&](const char* stage, const auto& table, int64_t n) {
    out.emplace_back(stage, std::string(table.at(n).kernel()));
  };
  add("router", *plans_->router, tokens);
  add("route", *plans_->route, tokens);
  add("experts.up", *plans_->up, tokens);
  add("experts.down", *plans_->down, tokens * slots_of(config_));
  if (plans_->shared) {
    add("shared.group", plans_->shared->group, tokens);
    add("shared.up", plans_->shared->up, tokens);
    add("shared.down", plans_->shared->down, tokens);
  }
  add("combine", *plans_->combine, tokens);
  return out;
}

std::vector<StageProblem> moe_problems(const MoeConfig& c, int64_t tokens) {
  const Problems p = problems_of(c);
  std::vector<StageProblem> out;
  const auto add = [&]<class Op>(const char* stage, std::type_identity<Op>,
                                 const typename Op::Problem& problem, int64_t n) {
    out.push_back({stage, any_problem<Op>(Op::at_tokens(problem, n))});
  };
  add("router", std::type_identity<RouterGemm>{}, p.router, tokens);
  add("route", std::type_identity<RouteGroup>{}, p.route, tokens);
  add("experts.up", std::type_identity<ExpertGemm>{}, p.mlp.up, tokens);
  add("experts.down", std::type_identity<ExpertGemm>{}, p.mlp.down, tokens * slots_of(c));
  if (shared_apart(c)) {
    add("shared.group", std::type_identity<GroupRows>{}, p.shared_group, tokens);
    add("shared.up", std::type_identity<ExpertGemm>{}, p.mlp.shared_up, tokens);
    add("shared.down", std::type_identity<ExpertGemm>{}, p.mlp.shared_down, tokens);
  }
  add("combine", std::type_identity<Combine>{}, p.combine, tokens);
  return out;
}

}  // namespace sluice
