#include "nn/moe.h"

#include <cstring>
#include <optional>

#include "base/arena.h"
#include "nn/host_copy.h"
#include "nn/moe_path.h"
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
  std::optional<MoeAsOne> as_one;  // nothing: the parts at every count
};

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
  SLUICE_TRY(check_force(policy, {RouterGemm::kName, RouteTopk::kName, RouteGroup::kName, RouterRoute::kName,
                                  GroupRows::kName, ExpertGemm::kName, ExpertMlp::kName, Combine::kName}));
  std::unique_ptr<Moe> moe(new Moe(device, config, tokens_max));
  SLUICE_TRY(moe->make_plans(policy));
  if (shared_apart(config)) SLUICE_TRY(moe->make_shared(policy));
  moe->lay_out();
  return moe;
}

Status Moe::make_plans(const Policy& policy) {
  const MoeProblems p = problems_of(config_);
  SLUICE_TRY(plan_into<RouterGemm>(&plans_->router, device_, p.router, tokens_max_, policy));
  SLUICE_TRY(plan_into<RouteGroup>(&plans_->route, device_, p.route, tokens_max_, policy));
  SLUICE_TRY(plan_into<ExpertGemm>(&plans_->up, device_, p.mlp.up, tokens_max_, policy));
  SLUICE_TRY(
      plan_into<ExpertGemm>(&plans_->down, device_, p.mlp.down, tokens_max_ * slots_of(config_), policy));
  SLUICE_TRY(plan_into<Combine>(&plans_->combine, device_, p.combine, tokens_max_, policy));
  const DeviceInfo& d = device_.info();
  plans_->as_one = MoeAsOne::make(d, device_.catalog(), p, tokens_max_, policy, [&](int64_t n) {
    return plans_->router->cost_us(n, d) + plans_->route->cost_us(n, d) + plans_->up->cost_us(n, d) +
           plans_->down->cost_us(n * slots_of(config_), d) + plans_->combine->cost_us(n, d);
  });
  return {};
}

Status Moe::make_shared(const Policy& policy) {
  const MoeProblems p = problems_of(config_);
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
  at_.h = take(c.x, rows * c.intermediate);
  at_.g = take(c.g, rows * c.hidden);
  const bool shared = plans_->shared.has_value();
  if (shared) {
    at_.shared_count = take(DType::kI32, 1);
    at_.shared_begin = take(DType::kI32, 2);
    at_.shared_order = take(DType::kI32, n);
    at_.shared_position = take(DType::kI32, n);
    at_.shared_h = take(c.x, n * c.shared_intermediate);
    at_.shared_y = take(c.x, n * c.hidden);
  }
  at_.scratch = used;
  size_t scratch = 0;
  const auto need = [&](const auto& table) { scratch = std::max(scratch, table.workspace_bytes()); };
  need(*plans_->router), need(*plans_->route), need(*plans_->up), need(*plans_->down), need(*plans_->combine);
  if (shared) need(plans_->shared->group), need(plans_->shared->up), need(plans_->shared->down);
  if (plans_->as_one) need(plans_->as_one->route()), need(plans_->as_one->experts());
  workspace_bytes_ = used + scratch;
}

MoePath Moe::path(int64_t tokens) const {
  return plans_->as_one ? plans_->as_one->at(tokens) : MoePath::kParts;
}

MoeChoice Moe::choice(int64_t tokens, Workspace workspace) const {
  const auto view = [&](size_t at, DType dtype, int64_t columns) {
    return make_tensor(workspace.data + at, dtype, {tokens, columns}, device_.info().backend);
  };
  return {.logits = view(at_.logits, config_.logits, config_.experts),
          .ids = view(at_.ids, DType::kI32, slots_of(config_)),
          .weights = view(at_.weights, DType::kF32, slots_of(config_))};
}

Tensor Moe::shared_y(std::byte* base, int64_t tokens) const {
  return make_tensor(base + at_.shared_y, config_.x, {tokens, config_.hidden}, device_.info().backend);
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
  const Tensor h = view(at_.shared_h, c.x, {n, c.shared_intermediate});
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
                        .y = shared_y(base, n)};
  return visit("shared.down", plans_->shared->down, n, down);
}

template <class Visit>
Status Moe::stages(const MoeIo& io, const MoeWeights& w, std::byte* base, Visit visit) const {
  const int64_t n = io.x.shape[0];
  const MoeChoice choice = this->choice(n, {base, workspace_bytes_});
  RouteTopk::Args route;
  route.logits = choice.logits;
  route.bias = w.correction_bias;
  route.hash_table = w.hash_table;
  route.token_ids = io.token_ids;
  route.expert_map = w.expert_map;
  route.ids = choice.ids;
  route.weights = choice.weights;
  if (path(n) == MoePath::kAsOne) {
    RouterRoute::Args front{route, io.x, w.router, w.router_bias};
    return as_one(front, io, w, base, visit);
  }
  SLUICE_TRY(visit("router", *plans_->router, n,
                   RouterGemm::Args{.x = io.x, .w = w.router, .bias = w.router_bias, .y = choice.logits}));
  RouteGroup::Args grouped;
  static_cast<RouteTopk::Args&>(grouped) = route;
  return parts(grouped, io, w, base, visit);
}

