#include "graph/runs.h"

namespace sluice {
namespace {

bool same(const Bind& a, const Bind& b) {
  return a.value == b.value && a.column == b.column && a.slice == b.slice;
}
bool linked(const Bind& out, const Bind& in) { return out.value != kNoValue && same(out, in); }

// [rows * columns] as [rows, columns].
Tensor as_rows(Tensor t, int64_t columns) {
  if (!t.present() || t.rank == 2) return t;
  t.rank = 2, t.shape[0] /= columns, t.shape[1] = columns;
  t.stride = {columns, 1};
  return t;
}

// The stages of both products: the second reads what the first writes, in the same groups.
bool chained(const RunView& v, size_t up, size_t down) {
  using A = ExpertGemm::Args;
  const auto at = [&](size_t k, Tensor A::*slot) { return v.bind<ExpertGemm>(k, slot); };
  return linked(at(up, &A::y), at(down, &A::x)) && linked(at(up, &A::row_begin), at(down, &A::row_begin)) &&
         linked(at(up, &A::row_count), at(down, &A::row_count));
}

// What both products are of; none where their contracts hold more than it says.
std::optional<ExpertMlp::Problem> mlp_of(const ExpertGemm::Problem& up, const ExpertGemm::Problem& down) {
  ExpertMlp::Problem p{.tokens = 0,
                       .slots = up.slots,
                       .experts = up.experts,
                       .experts_routed = up.experts_routed,
                       .hidden = up.width,
                       .intermediate = up.features,
                       .x = up.x,
                       .w = up.w,
                       .b = up.b,
                       .g = down.y,
                       .layout = up.layout,
                       .gate_order = up.gate_order,
                       .act = up.act,
                       .alpha = up.alpha,
                       .beta = up.beta,
                       .limit = up.limit,
                       .up_bias = up.bias,
                       .down_bias = down.bias,
                       .weight_on_input = up.weighted,
                       .x_unaligned = up.x_unaligned};
  if (ExpertMlp::up(p) == up && ExpertMlp::down(p) == down) return p;
  return {};
}

RopeKvWrite::Problem turn_of(const RunView& v, size_t rope, size_t write) {
  const KvWrite::Problem& w = v.of<KvWrite>(write).problem();
  RopeKvWrite::Problem p{.rope = v.of<Rope>(rope).problem(),
                         .kv_heads = w.kv_heads,
                         .pages = w.pages,
                         .page_size = w.page_size,
                         .cache = w.cache};
  p.rope.heads -= w.kv_heads;
  p.settled = v.given(v.bind<Rope>(rope, &Rope::Args::positions)) &&
              v.given(v.bind<Rope>(rope, &Rope::Args::table)) &&
              v.given(v.bind<KvWrite>(write, &KvWrite::Args::slot_of));
  return p;
}

// Whether no stage from `end` on reads any of `count` columns of a value, which a run leaves other than its stages do.
bool unread(const Graph& graph, size_t end, const Bind& columns, int64_t count) {
  const Value& v = graph.values()[static_cast<size_t>(columns.value)];
  if (v.place != Place::kBetween || v.kept) return false;
  for (size_t i = end; i < graph.stages().size(); ++i) {
    const std::vector<Bind>& binds = graph.stages()[i].slots;
    for (size_t k = 0; k < binds.size(); ++k) {
      if (binds[k].value != columns.value) continue;
      const SlotSpec spec = graph.stages()[i].op->slots(1)[k];
      int64_t width = 1;
      for (int d = 1; d < spec.rank; ++d) width *= spec.shape[static_cast<size_t>(d)];
      if (binds[k].column < columns.column + count && columns.column < binds[k].column + width) return false;
    }
  }
  return true;
}

// Keys stand behind the queries and values behind the keys, in the rows that turn; the turned keys are read in the cache alone.
bool turns_and_writes(const RunView& v, size_t rope, size_t write, const RopeKvWrite::Problem& p) {
  const Bind x = v.bind<Rope>(rope, &Rope::Args::x), keys = v.bind<KvWrite>(write, &KvWrite::Args::k),
             values = v.bind<KvWrite>(write, &KvWrite::Args::v);
  const int64_t head = p.rope.head_dim;
  return p.rope.heads > 0 && RopeKvWrite::write(p) == v.of<KvWrite>(write).problem() &&
         x.value == keys.value && x.value == values.value && keys.column == x.column + p.rope.heads * head &&
         values.column == keys.column + p.kv_heads * head &&
         unread(v.graph(), v.first() + write + 1, keys, p.kv_heads * head);
}

}  // namespace

bool unseen(const Graph& graph, size_t first, size_t end, ValueId value) {
  const Value& v = graph.values()[static_cast<size_t>(value)];
  if (v.place != Place::kBetween || v.kept) return false;
  for (size_t i = 0; i < graph.stages().size(); ++i) {
    if (first <= i && i < end) continue;
    for (const Bind& b : graph.stages()[i].slots)
      if (b.value == value) return false;
  }
  return true;
}

std::optional<RouterRoute::Problem> RunOf<RouterRoute>::problem(const RunView& v) {
  const RouterGemm::Problem& gate = v.of<RouterGemm>(0).problem();
  const RouterRoute::Problem p{.route = v.of<RouteTopk>(1).problem(),
                               .hidden = gate.hidden,
                               .x = gate.x,
                               .w = gate.w,
                               .gate_bias = gate.bias};
  if (!linked(v.bind<RouterGemm>(0, &RouterGemm::Args::y), v.bind<RouteTopk>(1, &RouteTopk::Args::logits)) ||
      p.route.input != RoutingInput::kLogits || RouterRoute::gate(p) != gate)
    return {};
  return p;
}

RouterRoute::Args RunOf<RouterRoute>::args(const RouterRoute::Problem&, const RouterGemm::Args& gate,
                                           const RouteTopk::Args& route) {
  RouterRoute::Args out;
  static_cast<RouteTopk::Args&>(out) = route;
  out.x = gate.x, out.w = gate.w, out.gate_bias = gate.bias;
  return out;
}

std::optional<NormRouterRoute::Problem> RunOf<NormRouterRoute>::problem(const RunView& v) {
  const RmsNorm::Problem& norm = v.of<RmsNorm>(0).problem();
  const auto router = RunOf<RouterRoute>::problem(RunView(v.graph(), v.first() + 1));
  if (!router) return {};
  const NormRouterRoute::Problem p{.router = *router,
                                   .eps = norm.eps,
                                   .norm_w = norm.w,
                                   .x_unaligned = v.unaligned({v.bind<RmsNorm>(0, &RmsNorm::Args::x),
                                                               v.bind<RmsNorm>(0, &RmsNorm::Args::y)})};
  if (!linked(v.bind<RmsNorm>(0, &RmsNorm::Args::y), v.bind<RouterGemm>(1, &RouterGemm::Args::x)) ||
      NormRouterRoute::norm(p) != norm)
    return {};
  return p;
}

NormRouterRoute::Args RunOf<NormRouterRoute>::args(const NormRouterRoute::Problem& p,
                                                   const RmsNorm::Args& norm, const RouterGemm::Args& gate,
                                                   const RouteTopk::Args& route) {
  NormRouterRoute::Args out;
  static_cast<RouterRoute::Args&>(out) = RunOf<RouterRoute>::args(p.router, gate, route);
  out.x = norm.x, out.norm_weight = norm.weight, out.normed = norm.y;
  return out;
}

std::optional<RouteGroup::Problem> RunOf<RouteGroup>::problem(const RunView& v) {
  const GroupRows::Problem& group = v.of<GroupRows>(1).problem();
  RouteGroup::Problem p{
      .route = v.of<RouteTopk>(0).problem(), .row_align = group.row_align, .tile_rows = group.tile_rows};
  if (p.route.scope == ExpertScope::kMap) p.mapped_experts = group.experts;
  if (!linked(v.bind<RouteTopk>(0, &RouteTopk::Args::ids), v.bind<GroupRows>(1, &GroupRows::Args::ids)) ||
      RouteGroup::group(p) != group)
    return {};
  return p;
}

RouteGroup::Args RunOf<RouteGroup>::args(const RouteGroup::Problem&, const RouteTopk::Args& route,
                                         const GroupRows::Args& group) {
  RouteGroup::Args out;
  static_cast<RouteTopk::Args&>(out) = route;
  static_cast<GroupTensors&>(out) = group;
  return out;
}

std::optional<GroupedMlp::Problem> RunOf<GroupedMlp>::problem(const RunView& v) {
  if (!chained(v, 0, 1)) return {};
  const auto mlp = mlp_of(v.of<ExpertGemm>(0).problem(), v.of<ExpertGemm>(1).problem());
  if (!mlp) return {};
  return GroupedMlp::of(*mlp);
}

std::vector<ValueId> RunOf<GroupedMlp>::hidden(const RunView& v) {
  return {v.bind<ExpertGemm>(0, &ExpertGemm::Args::y).value};
}

GroupedMlp::Args RunOf<GroupedMlp>::args(const GroupedMlp::Problem& p, const ExpertGemm::Args& up,
                                         const ExpertGemm::Args& down) {
  return {.x = up.x,
          .up = up.w,
          .up_scale = up.w_scale,
          .up_bias = up.bias,
          .down = down.w,
          .down_scale = down.w_scale,
          .down_bias = down.bias,
          .row_begin = up.row_begin,
          .row_count = up.row_count,
          .order = up.order,
          .weights = as_rows(up.weights, p.mlp.slots),
          .g = down.y};
}

std::optional<ExpertMlp::Problem> RunOf<ExpertMlp>::problem(const RunView& v) {
  using G = GroupRows::Args;
  using E = ExpertGemm::Args;
  const Combine::Problem& sum = v.of<Combine>(3).problem();
  const auto group = [&](Tensor G::*slot) { return v.bind<GroupRows>(0, slot); };
  const auto up = [&](Tensor E::*slot) { return v.bind<ExpertGemm>(1, slot); };
  const auto combine = [&](Tensor Combine::Args::*slot) { return v.bind<Combine>(3, slot); };
  if (!chained(v, 1, 2) || !linked(group(&G::row_begin), up(&E::row_begin)) ||
      !linked(group(&G::row_count), up(&E::row_count)) || !linked(group(&G::order), up(&E::order)) ||
      !linked(group(&G::position), combine(&Combine::Args::position)) ||
      !linked(v.bind<ExpertGemm>(2, &E::y), combine(&Combine::Args::g)))
    return {};
  auto p = mlp_of(v.of<ExpertGemm>(1).problem(), v.of<ExpertGemm>(2).problem());
  if (!p) return {};
  p->y = sum.y, p->shared = sum.shared, p->residual = sum.residual, p->scale = sum.scale;
  Combine::Problem wanted = ExpertMlp::combine(*p);
  wanted.experts = sum.experts;  // of a bias, which there is none of
  if (ExpertMlp::group(*p) != v.of<GroupRows>(0).problem() || wanted != sum) return {};
  return p;
}

std::vector<ValueId> RunOf<ExpertMlp>::hidden(const RunView& v) {
  using G = GroupRows::Args;
  std::vector<ValueId> out;
  for (Tensor G::*slot : {static_cast<Tensor G::*>(&G::row_count), static_cast<Tensor G::*>(&G::row_begin),
                          static_cast<Tensor G::*>(&G::order), static_cast<Tensor G::*>(&G::position)})
    out.push_back(v.bind<GroupRows>(0, slot).value);
  for (const size_t k : {size_t{1}, size_t{2}})
    out.push_back(v.bind<ExpertGemm>(k, &ExpertGemm::Args::y).value);
  return out;
}

ExpertMlp::Args RunOf<ExpertMlp>::args(const ExpertMlp::Problem& p, const GroupRows::Args& group,
                                       const ExpertGemm::Args& up, const ExpertGemm::Args& down,
                                       const Combine::Args& combine) {
  return {.x = up.x,
          .up = up.w,
          .up_scale = up.w_scale,
          .up_bias = up.bias,
          .down = down.w,
          .down_scale = down.w_scale,
          .down_bias = down.bias,
          .ids = group.ids,
          .weights = p.weight_on_input ? as_rows(up.weights, p.slots) : combine.weights,
          .shared = combine.shared,
          .residual = combine.residual,
          .y = combine.y};
}

std::optional<CombineNorm::Problem> RunOf<CombineNorm>::problem(const RunView& v) {
  const RmsNorm::Problem& norm = v.of<RmsNorm>(1).problem();
  using C = Combine::Args;
  const CombineNorm::Problem p{
      .combine = v.of<Combine>(0).problem(),
      .eps = norm.eps,
      .norm_w = norm.w,
      .x_unaligned = v.unaligned({v.bind<Combine>(0, &C::shared), v.bind<Combine>(0, &C::residual),
                                  v.bind<Combine>(0, &C::y), v.bind<RmsNorm>(1, &RmsNorm::Args::y)})};
  if (!linked(v.bind<Combine>(0, &Combine::Args::y), v.bind<RmsNorm>(1, &RmsNorm::Args::x)) ||
      CombineNorm::norm(p) != norm)
    return {};
  return p;
}

CombineNorm::Args RunOf<CombineNorm>::args(const CombineNorm::Problem&, const Combine::Args& combine,
                                           const RmsNorm::Args& norm) {
  CombineNorm::Args out;
  static_cast<Combine::Args&>(out) = combine;
  out.norm_weight = norm.weight, out.normed = norm.y;
  return out;
}

std::optional<RopeKvWrite::Problem> RunOf<RopeKvWrite>::problem(const RunView& v) {
  RopeKvWrite::Problem p = turn_of(v, 0, 1);
  if (!turns_and_writes(v, 0, 1, p)) return {};
  return p;
}

RopeKvWrite::Args RunOf<RopeKvWrite>::args(const RopeKvWrite::Problem& p, const Rope::Args& rope,
                                           const KvWrite::Args& write) {
  Tensor queries = rope.x;
  queries.shape[1] = p.rope.heads;
  return {.positions = rope.positions,
          .table = rope.table,
          .slot_of = write.slot_of,
          .q = queries,
          .k = write.k,
          .v = write.v,
          .k_cache = write.k_cache,
          .v_cache = write.v_cache};
}

std::optional<QkNormRopeKvWrite::Problem> RunOf<QkNormRopeKvWrite>::problem(const RunView& v) {
  using N = RmsNorm::Args;
  const RmsNorm::Problem& queries = v.of<RmsNorm>(0).problem();
  const Bind of_queries = v.bind<RmsNorm>(0, &N::y), of_keys = v.bind<RmsNorm>(1, &N::y);
  const QkNormRopeKvWrite::Problem p{.turn = turn_of(v, 2, 3),
                                     .eps = queries.eps,
                                     .norm_w = queries.w,
                                     .x_unaligned = v.unaligned({of_queries})};
  if (!turns_and_writes(v, 2, 3, p.turn) || !linked(of_queries, v.bind<RmsNorm>(0, &N::x)) ||
      !linked(of_keys, v.bind<RmsNorm>(1, &N::x)) || !linked(of_queries, v.bind<Rope>(2, &Rope::Args::x)) ||
      !linked(of_keys, v.bind<KvWrite>(3, &KvWrite::Args::k)) || QkNormRopeKvWrite::queries(p) != queries ||
      QkNormRopeKvWrite::keys(p) != v.of<RmsNorm>(1).problem())
    return {};
  return p;
}

QkNormRopeKvWrite::Args RunOf<QkNormRopeKvWrite>::args(const QkNormRopeKvWrite::Problem& p,
                                                       const RmsNorm::Args& queries,
                                                       const RmsNorm::Args& keys, const Rope::Args& rope,
                                                       const KvWrite::Args& write) {
  QkNormRopeKvWrite::Args out;
  static_cast<RopeKvWrite::Args&>(out) = RunOf<RopeKvWrite>::args(p.turn, rope, write);
  out.q_norm = queries.weight, out.k_norm = keys.weight;
  return out;
}

std::optional<QkvRopeKvWrite::Problem> RunOf<QkvRopeKvWrite>::problem(const RunView& v) {
  const Linear::Problem& linear = v.of<Linear>(0).problem();
  const QkvRopeKvWrite::Problem p{.rope = turn_of(v, 1, 2),
                                  .width = linear.width,
                                  .w = linear.w,
                                  .layout = linear.layout,
                                  .bias = linear.bias,
                                  .x_unaligned = linear.x_unaligned};
  const Bind values = v.bind<KvWrite>(2, &KvWrite::Args::v);
  if (!turns_and_writes(v, 1, 2, p.rope) || QkvRopeKvWrite::project(p) != linear ||
      !linked(v.bind<Linear>(0, &Linear::Args::y), v.bind<Rope>(1, &Rope::Args::x)) ||
      !unread(v.graph(), v.first() + 3, values, p.rope.kv_heads * p.rope.rope.head_dim))
    return {};
  return p;
}

QkvRopeKvWrite::Args RunOf<QkvRopeKvWrite>::args(const QkvRopeKvWrite::Problem&, const Linear::Args& project,
                                                 const Rope::Args& rope, const KvWrite::Args& write) {
  return {.x = project.x,
          .w = project.w,
          .bias = project.bias,
          .positions = rope.positions,
          .table = rope.table,
          .slot_of = write.slot_of,
          .qkv = project.y,
          .k_cache = write.k_cache,
          .v_cache = write.v_cache};
}

}  // namespace sluice
