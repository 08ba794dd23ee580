#include "graph/runs.h"

#include <algorithm>

namespace sluice {
namespace detail {
namespace {

// Whether `bind` can replace `in_pattern`, given the values matched so far. Records the first match of a value.
bool stands_for(const Bind& in_pattern, const Bind& bind, std::vector<Bind>* values) {
  if (in_pattern.value == kNoValue || bind.value == kNoValue) return in_pattern.value == bind.value;
  Bind& known = (*values)[static_cast<size_t>(in_pattern.value)];
  if (known.value == kNoValue) {
    known = bind;
    known.column -= in_pattern.column;
    return known.column >= 0;
  }
  return known.value == bind.value && known.slice == bind.slice &&
         known.column + in_pattern.column == bind.column;
}

}  // namespace

std::vector<Bind> match(const Graph& pattern, const Graph& graph, size_t first) {
  std::vector<Bind> values(pattern.values().size());
  for (size_t k = 0; k < pattern.stages().size(); ++k) {
    const Stage &wanted = pattern.stages()[k], &found = graph.stages()[first + k];
    if (!wanted.op->equals(*found.op)) return {};
    const std::vector<SlotSpec> slots = wanted.op->slots(0);
    for (size_t i = 0; i < slots.size(); ++i)
      if (slots[i].used && !stands_for(wanted.slots[i], found.slots[i], &values)) return {};
  }
  return values;
}

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

bool unread(const Graph& graph, size_t end, const Bind& columns, int64_t count) {
  const Value& v = graph.values()[static_cast<size_t>(columns.value)];
  if (v.kept || (v.place != Place::kBetween && !v.scratch)) return false;
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

StageSlot source_of(const Graph& pattern, const Bind& bind) {
  for (size_t k = 0; bind.value != kNoValue && k < pattern.stages().size(); ++k) {
    const std::vector<Bind>& slots = pattern.stages()[k].slots;
    for (size_t i = 0; i < slots.size(); ++i)
      if (slots[i].value == bind.value && slots[i].column == bind.column)
        return {static_cast<uint8_t>(k), static_cast<uint8_t>(i)};
  }
  return {};  // the problem does not use the slot
}

}  // namespace detail

namespace {

// The problem of the two GEMMs together. Only the fields that the GEMMs determine are set.
ExpertMlp::Problem mlp_of(const ExpertGemm::Problem& up, const ExpertGemm::Problem& down) {
  return {.tokens = 0,
          .slots = up.slots,
          .experts = up.experts,
          .experts_routed = up.experts_routed,
          .hidden = up.width,
          .intermediate = up.features,
          .x = up.x,
          .w = up.w,
          .b = up.b,
          .g = down.y,
          .scales = up.scales,
          .layout = up.layout,
          .gate_order = up.gate_order,
          .act = up.act,
          .alpha = up.alpha,
          .beta = up.beta,
          .limit = up.limit,
          .up_bias = up.bias,
          .down_bias = down.bias,
          .weight_on_input = up.weighted,
          .x_unaligned = up.x_unaligned,
          .fp8_x = up.fp8_x};
}

// Adds RouterGemm and RouteTopk, after the stages that compute their input x.
template <class Op>
void add_router(RunGraph<Op>* g, const RouterRoute::Problem& p, const Bind& x) {
  using A = RouterRoute::Args;
  using G = RouterGemm::Args;
  g->graph.template add<RouterGemm>(
      "router", RouterRoute::gate(p),
      {{&G::x, x}, {&G::w, (*g)(&A::w)}, {&G::bias, (*g)(&A::gate_bias)}, {&G::y, (*g)(&A::logits)}});
  g->template add_own<RouteTopk>("route", p.route);
}

// The groups of rows that both GEMMs use.
struct Groups {
  Bind begin, count, order;
};
template <class Op>
void add_products(RunGraph<Op>* run, const ExpertMlp::Problem& p, const Groups& groups, const Bind& out) {
  using A = typename Op::Args;
  using E = ExpertGemm::Args;
  Graph& g = run->graph;
  const ValueId h = g.between("h");
  g.template add<ExpertGemm>("up", ExpertMlp::up(p),
                             {{&E::x, (*run)(&A::x)},
                              {&E::w, (*run)(&A::up)},
                              {&E::w_scale, (*run)(&A::up_scale)},
                              {&E::bias, (*run)(&A::up_bias)},
                              {&E::row_begin, groups.begin},
                              {&E::row_count, groups.count},
                              {&E::order, groups.order},
                              {&E::weights, p.weight_on_input ? (*run)(&A::weights) : Bind()},
                              {&E::y, h}});
  g.template add<ExpertGemm>("down", ExpertMlp::down(p),
                             {{&E::x, h},
                              {&E::w, (*run)(&A::down)},
                              {&E::w_scale, (*run)(&A::down_scale)},
                              {&E::bias, (*run)(&A::down_bias)},
                              {&E::row_begin, groups.begin},
                              {&E::row_count, groups.count},
                              {&E::y, out}},
                             {.rows = p.slots});
}

RopeKvWrite::Problem rotation_of(Rope::Problem rope, const KvWrite::Problem& w) {
  rope.heads -= w.kv_heads;
  return {.rope = rope, .kv_heads = w.kv_heads, .pages = w.pages, .page_size = w.page_size, .cache = w.cache};
}

// First columns of the keys and of the values in a QKV row.
struct HeadColumns {
  explicit HeadColumns(const RopeKvWrite::Problem& p)
      : keys(p.rope.heads * p.rope.head_dim), values(keys + p.kv_heads * p.rope.head_dim) {}
  int64_t keys, values;
};

// Adds the rotation and the cache write of QKV rows.
template <class Op>
void add_rotation(RunGraph<Op>* g, const RopeKvWrite::Problem& p, const Bind& qkv) {
  using A = typename Op::Args;
  using R = Rope::Args;
  using W = KvWrite::Args;
  const HeadColumns at(p);
  Rope::Problem rope = p.rope;
  rope.heads += p.kv_heads;
  g->graph.template add<Rope>(
      "rope", rope, {{&R::positions, (*g)(&A::positions)}, {&R::table, (*g)(&A::table)}, {&R::x, qkv}});
  g->graph.template add<KvWrite>("kv_write", RopeKvWrite::write(p),
                                 {{&W::k, Bind(qkv.value, at.keys)},
                                  {&W::v, Bind(qkv.value, at.values)},
                                  {&W::slot_of, (*g)(&A::slot_of)},
                                  {&W::k_cache, (*g)(&A::k_cache)},
                                  {&W::v_cache, (*g)(&A::v_cache)}});
}

// Makes queries, keys and values columns of one value, "qkv".
template <class Op>
ValueId add_rows_of_heads(RunGraph<Op>* g, const RopeKvWrite::Problem& p) {
  using A = typename Op::Args;
  const HeadColumns at(p);
  const ValueId qkv = g->graph.call("qkv");
  g->is_part(&A::q, Bind(qkv)), g->is_part(&A::k, Bind(qkv, at.keys)),
      g->is_part(&A::v, Bind(qkv, at.values));
  g->leaves(Bind(qkv, at.keys), at.values - at.keys);
  return qkv;
}

}  // namespace

std::optional<RouterRoute::Problem> RunOf<RouterRoute>::of(const RouterGemm::Problem& gate,
                                                           const RouteTopk::Problem& route) {
  if (route.input != RoutingInput::kLogits) return {};
  return RouterRoute::Problem{
      .route = route, .hidden = gate.hidden, .x = gate.x, .w = gate.w, .gate_bias = gate.bias};
}

void RunOf<RouterRoute>::stages(const RouterRoute::Problem& p, RunGraph<RouterRoute>* g) {
  add_router(g, p, (*g)(&RouterRoute::Args::x));
}

std::optional<NormRouterRoute::Problem> RunOf<NormRouterRoute>::of(const RmsNorm::Problem& norm,
                                                                   const RouterGemm::Problem& gate,
                                                                   const RouteTopk::Problem& route) {
  const auto router = RunOf<RouterRoute>::of(gate, route);
  if (!router) return {};
  return NormRouterRoute::Problem{.router = *router, .eps = norm.eps, .norm_w = norm.w};
}

void RunOf<NormRouterRoute>::stages(const NormRouterRoute::Problem& p, RunGraph<NormRouterRoute>* g) {
  using A = NormRouterRoute::Args;
  using N = RmsNorm::Args;
  g->graph.add<RmsNorm>(
      "norm", NormRouterRoute::norm(p),
      {{&N::x, (*g)(&A::x)}, {&N::weight, (*g)(&A::norm_weight)}, {&N::y, (*g)(&A::normed)}});
  add_router(g, p.router, (*g)(&A::normed));
}

std::optional<RouteGroup::Problem> RunOf<RouteGroup>::of(const RouteTopk::Problem& route,
                                                         const GroupRows::Problem& group) {
  return RouteGroup::Problem{.route = route,
                             .row_align = group.row_align,
                             .tile_rows = group.tile_rows,
                             .mapped_experts = route.scope == ExpertScope::kMap ? group.experts : 0};
}

void RunOf<RouteGroup>::stages(const RouteGroup::Problem& p, RunGraph<RouteGroup>* g) {
  using A = RouteGroup::Args;
  g->add_own<RouteTopk>("route", p.route);
  std::vector<Bind> binds = {(*g)(&A::ids)};
  GroupRows::slots_written(RouteGroup::group(p), [&](const SlotSpec&, Tensor GroupTensors::*member) {
    binds.push_back((*g)(static_cast<SlotOf<RouteGroup>>(member)));
  });
  g->graph.add_bound<GroupRows>("group", RouteGroup::group(p), std::move(binds));
}

std::optional<GroupedMlp::Problem> RunOf<GroupedMlp>::of(const ExpertGemm::Problem& up,
                                                         const ExpertGemm::Problem& down) {
  return GroupedMlp::of(mlp_of(up, down));
}

void RunOf<GroupedMlp>::stages(const GroupedMlp::Problem& p, RunGraph<GroupedMlp>* g) {
  using A = GroupedMlp::Args;
  g->in_rows(&A::weights, p.mlp.slots);
  add_products(g, p.mlp, {(*g)(&A::row_begin), (*g)(&A::row_count), (*g)(&A::order)}, (*g)(&A::g));
}

std::optional<ExpertMlp::Problem> RunOf<ExpertMlp>::of(const GroupRows::Problem&,
                                                       const ExpertGemm::Problem& up,
                                                       const ExpertGemm::Problem& down,
                                                       const Combine::Problem& sum) {
  ExpertMlp::Problem p = mlp_of(up, down);
  p.y = sum.y, p.shared = sum.shared, p.residual = sum.residual, p.scale = sum.scale;
  return p;
}

void RunOf<ExpertMlp>::stages(const ExpertMlp::Problem& p, RunGraph<ExpertMlp>* run) {
  using A = ExpertMlp::Args;
  using R = GroupRows::Args;
  using C = Combine::Args;
  Graph& g = run->graph;
  const Bind weights = run->in_rows(&A::weights, p.slots);
  const ValueId count = g.between("row_count"), begin = g.between("row_begin"), order = g.between("order"),
                position = g.between("position"), out = g.between("g");
  g.add<GroupRows>("group", ExpertMlp::group(p),
                   {{&R::ids, (*run)(&A::ids)},
                    {&R::row_count, count},
                    {&R::row_begin, begin},
                    {&R::order, order},
                    {&R::position, position}});
  add_products(run, p, {begin, count, order}, out);
  g.add<Combine>("combine", ExpertMlp::combine(p),
                 {{&C::g, out},
                  {&C::position, position},
                  {&C::weights, p.weight_on_input ? Bind() : weights},
                  {&C::shared, (*run)(&A::shared)},
                  {&C::residual, (*run)(&A::residual)},
                  {&C::y, (*run)(&A::y)}});
}

std::optional<CombineNorm::Problem> RunOf<CombineNorm>::of(const Combine::Problem& combine,
                                                           const RmsNorm::Problem& norm) {
  return CombineNorm::Problem{.combine = combine, .eps = norm.eps, .norm_w = norm.w};
}

void RunOf<CombineNorm>::stages(const CombineNorm::Problem& p, RunGraph<CombineNorm>* g) {
  using A = CombineNorm::Args;
  using N = RmsNorm::Args;
  g->add_own<Combine>("combine", p.combine);
  g->graph.add<RmsNorm>(
      "norm", CombineNorm::norm(p),
      {{&N::x, (*g)(&A::y)}, {&N::weight, (*g)(&A::norm_weight)}, {&N::y, (*g)(&A::normed)}});
}

std::optional<RopeKvWrite::Problem> RunOf<RopeKvWrite>::of(const Rope::Problem& rope,
                                                           const KvWrite::Problem& write) {
  if (rope.heads <= write.kv_heads) return {};
  return rotation_of(rope, write);
}

void RunOf<RopeKvWrite>::stages(const RopeKvWrite::Problem& p, RunGraph<RopeKvWrite>* g) {
  add_rotation(g, p, add_rows_of_heads(g, p));
}

std::optional<QkNormRopeKvWrite::Problem> RunOf<QkNormRopeKvWrite>::of(const RmsNorm::Problem& queries,
                                                                       const RmsNorm::Problem&,
                                                                       const Rope::Problem& rope,
                                                                       const KvWrite::Problem& write) {
  if (rope.heads <= write.kv_heads) return {};
  return QkNormRopeKvWrite::Problem{
      .rotation = rotation_of(rope, write), .eps = queries.eps, .norm_w = queries.w};
}

void RunOf<QkNormRopeKvWrite>::stages(const QkNormRopeKvWrite::Problem& p, RunGraph<QkNormRopeKvWrite>* g) {
  using N = RmsNorm::Args;
  const Bind queries(add_rows_of_heads(g, p.rotation)), keys = (*g)(&A::k);
  g->graph.add<RmsNorm>("q_norm", QkNormRopeKvWrite::queries(p),
                        {{&N::x, queries}, {&N::weight, (*g)(&A::q_norm)}, {&N::y, queries}});
  g->graph.add<RmsNorm>("k_norm", QkNormRopeKvWrite::keys(p),
                        {{&N::x, keys}, {&N::weight, (*g)(&A::k_norm)}, {&N::y, keys}});
  add_rotation(g, p.rotation, queries);
}

std::optional<LatentNormRopeKvWrite::Problem> RunOf<LatentNormRopeKvWrite>::of(
    const Rope::Problem& queries, const RmsNorm::Problem& norm, const Rope::Problem&,
    const KvWrite::Problem& write) {
  if (write.values || norm.hidden + queries.rotary != write.head_dim) return {};
  return LatentNormRopeKvWrite::Problem{.rope = queries,
                                        .rank = norm.hidden,
                                        .pages = write.pages,
                                        .page_size = write.page_size,
                                        .eps = norm.eps,
                                        .norm_w = norm.w};
}

void RunOf<LatentNormRopeKvWrite>::stages(const LatentNormRopeKvWrite::Problem& p,
                                          RunGraph<LatentNormRopeKvWrite>* g) {
  using Op = LatentNormRopeKvWrite;
  using N = RmsNorm::Args;
  using R = Rope::Args;
  using W = KvWrite::Args;
  const Bind k = g->in_rows(&A::k, Op::row(p));
  g->leaves(k, Op::row(p));
  const auto rotate = [&](const char* name, const Rope::Problem& rope, const Bind& x) {
    g->graph.add<Rope>(name, rope,
                       {{&R::positions, (*g)(&A::positions)}, {&R::table, (*g)(&A::table)}, {&R::x, x}});
  };
  rotate("q_rope", p.rope, (*g)(&A::q));
  g->graph.add<RmsNorm>("norm", Op::norm(p), {{&N::x, k}, {&N::weight, (*g)(&A::norm_weight)}, {&N::y, k}});
  rotate("k_rope", Op::keys(p), k);
  g->graph.add<KvWrite>("kv_write", Op::write(p),
                        {{&W::k, k}, {&W::slot_of, (*g)(&A::slot_of)}, {&W::k_cache, (*g)(&A::k_cache)}});
}

void RunOf<QkNormRopeKvWrite>::alone(const QkNormRopeKvWrite::Problem& p, RunGraph<QkNormRopeKvWrite>* g) {
  using N = RmsNorm::Args;
  using R = Rope::Args;
  using W = KvWrite::Args;
  const Rope::Problem queries = p.rotation.rope, keys = RopeKvWrite::keys(p.rotation);
  const Bind q = g->in_rows(&A::q, queries.heads * queries.head_dim),
             k = g->in_rows(&A::k, keys.heads * keys.head_dim);
  const auto rotate = [&](const char* name, const Rope::Problem& rope, const Bind& x) {
    g->graph.add<Rope>(name, rope,
                       {{&R::positions, (*g)(&A::positions)}, {&R::table, (*g)(&A::table)}, {&R::x, x}});
  };
  g->graph.add<RmsNorm>("q_norm", QkNormRopeKvWrite::queries(p),
                        {{&N::x, q}, {&N::weight, (*g)(&A::q_norm)}, {&N::y, q}});
  g->graph.add<RmsNorm>("k_norm", QkNormRopeKvWrite::keys(p),
                        {{&N::x, k}, {&N::weight, (*g)(&A::k_norm)}, {&N::y, k}});
  rotate("q_rope", queries, q);
  rotate("k_rope", keys, k);
  g->graph.add<KvWrite>("kv_write", RopeKvWrite::write(p.rotation),
                        {{&W::k, k},
                         {&W::v, (*g)(&A::v)},
                         {&W::slot_of, (*g)(&A::slot_of)},
                         {&W::k_cache, (*g)(&A::k_cache)},
                         {&W::v_cache, (*g)(&A::v_cache)}});
}

std::optional<QkvRopeKvWrite::Problem> RunOf<QkvRopeKvWrite>::of(const Linear::Problem& linear,
                                                                 const Rope::Problem& rope,
                                                                 const KvWrite::Problem& write) {
  if (rope.heads <= write.kv_heads) return {};
  return QkvRopeKvWrite::Problem{.rope = rotation_of(rope, write),
                                 .width = linear.width,
                                 .w = linear.w,
                                 .layout = linear.layout,
                                 .bias = linear.bias,
                                 .x_unaligned = linear.x_unaligned};
}

void RunOf<QkvRopeKvWrite>::stages(const QkvRopeKvWrite::Problem& p, RunGraph<QkvRopeKvWrite>* g) {
  using A = QkvRopeKvWrite::Args;
  using L = Linear::Args;
  const Linear::Problem linear = QkvRopeKvWrite::project(p);
  const Bind qkv = g->in_rows(&A::qkv, linear.features);
  const HeadColumns at(p.rope);
  g->leaves(Bind(qkv.value, at.keys), linear.features - at.keys);
  g->graph.add<Linear>(
      "qkv", linear, {{&L::x, (*g)(&A::x)}, {&L::w, (*g)(&A::w)}, {&L::bias, (*g)(&A::bias)}, {&L::y, qkv}});
  add_rotation(g, p.rope, qkv);
}

std::optional<LinearArgmax::Problem> RunOf<LinearArgmax>::of(const Linear::Problem& linear,
                                                             const Sample::Problem&) {
  return LinearArgmax::Problem{.tokens = linear.tokens,
                               .features = linear.features,
                               .width = linear.width,
                               .x = linear.x,
                               .w = linear.w,
                               .layout = linear.layout};
}

void RunOf<LinearArgmax>::stages(const LinearArgmax::Problem& p, RunGraph<LinearArgmax>* g) {
  using A = LinearArgmax::Args;
  using L = Linear::Args;
  using S = Sample::Args;
  const ValueId logits = g->graph.between("logits");
  g->graph.add<Linear>("logits", LinearArgmax::linear(p),
                       {{&L::x, (*g)(&A::x)}, {&L::w, (*g)(&A::w)}, {&L::y, logits}});
  g->graph.add<Sample>(
      "greedy", LinearArgmax::sample(p),
      {{&S::logits, logits}, {&S::token, (*g)(&A::token)}, {&S::logprob, (*g)(&A::logprob)}});
}

}  // namespace sluice