template <class Visit>
Status Moe::as_one(const RouterRoute::Args& route, const MoeIo& io, const MoeWeights& w, std::byte* base,
                   Visit visit) const {
  const int64_t n = io.x.shape[0];
  SLUICE_TRY(visit("route", plans_->as_one->route(), n, route));
  ExpertMlp::Args experts{.x = io.x,
                          .up = w.experts.up,
                          .up_scale = w.experts.up_scale,
                          .up_bias = w.experts.up_bias,
                          .down = w.experts.down,
                          .down_scale = w.experts.down_scale,
                          .down_bias = w.experts.down_bias,
                          .ids = route.ids,
                          .weights = route.weights,
                          .shared = {},
                          .residual = io.residual,
                          .y = io.y};
  if (plans_->shared) {
    SLUICE_TRY(shared_stages(io, w, base, visit));
    experts.shared = shared_y(base, n);
  }
  return visit("experts", plans_->as_one->experts(), n, experts);
}

template <class Visit>
Status Moe::parts(RouteGroup::Args route, const MoeIo& io, const MoeWeights& w, std::byte* base,
                  Visit visit) const {
  const MoeConfig& c = config_;
  const int64_t n = io.x.shape[0], rows = n * slots_of(c), experts = local_experts(c) + shared_slots(c);
  const auto view = [&](size_t at, DType dtype, std::initializer_list<int64_t> shape) {
    return make_tensor(base + at, dtype, shape, device_.info().backend);
  };
  route.row_count = view(at_.row_count, DType::kI32, {experts});
  route.row_begin = view(at_.row_begin, DType::kI32, {experts + 1});
  route.order = view(at_.order, DType::kI32, {rows});
  route.position = view(at_.position, DType::kI32, {n, slots_of(c)});
  SLUICE_TRY(visit("route", *plans_->route, n, route));
  const Tensor h = view(at_.h, c.x, {rows, c.intermediate}), g = view(at_.g, c.g, {rows, c.hidden});
  const Tensor flat = c.weight_on_input ? view(at_.weights, DType::kF32, {rows}) : Tensor{};
  SLUICE_TRY(visit("experts.up", *plans_->up, n,
                   ExpertGemm::Args{.x = io.x,
                                    .w = w.experts.up,
                                    .w_scale = w.experts.up_scale,
                                    .bias = w.experts.up_bias,
                                    .act_params = {},
                                    .row_begin = route.row_begin,
                                    .row_count = route.row_count,
                                    .order = route.order,
                                    .weights = flat,
                                    .y = h}));
  SLUICE_TRY(visit("experts.down", *plans_->down, rows,
                   ExpertGemm::Args{.x = h,
                                    .w = w.experts.down,
                                    .w_scale = w.experts.down_scale,
                                    .bias = w.experts.down_bias,
                                    .act_params = {},
                                    .row_begin = route.row_begin,
                                    .row_count = route.row_count,
                                    .order = {},
                                    .weights = {},
                                    .y = g}));
  Combine::Args combine;
  if (plans_->shared) {
    SLUICE_TRY(shared_stages(io, w, base, visit));
    combine.shared = shared_y(base, n);
  }
  combine.g = g;
  combine.position = route.position;
  if (!c.weight_on_input) combine.weights = route.weights;
  combine.residual = io.residual;
  combine.y = io.y;
  return visit("combine", *plans_->combine, n, combine);
}

Status Moe::check_io(const MoeIo& io) const {
  Status status;
  for_each_io(config_, io.x.shape[0], [&](const SlotSpec& spec, Tensor MoeIo::*member) {
    if (status.ok()) status = check_slot(spec, io.*member, device_.info().backend, 1);
  });
  if (!status.ok()) status.message = "moe: " + status.message;
  return status;
}

Status Moe::check_workspace(Workspace workspace) const {
  if (workspace.data && workspace.bytes >= workspace_bytes_) return {};
  return invalid("moe: workspace: wanted " + std::to_string(workspace_bytes_) + " bytes, found " +
                 std::to_string(workspace.data ? workspace.bytes : 0));
}

Status Moe::forward(const MoeIo& io, const MoeWeights& weights, Workspace workspace, Stream stream) const {
  SLUICE_TRY(check_io(io));
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
  SLUICE_TRY(check_io(io));
  SLUICE_TRY(check_workspace(workspace));
  const Workspace scratch{workspace.data + at_.scratch, workspace.bytes - at_.scratch};
  std::vector<StageCheck> out;
  const auto hold_to_reference = [&]<class Op>(const char* stage, const PlanTable<Op>& table, int64_t tokens,
                                               const typename Op::Args& args) -> Status {
    // Before the run: an output may be one of the inputs.
    const typename Op::Problem problem = Op::at_tokens(table.at(tokens).problem(), tokens);
    Result<HostCopy<Op>> host = HostCopy<Op>::make(device_, problem, args, stream);
    if (!host.ok()) return host.status();
    Expectations wanted = reference(problem, host.value().args());
    SLUICE_TRY(table.run(tokens, args, scratch, stream));
    SLUICE_TRY(host.value().fetch(stream));
    for (Expected& given : expected_given(problem, host.value().args())) wanted.push_back(std::move(given));
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
    out.emplace_back(stage, table.at(n).choice());
  };
  const bool as_one = path(tokens) == MoePath::kAsOne;
  if (as_one) {
    add("route", plans_->as_one->route(), tokens);
  } else {
    add("router", *plans_->router, tokens);
    add("route", *plans_->route, tokens);
    add("experts.up", *plans_->up, tokens);
    add("experts.down", *plans_->down, tokens * slots_of(config_));
  }
  if (plans_->shared) {
    add("shared.group", plans_->shared->group, tokens);
    add("shared.up", plans_->shared->up, tokens);
    add("shared.down", plans_->shared->down, tokens);
  }
  if (as_one) {
    add("experts", plans_->as_one->experts(), tokens);
  } else {
    add("combine", *plans_->combine, tokens);
  }
  return out;
}

}  // namespace sluice
