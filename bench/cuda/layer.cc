#include "cuda/layer.h"

#include "cuda/commit.h"

namespace sluice::bench {
namespace {

constexpr int64_t kTileRows = 64;

RouteTopk::Problem route_of(const LayerShape& shape, int64_t tokens) {
  RouteTopk::Problem p = RouteTopk::at_tokens(shape.route, tokens);
  p.experts = shape.gate.experts;
  p.logits = shape.gate.logits();
  return p;
}

}  // namespace

std::vector<LayerShape> layer_shapes() {
  const RouteTopk::Problem gpt_oss{.top_k = 4, .method = RoutingMethod::kRenormalize};
  const RouteTopk::Problem deepseek_v3{.top_k = 8,
                                       .method = RoutingMethod::kDeepSeekV3,
                                       .bias = true,
                                       .groups = 8,
                                       .topk_groups = 4,
                                       .scale = 2.5};
  const RouteTopk::Problem deepseek_v4{
      .top_k = 6, .method = RoutingMethod::kSqrtSoftplus, .bias = true, .scale = 1.5};
  return {{{2880, 32, true, DType::kBF16}, gpt_oss},
          {{2880, 128, true, DType::kBF16}, gpt_oss},
          {{4096, 256, false, DType::kF32}, deepseek_v4},
          {{7168, 256, false, DType::kF32}, deepseek_v3},
          {{7168, 384, false, DType::kF32}, deepseek_v4}};
}

Contender contender_of(const Way& way, bool dependent) {
  return {Who::kSluice, way.impl, commit(), dependent, [steps = way.steps](int64_t i) -> Status {
            for (const auto& step : steps) SLUICE_TRY(step(i));
            return {};
          }};
}

Layer::Layer(Gate& gate, const LayerShape& shape, int64_t tokens)
    : gate_(gate),
      memory_(gate.memory().device()),
      norm_{.tokens = tokens, .hidden = shape.gate.hidden},
      router_route_{
          .route = route_of(shape, tokens), .hidden = shape.gate.hidden, .gate_bias = shape.gate.bias},
      route_group_{.route = route_of(shape, tokens), .tile_rows = kTileRows} {}

Status Layer::make() {
  SLUICE_TRY(memory_.random(DType::kBF16, {norm_.hidden}, 1, &norm_weight_));
  SLUICE_TRY(memory_.several(DType::kBF16, {norm_.tokens, norm_.hidden}, kTurns, &h_));
  routes_.resize(kTurns);
  for (RouteGroup::Args& args : routes_) {
    SLUICE_TRY(make_tensors(memory_, route_group_, &args));
    // The bias is far smaller than a score: it changes some choices, but tokens still choose different experts.
    if (args.bias.present()) SLUICE_TRY(memory_.fill(args.bias, 0.01));
  }
  return {};
}

RmsNorm::Args Layer::norm_args(int64_t i) const {
  return {.x = gate_.args(norm_.tokens, i).x, .weight = norm_weight_, .residual = {}, .y = turn(h_, i)};
}

RouterGemm::Args Layer::gate_args(int64_t i) const {
  RouterGemm::Args a = gate_.args(norm_.tokens, i);
  if (normed_) a.x = turn(h_, i);
  return a;
}

RouteGroup::Args Layer::routes(int64_t i) const {
  RouteGroup::Args a = routes_[static_cast<size_t>(i) % routes_.size()];
  a.logits = gate_args(i).y;
  return a;
}

RouterRoute::Args Layer::router_route_args(int64_t i) const {
  RouterRoute::Args a;
  static_cast<RouteTopk::Args&>(a) = routes(i);
  const RouterGemm::Args g = gate_args(i);
  a.x = g.x;
  a.w = g.w;
  a.gate_bias = g.bias;
  return a;
}

template <class Op, class MakeArgs>
Status Layer::add(Way* way, const typename Op::Problem& problem, MakeArgs args) {
  Result<Step> step = make_step<Op>(memory_, problem, args);
  if (!step.ok()) return step.status();
  way->steps.push_back(std::move(step).value());
  return {};
}

Status Layer::norm(Way* way) {
  return add<RmsNorm>(way, norm_, [this](int64_t i) { return norm_args(i); });
}
Status Layer::gate(Way* way) {
  return add<RouterGemm>(way, RouterRoute::gate(router_route_), [this](int64_t i) { return gate_args(i); });
}
Status Layer::route(Way* way) {
  return add<RouteTopk>(way, route_group_.route, [this](int64_t i) { return routes(i); });
}
Status Layer::group(Way* way) {
  return add<GroupRows>(way, RouteGroup::group(route_group_),
                        [this](int64_t i) { return RouteGroup::group(routes(i)); });
}
Status Layer::route_group(Way* way) {
  return add<RouteGroup>(way, route_group_, [this](int64_t i) { return routes(i); });
}
Status Layer::gate_route(Way* way) {
  return add<RouterRoute>(way, router_route_, [this](int64_t i) { return router_route_args(i); });
}

Status Layer::poison_outputs() {
  SLUICE_TRY(poison(h_[0], memory_.stream()));
  SLUICE_TRY(poison(gate_args(0).y, memory_.stream()));
  return poison_routes(route_group_, routes_[0], memory_.stream());
}

Result<std::string> Layer::check_norm() {
  RmsNorm::Args first = norm_args(0);
  first.x.shape[0] = first.y.shape[0] = 1;
  return check_all<RmsNorm>(memory_.device(), RmsNorm::at_tokens(norm_, 1), first);
}

Result<std::string> Layer::check_choice() {
  const RouterGemm::Args g = gate_args(0);
  const Result<std::string> logits = gate_.check(g.x, g.y, Who::kSluice);
  if (!logits.ok() || !logits.value().empty()) return logits;
  return check_routes(memory_.device(), route_group_.route, routes(0), Who::kSluice);
}

Result<std::string> Layer::check_grouping() {
  return check_groups(memory_.device(), RouteGroup::group(route_group_), RouteGroup::group(routes(0)));
}

}  // namespace sluice::bench
