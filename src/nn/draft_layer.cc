#include "nn/draft_layer.h"

#include <algorithm>
#include <utility>

#include "nn/moe/graph.h"

namespace sluice {
namespace {

Status check_config(const DraftLayerConfig& c) {
  const auto same = [&](const char* what, int64_t found, int64_t wanted) {
    return found == wanted ? Status{}
                           : invalid(std::string(text(c.kind)) + ": " + what + ": wanted " +
                                     std::to_string(wanted) + ", found " + std::to_string(found));
  };
  if (c.taps.empty())
    return invalid(std::string(text(c.kind)) + ": taps: wanted at least one hidden state, found none");
  SLUICE_TRY(check_attention(std::string(text(c.kind)), c.attention));
  SLUICE_TRY(same("attention.hidden", c.attention.hidden, c.hidden));
  SLUICE_TRY(same("mlp.hidden", c.mlp.hidden, c.hidden));
  SLUICE_TRY(same("mlp.residual", c.mlp.residual, 1));
  if (c.kind == DraftLayerConfig::Kind::kMtp) {
    SLUICE_TRY(same("features", c.features(), c.hidden));
    return same("norm_output", c.norm_output, 1);
  }
  SLUICE_TRY(same("attention.input", c.attention.input, 2 * c.hidden));
  SLUICE_TRY(same("mlp.dense", c.mlp.dense, 1));
  return c.fc ? Status{} : same("features without fc", c.features(), c.hidden);
}

void add_norm(Graph* g, const std::string& name, const DraftLayerConfig& c, int64_t width, const Bind& x,
              const Bind& y) {
  using A = RmsNorm::Args;
  g->add<RmsNorm>(name, {.tokens = 0, .hidden = width, .eps = c.eps, .x = c.x, .y = c.x},
                  {{&A::x, x}, {&A::weight, g->held(name)}, {&A::y, y}});
}

void add_linear(Graph* g, const std::string& name, const DraftLayerConfig& c, int64_t features, int64_t width,
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

// Appends g (see draft_layer.h), computed from the model's features.
ValueId add_features(Graph* g, const DraftLayerConfig& c, ValueId features) {
  ValueId x = features;
  if (c.feature_norm != DraftLayerConfig::FeatureNorm::kNone) x = g->between("features.normed", c.features());
  if (c.feature_norm == DraftLayerConfig::FeatureNorm::kAll)
    add_norm(g, "feature_norm", c, c.features(), features, x);
  if (c.feature_norm == DraftLayerConfig::FeatureNorm::kEach)
    for (int64_t i = 0; i < std::ssize(c.taps); ++i)
      add_norm(g, "feature_norm." + std::to_string(i), c, c.model_hidden, Bind(features, i * c.model_hidden),
               Bind(x, i * c.model_hidden));
  if (!c.fc) return x;
  const ValueId out = g->between("fc", c.hidden);
  add_linear(g, "fc", c, c.hidden, c.features(), c.x, x, out);
  return out;
}

MoeConfig mlp_with_norm(const DraftLayerConfig& c) {
  MoeConfig mlp = c.mlp;
  mlp.norm_x = true, mlp.norm_eps = c.eps;
  return mlp;
}

// Appends the stages that compute the input of the attention, and sets "x", "stream" and "residual". They
// write both halves of `pair` in place.
void add_input(Graph* g, const DraftLayerConfig& c, ValueId hidden, ValueId pair, ValueId stream,
               NamedValues* v) {
  add_norm(g, "embedding_norm", c, c.hidden, pair, pair);
  add_norm(g, "hidden_norm", c, c.hidden, hidden, Bind(pair, c.hidden));
  v->set("stream", stream);
  if (c.kind == DraftLayerConfig::Kind::kEagle3) {
    v->set("x", pair);
    v->set("residual", c.norm_before_residual ? Bind(pair, c.hidden) : Bind(hidden));
    return;
  }
  add_linear(g, "eh_proj", c, c.hidden, 2 * c.hidden, c.x, pair, stream);
  const ValueId normed = g->between("normed");
  add_norm(g, "attention.norm", c, c.hidden, stream, normed);
  v->set("x", normed);
}

struct LayerGraph {
  bool of_features = true;  // false: the layer reads the hidden state of the previous draft instead
  int64_t rows_max = 0;     // upper bound of the rows of one sequence; 0: unknown
  bool experts_offloaded = false;
};

// Call values: token_ids; features of the model or hidden states of drafts; positions, slot_of, q_begin,
// kv_len, page_table, rope; stream; zeros.
Graph layer_graph(const DraftLayerConfig& c, const StepBounds& bounds, const LayerGraph& wanted) {
  Graph g;
  const ValueId token_ids = g.call("token_ids");
  const ValueId source = wanted.of_features ? g.call("features", c.features()) : g.call("hidden", c.hidden);
  NamedValues v;
  for (const char* name : {"positions", "slot_of", "q_begin", "kv_len", "page_table", "rope"})
    v.set(name, g.call(name));
  const ValueId stream = g.call("stream", c.hidden), zeros = g.call("zeros");
  const bool has_fc = c.kind == DraftLayerConfig::Kind::kEagle3;
  const ValueId hidden = wanted.of_features && has_fc ? add_features(&g, c, source) : source;
  const ValueId pair = g.between("pair", 2 * c.hidden);
  using E = Embedding::Args;
  g.add<Embedding>("embed", {.tokens = 0, .vocab = c.vocab, .hidden = c.hidden, .y = c.x},
                   {{&E::ids, token_ids}, {&E::table, g.held("embedding")}, {&E::y, pair}});
  add_input(&g, c, hidden, pair, stream, &v);
  append_attention(&g, c.attention, bounds, v, wanted.rows_max);
  if (wanted.experts_offloaded) return g;
  const MoeConfig mlp = mlp_with_norm(c);
  NamedValues of_mlp;
  of_mlp.set("x", stream), of_mlp.set("residual", stream), of_mlp.set("y", stream),
      of_mlp.set("zeros", zeros);
  of_mlp.set("x_norm_weight", g.held("mlp.norm"));
  hold_weights(&g, mlp, &of_mlp);
  append_moe(&g, mlp, of_mlp);
  return g;
}

// Call values: row indices, stream, sampled_rows (-1, -2, ...), hidden, token, logprob.
Graph head_graph(const DraftLayerConfig& c, const StepBounds& bounds) {
  Graph g;
  const ValueId rows = g.call("rows"), stream = g.call("stream"), sampled_rows = g.call("sampled_rows");
  const ValueId hidden = g.call("hidden", c.hidden), token = g.call("token"), logprob = g.call("logprob");
  const ValueId gathered = c.norm_output ? g.between("gathered", c.hidden) : hidden;
  const ValueId normed = c.norm_output ? hidden : g.between("normed", c.hidden);
  using E = Embedding::Args;
  g.add<Embedding>("gather",
                   {.tokens = 0, .vocab = bounds.tokens, .hidden = c.hidden, .table = c.x, .y = c.x},
                   {{&E::ids, rows}, {&E::table, stream}, {&E::y, gathered}});
  add_norm(&g, "final_norm", c, c.hidden, gathered, normed);
  const ValueId logits = g.between("logits"), sampled = c.maps_tokens ? g.between("sampled") : token;
  add_linear(&g, "lm_head", c, c.draft_vocab, c.hidden, DType::kF32, normed, logits);
  using S = Sample::Args;
  g.add<Sample>("greedy", {.rows = 0, .vocab = c.draft_vocab, .greedy = true},
                {{&S::logits, logits}, {&S::token, sampled}, {&S::logprob, logprob}});
  if (!c.maps_tokens) return g;
  using T = TakeTokens::Args;
  g.add<TakeTokens>(
      "token_of", {.tokens = 0, .rows = bounds.sequences, .map = c.draft_vocab},
      {{&T::ids, sampled_rows}, {&T::sampled, sampled}, {&T::token_of, g.held("token_of")}, {&T::y, token}});
  return g;
}

}  // namespace

DraftLayerConfig DraftLayerConfig::with_layouts_of(const DeviceInfo& device) const {
  DraftLayerConfig out = *this;
  out.attention.layout = device.layout;
  out.mlp.layout = layout_for(device.backend);
  return out;
}

DraftLayerConfig DraftLayerConfig::with_activations(DType type) const {
  DraftLayerConfig out = *this;
  out.x = out.attention.x = out.mlp.x = out.mlp.g = type;
  return out;
}

std::vector<HeldSlot> draft_layer_weights(const DraftLayerConfig& config) {
  std::vector<HeldSlot> out;
  for (const Graph& graph : {layer_graph(config, {}, {}), head_graph(config, {})})
    for (HeldSlot& slot : held_slots(graph))
      if (!slot.is_written()) out.push_back(std::move(slot));
  return out;
}

Result<DraftLayerSteps> plan_draft_layer(const DeviceInfo& device, const Catalog& catalog,
                                         const DraftLayerConfig& c, const StepBounds& bounds,
                                         const Policy& policy, const MoeBackend& backend,
                                         bool experts_offloaded) {
  SLUICE_TRY(check_config(c));
  Policy own = policy;
  own.batch_invariant = false;
  DraftLayerSteps out;
  const auto plan = [&](std::optional<Step>* to, Graph graph, int64_t tokens) -> Status {
    const auto phases = phases_of(experts_offloaded ? MoeBackend{} : backend, device, catalog, tokens, own);
    if (!phases.ok()) return phases.status();
    const StepPolicy of_graph{.policy = policy_of(own, graph), .phases = phases.value()};
    return keep_in(
        to, Step::plan(std::string(text(c.kind)), device, catalog, std::move(graph), tokens, of_graph));
  };
  const auto plan_extend = [&](std::optional<Step>* to, int64_t rows_max, int64_t tokens) {
    return plan(to, layer_graph(c, bounds, {.rows_max = rows_max, .experts_offloaded = experts_offloaded}),
                tokens);
  };
  const int64_t sequences = std::min(bounds.tokens, bounds.sequences);
  out.extend.verify_rows = bounds.verify_rows;
  SLUICE_TRY(plan_extend(&out.extend.any, 0, bounds.tokens));
  SLUICE_TRY(plan_extend(&out.extend.decode, 1, sequences));
  if (bounds.verify_rows > 1)
    SLUICE_TRY(plan_extend(&out.extend.verify, bounds.verify_rows, bounds.logit_rows()));
  Graph next =
      layer_graph(c, bounds, {.of_features = false, .rows_max = 1, .experts_offloaded = experts_offloaded});
  SLUICE_TRY(plan(&out.next, std::move(next), sequences));
  SLUICE_TRY(plan(&out.head, head_graph(c, bounds), sequences));
  return out;
}

Result<std::unique_ptr<DraftLayer>> DraftLayer::plan(Device& device, const DraftLayerConfig& config,
                                                     const StepBounds& bounds, const Policy& policy,
                                                     const MoeSite& experts) {
  std::unique_ptr<DraftLayer> out(new DraftLayer(device, config, bounds));
  if (experts.device) {
    if (!device.shares_host_memory())
      return unsupported(std::string(text(config.kind)) +
                         ": offloaded experts: the rest of the model must be on a device whose memory the "
                         "host can read, found " +
                         text(device.info()));
    auto offloaded =
        OffloadedMoe::plan(*experts.device, mlp_with_norm(config), bounds.tokens, policy, experts.backend);
    if (!offloaded.ok()) return offloaded.status();
    out->offloaded_ = std::move(offloaded).value();
  }
  auto steps = plan_draft_layer(device.info(), device.catalog(), config, bounds, policy, experts.backend,
                                experts.device != nullptr);
  if (!steps.ok()) return steps.status();
  out->steps_ = std::move(steps).value();
  const DraftLayerSteps& s = out->steps_;
  out->workspace_bytes_ =
      std::max({s.extend.workspace_bytes(), s.next->workspace_bytes(), s.head->workspace_bytes()});
  const auto keep = [](Result<OwnedTensor> made, OwnedTensor* to) -> Status {
    if (!made.ok()) return made.status();
    *to = std::move(made).value();
    return {};
  };
  SLUICE_TRY(keep(make_zeros(device, bounds.tokens), &out->zeros_));
  SLUICE_TRY(keep(make_row_numbers(device, bounds.sequences), &out->row_numbers_));
  SLUICE_TRY(keep(make_row_numbers(device, bounds.sequences, -1, -1), &out->sampled_rows_));
  return out;
}

Result<DraftLayerHeld> DraftLayer::bind(const NamedWeights& weights, const KvCache& cache) const {
  NamedWeights all = weights;
  all.set(-1, "k_cache", cache.k);
  if (cache.v.present()) all.set(-1, "v_cache", cache.v);
  DraftLayerHeld out;
  const Backend where = device_.info().backend;
  const std::string who(text(config_.kind));
  SLUICE_TRY(bind_held(who, steps_.extend.any->graph(), all, where, &out.extend));
  SLUICE_TRY(bind_held(who, steps_.next->graph(), all, where, &out.next));
  SLUICE_TRY(bind_held(who, steps_.head->graph(), all, where, &out.head));
  if (offloaded_)
    out.offloaded = weights.moe(-1, mlp_with_norm(config_)), out.offloaded_norm = weights(-1, "mlp.norm");
  return out;
}

Status DraftLayer::run_layer(const Step& step, const std::vector<Tensor>& tensors, const DraftLayerIn& in,
                             const DraftLayerHeld& held, const Tensor& stream, Workspace workspace,
                             Stream queue, KernelRuns* runs) const {
  const int64_t n = in.token_ids.shape[0];
  const StepTables& t = in.tables;
  const std::array call = {in.token_ids, in.source,    t.positions, t.slot_of, t.q_begin,
                           t.kv_len,     t.page_table, t.rope,      stream,    first_rows(zeros_.view(), n)};
  SLUICE_TRY(step.run(n, {.call = call, .held = tensors}, workspace, queue, runs));
  if (!offloaded_) return {};
  const Tensor x = first_rows(stream, n);
  MoeIo io{.x = x, .residual = x, .token_ids = {}, .y = x};
  io.x_norm_weight = held.offloaded_norm;
  return offloaded_->forward(io, held.offloaded, runs);
}

Status DraftLayer::extend(const DraftLayerIn& in, const DraftLayerHeld& held, const Tensor& stream,
                          Workspace workspace, Stream queue, KernelRuns* runs) const {
  return run_layer(steps_.extend.of(in.token_ids.shape[0], in.tables.rows_max), held.extend, in, held, stream,
                   workspace, queue, runs);
}

Status DraftLayer::next(const DraftLayerIn& in, const DraftLayerHeld& held, const Tensor& stream,
                        Workspace workspace, Stream queue, KernelRuns* runs) const {
  return run_layer(*steps_.next, held.next, in, held, stream, workspace, queue, runs);
}

Status DraftLayer::draft(const Tensor& rows, const Tensor& stream, const DraftLayerHeld& held,
                         const DraftLayerOut& out, Workspace workspace, Stream queue,
                         KernelRuns* runs) const {
  const int64_t n = rows.shape[0];
  const std::array call = {rows,       stream,    first_rows(sampled_rows_.view(), n),
                           out.hidden, out.token, out.logprob};
  return steps_.head->run(n, {.call = call, .held = held.head}, workspace, queue, runs);
}

double DraftLayer::extend_cost_us(int64_t tokens, bool verifies) const {
  return steps_.extend.cost_us(tokens, verifies);
}

double DraftLayer::cost_us(int64_t rows, bool first) const {
  return (first ? 0 : steps_.next->cost_us(rows)) + steps_.head->cost_us(rows);
}

}  // namespace sluice
