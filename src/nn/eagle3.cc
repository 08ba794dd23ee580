#include "nn/eagle3.h"

#include <algorithm>
#include <utility>

#include "nn/moe/graph.h"

namespace sluice {
namespace {

Status check_config(const Eagle3Config& c) {
  const auto same = [](const char* what, int64_t found, int64_t wanted) {
    return found == wanted ? Status{}
                           : invalid(std::string("eagle3: ") + what + ": wanted " + std::to_string(wanted) +
                                     ", found " + std::to_string(found));
  };
  if (c.taps.empty()) return invalid("eagle3: taps: wanted at least one layer of the model, found none");
  SLUICE_TRY(same("attention.hidden", c.attention.hidden, c.hidden));
  SLUICE_TRY(same("attention.input", c.attention.input, 2 * c.hidden));
  SLUICE_TRY(same("mlp.hidden", c.mlp.hidden, c.hidden));
  SLUICE_TRY(same("mlp.dense", c.mlp.dense, 1));
  SLUICE_TRY(same("mlp.residual", c.mlp.residual, 1));
  return c.fc ? Status{} : same("features without fc", c.features(), c.hidden);
}

void add_norm(Graph* g, const std::string& name, const Eagle3Config& c, int64_t width, const Bind& x,
              const Bind& y) {
  using A = RmsNorm::Args;
  g->add<RmsNorm>(name, {.tokens = 0, .hidden = width, .eps = c.eps, .x = c.x, .y = c.x},
                  {{&A::x, x}, {&A::weight, g->held(name)}, {&A::y, y}});
}

void add_linear(Graph* g, const std::string& name, const Eagle3Config& c, int64_t features, int64_t width,
                DType y_type, ValueId x, ValueId y) {
  using L = Linear::Args;
  g->add<Linear>(name,
                 {.tokens = 0,
                  .features = features,
                  .width = width,
                  .x = c.x,
                  .y = y_type,
                  .layout = c.attention.layout},
                 {{&L::x, x}, {&L::w, g->held(name)}, {&L::y, y}});
}

// Appends g, computed from the model's features.
ValueId add_features(Graph* g, const Eagle3Config& c, ValueId features) {
  ValueId x = features;
  if (c.feature_norm != Eagle3Config::FeatureNorm::kNone) x = g->between("features.normed", c.features());
  if (c.feature_norm == Eagle3Config::FeatureNorm::kAll)
    add_norm(g, "feature_norm", c, c.features(), features, x);
  if (c.feature_norm == Eagle3Config::FeatureNorm::kEach)
    for (int64_t i = 0; i < std::ssize(c.taps); ++i)
      add_norm(g, "feature_norm." + std::to_string(i), c, c.model_hidden, Bind(features, i * c.model_hidden),
               Bind(x, i * c.model_hidden));
  if (!c.fc) return x;
  const ValueId out = g->between("fc", c.hidden);
  add_linear(g, "fc", c, c.hidden, c.features(), c.x, x, out);
  return out;
}

// Call values: token_ids; the model's features or the hidden states of drafts; positions, slot_of, q_begin, kv_len, page_table, rope;
// the stream; zeros.
Graph layer_graph(const Eagle3Config& c, const StepBounds& bounds, bool of_features, int64_t rows_max) {
  Graph g;
  const ValueId token_ids = g.call("token_ids");
  const ValueId source = of_features ? g.call("features", c.features()) : g.call("hidden", c.hidden);
  NamedValues v;
  for (const char* name : {"positions", "slot_of", "q_begin", "kv_len", "page_table", "rope"})
    v.set(name, g.call(name));
  const ValueId stream = g.call("stream", c.hidden), zeros = g.call("zeros");
  const ValueId hidden = of_features ? add_features(&g, c, source) : source;
  // Both halves of the attention's input are written in place.
  const ValueId pair = g.between("pair", 2 * c.hidden);
  using E = Embedding::Args;
  g.add<Embedding>("embed", {.tokens = 0, .vocab = c.vocab, .hidden = c.hidden, .y = c.x},
                   {{&E::ids, token_ids}, {&E::table, g.held("embedding")}, {&E::y, pair}});
  add_norm(&g, "embedding_norm", c, c.hidden, pair, pair);
  add_norm(&g, "hidden_norm", c, c.hidden, hidden, Bind(pair, c.hidden));
  v.set("x", pair), v.set("stream", stream);
  v.set("residual", c.norm_before_residual ? Bind(pair, c.hidden) : Bind(hidden));
  append_attention(&g, c.attention, bounds, v, rows_max);
  MoeConfig mlp = c.mlp;
  mlp.norm_x = true, mlp.norm_eps = c.eps;
  NamedValues of_mlp;
  of_mlp.set("x", stream), of_mlp.set("residual", stream), of_mlp.set("y", stream),
      of_mlp.set("zeros", zeros);
  of_mlp.set("x_norm_weight", g.held("mlp.norm"));
  hold_weights(&g, mlp, &of_mlp);
  append_moe(&g, mlp, of_mlp);
  return g;
}

// Call values: the numbers of the rows, the stream, -1, -2, ..., then hidden, token and logprob.
Graph head_graph(const Eagle3Config& c, const StepBounds& bounds) {
  Graph g;
  const ValueId rows = g.call("rows"), stream = g.call("stream"), drawn_rows = g.call("drawn_rows");
  const ValueId hidden = g.call("hidden", c.hidden), token = g.call("token"), logprob = g.call("logprob");
  const ValueId gathered = c.norm_output ? g.between("gathered", c.hidden) : hidden;
  const ValueId normed = c.norm_output ? hidden : g.between("normed", c.hidden);
  using E = Embedding::Args;
  g.add<Embedding>("gather",
                   {.tokens = 0, .vocab = bounds.tokens, .hidden = c.hidden, .table = c.x, .y = c.x},
                   {{&E::ids, rows}, {&E::table, stream}, {&E::y, gathered}});
  add_norm(&g, "final_norm", c, c.hidden, gathered, normed);
  const ValueId logits = g.between("logits"), drawn = c.maps_tokens ? g.between("drawn") : token;
  add_linear(&g, "lm_head", c, c.draft_vocab, c.hidden, DType::kF32, normed, logits);
  using S = Sample::Args;
  g.add<Sample>("greedy", {.rows = 0, .vocab = c.draft_vocab, .greedy = true},
                {{&S::logits, logits}, {&S::token, drawn}, {&S::logprob, logprob}});
  if (!c.maps_tokens) return g;
  using T = TakeTokens::Args;
  g.add<TakeTokens>(
      "token_of", {.tokens = 0, .rows = bounds.sequences, .map = c.draft_vocab},
      {{&T::ids, drawn_rows}, {&T::drawn, drawn}, {&T::token_of, g.held("token_of")}, {&T::y, token}});
  return g;
}

}  // namespace

Eagle3Config Eagle3Config::with_layouts_of(const DeviceInfo& device) const {
  Eagle3Config out = *this;
  out.attention.layout = device.layout;
  out.mlp.layout = layout_for(device.backend);
  return out;
}

Eagle3Config Eagle3Config::with_activations(DType type) const {
  Eagle3Config out = *this;
  out.x = out.attention.x = out.mlp.x = out.mlp.g = type;
  return out;
}

std::vector<HeldSlot> eagle3_weights(const Eagle3Config& config) {
  std::vector<HeldSlot> out;
  for (const Graph& graph : {layer_graph(config, {}, true, 0), head_graph(config, {})})
    for (HeldSlot& slot : held_slots(graph))
      if (!slot.is_written()) out.push_back(std::move(slot));
  return out;
}

Result<Eagle3Steps> plan_eagle3(const DeviceInfo& device, const Catalog& catalog, const Eagle3Config& c,
                                const StepBounds& bounds, const Policy& policy) {
  SLUICE_TRY(check_config(c));
  Policy own = policy;
  own.batch_invariant = false;
  Eagle3Steps out;
  const auto plan = [&](std::optional<Step>* to, Graph graph, int64_t tokens) -> Status {
    const StepPolicy of_graph{.policy = policy_of(own, graph)};
    return keep_in(to, Step::plan("eagle3", device, catalog, std::move(graph), tokens, of_graph));
  };
  const auto plan_extend = [&](std::optional<Step>* to, int64_t rows_max, int64_t tokens) {
    return plan(to, layer_graph(c, bounds, true, rows_max), tokens);
  };
  const int64_t sequences = std::min(bounds.tokens, bounds.sequences);
  out.extend.verify_rows = bounds.verify_rows;
  SLUICE_TRY(plan_extend(&out.extend.any, 0, bounds.tokens));
  SLUICE_TRY(plan_extend(&out.extend.decode, 1, sequences));
  if (bounds.verify_rows > 1)
    SLUICE_TRY(plan_extend(&out.extend.verify, bounds.verify_rows, bounds.logit_rows()));
  SLUICE_TRY(plan(&out.next, layer_graph(c, bounds, false, 1), sequences));
  SLUICE_TRY(plan(&out.head, head_graph(c, bounds), sequences));
  return out;
}

Result<std::unique_ptr<Eagle3>> Eagle3::plan(Device& device, const Eagle3Config& config,
                                             const StepBounds& bounds, const Policy& policy) {
  std::unique_ptr<Eagle3> out(new Eagle3(device, config, bounds));
  auto steps = plan_eagle3(device.info(), device.catalog(), config, bounds, policy);
  if (!steps.ok()) return steps.status();
  out->steps_ = std::move(steps).value();
  const Eagle3Steps& s = out->steps_;
  out->workspace_bytes_ =
      std::max({s.extend.workspace_bytes(), s.next->workspace_bytes(), s.head->workspace_bytes()});
  const auto keep = [](Result<OwnedTensor> made, OwnedTensor* to) -> Status {
    if (!made.ok()) return made.status();
    *to = std::move(made).value();
    return {};
  };
  SLUICE_TRY(keep(make_zeros(device, bounds.tokens), &out->zeros_));
  SLUICE_TRY(keep(make_row_numbers(device, bounds.sequences), &out->row_numbers_));
  SLUICE_TRY(keep(make_row_numbers(device, bounds.sequences, -1, -1), &out->drawn_rows_));
  SLUICE_TRY(keep(OwnedTensor::make(device, slot("logprob", Role::kOut, DType::kF32, {bounds.sequences}),
                                    "log probabilities of drafts"),
                  &out->logprob_));
  return out;
}

Result<Eagle3Held> Eagle3::bind(const NamedWeights& weights, const KvCache& cache) const {
  NamedWeights all = weights;
  all.set(-1, "k_cache", cache.k);
  all.set(-1, "v_cache", cache.v);
  Eagle3Held out;
  const Backend where = device_.info().backend;
  SLUICE_TRY(bind_held("eagle3", steps_.extend.any->graph(), all, where, &out.extend));
  SLUICE_TRY(bind_held("eagle3", steps_.next->graph(), all, where, &out.next));
  SLUICE_TRY(bind_held("eagle3", steps_.head->graph(), all, where, &out.head));
  return out;
}

Status Eagle3::run_layer(const Step& step, const std::vector<Tensor>& held, const Eagle3In& in,
                         const Tensor& stream, Workspace workspace, Stream queue, KernelRuns* runs) const {
  const int64_t n = in.token_ids.shape[0];
  const StepTables& t = in.tables;
  const std::array call = {in.token_ids, in.source,    t.positions, t.slot_of, t.q_begin,
                           t.kv_len,     t.page_table, t.rope,      stream,    first_rows(zeros_.view(), n)};
  return step.run(n, {.call = call, .held = held}, workspace, queue, runs);
}

Status Eagle3::extend(const Eagle3In& in, const Eagle3Held& held, const Tensor& stream, Workspace workspace,
                      Stream queue, KernelRuns* runs) const {
  return run_layer(steps_.extend.of(in.token_ids.shape[0], in.tables.rows_max), held.extend, in, stream,
                   workspace, queue, runs);
}

Status Eagle3::next(const Eagle3In& in, const Eagle3Held& held, const Tensor& stream, Workspace workspace,
                    Stream queue, KernelRuns* runs) const {
  return run_layer(*steps_.next, held.next, in, stream, workspace, queue, runs);
}

Status Eagle3::draft(const Tensor& rows, const Tensor& stream, const Eagle3Held& held, const Tensor& token,
                     const Tensor& hidden, Workspace workspace, Stream queue, KernelRuns* runs) const {
  const int64_t n = rows.shape[0];
  const std::array call = {rows,   stream, first_rows(drawn_rows_.view(), n),
                           hidden, token,  first_rows(logprob_.view(), n)};
  return steps_.head->run(n, {.call = call, .held = held.head}, workspace, queue, runs);
}

double Eagle3::extend_cost_us(int64_t tokens, bool verifies) const {
  return steps_.extend.cost_us(tokens, verifies);
}

double Eagle3::cost_us(int64_t rows, bool first) const {
  return (first ? 0 : steps_.next->cost_us(rows)) + steps_.head->cost_us(rows);
}

}  // namespace sluice
