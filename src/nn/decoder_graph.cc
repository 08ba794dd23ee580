#include "nn/decoder_graph.h"

#include "nn/moe/graph.h"

namespace sluice {
namespace {

RmsNorm::Problem norm_problem_of(const DecoderConfig& c) {
  return {.tokens = 0, .hidden = c.hidden, .eps = c.eps, .x = c.x, .y = c.x};
}

void add_norm(Graph* graph, const std::string& name, const DecoderConfig& c, ValueId x, Bind weight,
              ValueId y) {
  using A = RmsNorm::Args;
  graph->add<RmsNorm>(name, norm_problem_of(c), {{&A::x, x}, {&A::weight, weight}, {&A::y, y}});
}

// Sets the tables of one group of layers.
void set_tables(NamedValues* values, Graph* graph, const std::string& group) {
  for (const char* name : {"positions", "slot_of", "q_begin", "kv_len", "page_table", "rope"})
    values->set(name, graph->call(group + name));
}

// Copies rows of the workspace, with an embedding lookup whose ids are the row numbers.
void copy_rows(Graph* graph, const DecoderConfig& c, int64_t step_rows_max, ValueId rows, ValueId from,
               const Bind& to) {
  using E = Embedding::Args;
  graph->add<Embedding>("tap",
                        {.tokens = 0, .vocab = step_rows_max, .hidden = c.hidden, .table = c.x, .y = c.x},
                        {{&E::ids, rows}, {&E::table, from}, {&E::y, to}});
}

// Appends an all-reduce and a norm: stream += the sum of `part` over ranks, then y = norm(stream).
void add_parts(Graph* graph, const std::string& name, const DecoderConfig& c, ValueId part, ValueId stream,
               Bind weight, ValueId y) {
  using A = AllReduceNorm::Args;
  graph->add<AllReduceNorm>(name, {.tokens = 0, .hidden = c.hidden, .ranks = c.ranks, .eps = c.eps, .x = c.x},
                            {{&A::x, part}, {&A::stream, stream}, {&A::weight, weight}, {&A::y, y}});
}

// Appends this rank's slice of the current layer's experts: part = mlp(x).
void append_mlp_part(Graph* graph, const MoeConfig& mlp, ValueId x, ValueId part, ValueId zeros,
                     const Bind& captured) {
  NamedValues values;
  values.set("x", x);
  values.set("y", part);
  values.set("zeros", zeros);
  if (mlp.capture) values.set(chooses_in_captured(mlp) ? "ids" : "captured", captured);
  hold_weights(graph, mlp, &values);
  append_moe(graph, mlp, values);
}

// Appends the current layer's experts or dense MLP: stream += mlp(norm(stream)).
void append_mlp(Graph* graph, const MoeConfig& mlp, ValueId stream, ValueId zeros, const Bind& captured) {
  NamedValues values;
  values.set("x", stream);
  values.set("x_norm_weight", graph->held("mlp.norm"));
  values.set("residual", stream);
  values.set("y", stream);
  values.set("zeros", zeros);
  if (mlp.capture) values.set(chooses_in_captured(mlp) ? "ids" : "captured", captured);
  hold_weights(graph, mlp, &values);
  append_moe(graph, mlp, values);
}

}  // namespace

LayersGraph layers_graph(const DecoderConfig& c, const StepBounds& bounds, int64_t rows_max,
                         bool experts_offloaded) {
  LayersGraph out;
  Graph& g = out.graph;
  const ValueId token_ids = g.call("token_ids");
  const CacheLayout layout = cache_layout(c.attention(), bounds.page_size);
  std::vector<NamedValues> tables(layout.windows.size());
  for (size_t group = 0; group < tables.size(); ++group)
    set_tables(&tables[group], &g, "group " + std::to_string(group) + " ");
  const ValueId captured = g.call("captured"), zeros = g.call("zeros");
  const ValueId rows = c.taps.empty() ? kNoValue : g.call("rows");
  const ValueId taps = c.taps.empty() ? kNoValue : g.call("taps", std::ssize(c.taps) * c.hidden);
  const int64_t step_rows_max = rows_max == 1 ? std::min(bounds.tokens, bounds.sequences) : bounds.tokens;
  const auto tap = [&](int32_t layer, ValueId from) {
    for (size_t i = 0; i < c.taps.size(); ++i)
      if (c.taps[i] == layer)
        copy_rows(&g, c, step_rows_max, rows, from, Bind(taps, static_cast<int64_t>(i) * c.hidden));
  };

  // `normed` and `stream` are created first, so that their addresses in the workspace do not depend on a
  // step's other values. With offloaded experts, the norms after all MoE layers write to this one `normed`.
  ValueId normed = experts_offloaded ? g.between("normed") : kNoValue;
  out.stream = g.between("stream", c.hidden);
  using E = Embedding::Args;
  g.add<Embedding>("embed", {.tokens = 0, .vocab = c.vocab, .hidden = c.hidden, .y = c.x},
                   {{&E::ids, token_ids}, {&E::table, g.held("embedding")}, {&E::y, out.stream}});
  const auto norm = [&](const char* name, const char* weight) {
    if (!experts_offloaded) normed = g.between("normed");
    add_norm(&g, name, c, out.stream, g.held(weight), normed);
  };
  bool is_normed = false;  // whether the previous layer's offloaded experts already ran this norm
  // With several ranks: the output of this rank's previous slice, which is summed over ranks and added to the
  // stream before the next norm.
  ValueId part = kNoValue;
  const auto join = [&](const char* name, const char* weight) {
    normed = g.between("normed");
    add_parts(&g, name, c, part, out.stream, g.held(weight), normed);
  };
  int32_t with_experts = 0;
  for (int32_t layer = 0; layer < static_cast<int32_t>(c.layers.size()); ++layer) {
    const auto at = static_cast<size_t>(layer);
    const MoeConfig mlp = mlp_with_norm(c, layer);
    g.begin_layer(layer);
    if (part != kNoValue) {
      join("attention.norm", "attention.norm");
    } else if (!is_normed) {
      norm("attention.norm", "attention.norm");
    }
    tap(layer, out.stream);
    NamedValues values = tables[layout.group[at]];
    values.set("x", normed);
    values.set("stream", out.stream);
    if (c.ranks > 1) values.set("part", part = g.between("part"));
    append_attention(&g, c.layers[at].attention, bounds, values, rows_max);
    if (c.ranks > 1) {
      join("mlp.norm", "mlp.norm");
      part = g.between("part");
      append_mlp_part(&g, c.layers[at].mlp, normed, part, zeros, slice_of(captured, with_experts++));
      continue;
    }
    is_normed = experts_offloaded && !mlp.dense;
    if (is_normed) {
      g.cut();
    } else {
      append_mlp(&g, mlp, out.stream, zeros, slice_of(captured, with_experts));
    }
    if (!mlp.dense) ++with_experts;
  }
  g.begin_layer(-1);
  if (part != kNoValue) {
    join("final_norm", "final_norm");
  } else if (!is_normed) {
    norm("final_norm", "final_norm");
  }
  tap(static_cast<int32_t>(c.layers.size()), out.stream);
  tap(static_cast<int32_t>(c.layers.size()) + 1, normed);
  out.normed = normed;
  g.keep(normed);
  if (experts_offloaded) g.keep(out.stream);
  return out;
}

Graph head_graph(const DecoderConfig& c, const StepBounds& bounds, bool every_row, bool greedy) {
  Graph g;
  const ValueId logit_rows = every_row ? kNoValue : g.call("logit_rows");
  const ValueId table = g.call("normed"), lm_head = g.held("lm_head");
  const WeightLayout layout = c.layers.front().attention.layout;
  ValueId x = table;
  if (!every_row) {
    // An embedding lookup, whose table is the normed output of the last layer.
    x = g.between("rows");
    using E = Embedding::Args;
    g.add<Embedding>("logits.gather",
                     {.tokens = 0, .vocab = bounds.tokens, .hidden = c.hidden, .table = c.x, .y = c.x},
                     {{&E::ids, logit_rows}, {&E::table, table}, {&E::y, x}});
  }
  ValueId token = kNoValue, logprob = kNoValue;
  if (greedy) {
    token = g.call("token"), logprob = g.call("logprob");
  }
  using L = Linear::Args;
  const ValueId logits = greedy ? g.between("logits") : g.call("logits");
  g.add<Linear>(
      "logits",
      {.tokens = 0, .features = c.vocab, .width = c.hidden, .x = c.x, .y = DType::kF32, .layout = layout},
      {{&L::x, x}, {&L::w, lm_head}, {&L::y, logits}});
  using S = Sample::Args;
  if (greedy)
    g.add<Sample>("greedy", {.rows = 0, .vocab = c.vocab, .greedy = true},
                  {{&S::logits, logits}, {&S::token, token}, {&S::logprob, logprob}});
  return g;
}

}  // namespace sluice
