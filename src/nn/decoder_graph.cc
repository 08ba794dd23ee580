#include "nn/decoder_graph.h"

#include <algorithm>
#include <utility>

#include "nn/moe/graph.h"

namespace sluice {
namespace {

// Appends the stages of a model's layers in order. The residual stream is one value, which every block reads and adds to.
class LayersBuilder {
 public:
  LayersBuilder(const DecoderConfig& config, const StepBounds& bounds, int64_t rows_max,
                bool experts_offloaded)
      : c_(config), bounds_(bounds), rows_max_(rows_max), offloads_(experts_offloaded) {
    token_ids_ = g_.call("token_ids");
    layout_ = cache_layout(c_.attention(), bounds.page_size);
    tables_.resize(layout_.windows.size());
    for (size_t group = 0; group < tables_.size(); ++group)
      for (const char* name : {"positions", "slot_of", "q_begin", "kv_len", "page_table", "rope"})
        tables_[group].set(name, g_.call("group " + std::to_string(group) + " " + name));
    captured_ = g_.call("captured"), zeros_ = g_.call("zeros");
    if (!c_.taps.empty()) rows_ = g_.call("rows"), taps_ = g_.call("taps", std::ssize(c_.taps) * c_.hidden);
    // `normed` and `stream` are created first, so that their addresses in the workspace do not depend on a
    // step's other values. With offloaded experts, the norms after all MoE layers write to this one `normed`.
    if (offloads_) normed_ = g_.between("normed");
    stream_ = g_.between("stream", c_.hidden);
  }

  void begin_layer(int32_t layer) { g_.begin_layer(layer); }
  void end_layers() { g_.begin_layer(-1); }

  // stream = the embeddings of the step's tokens
  void embed() {
    using E = Embedding::Args;
    g_.add<Embedding>("embed", {.tokens = 0, .vocab = c_.vocab, .hidden = c_.hidden, .y = c_.x},
                      {{&E::ids, token_ids_}, {&E::table, g_.held("embedding")}, {&E::y, stream_}});
  }

  // Returns the norm of the stream. `name` is also the weight's name. With several ranks, the stage first adds the previous
  // block's output, summed over ranks, to the stream.
  ValueId norm(const char* name) {
    if (std::exchange(is_normed_, false)) return normed_;
    if (!offloads_) normed_ = g_.between("normed");
    const Bind weight = g_.held(name);
    if (part_ == kNoValue) {
      using N = RmsNorm::Args;
      g_.add<RmsNorm>(name, {.tokens = 0, .hidden = c_.hidden, .eps = c_.eps, .x = c_.x, .y = c_.x},
                      {{&N::x, stream_}, {&N::weight, weight}, {&N::y, normed_}});
    } else {
      using A = AllReduceNorm::Args;
      g_.add<AllReduceNorm>(name,
                            {.tokens = 0, .hidden = c_.hidden, .ranks = c_.ranks, .eps = c_.eps, .x = c_.x},
                            {{&A::x, part_}, {&A::stream, stream_}, {&A::weight, weight}, {&A::y, normed_}});
    }
    return normed_;
  }

  // stream += attention(x); with several ranks, only computes this rank's part of the output.
  void attention(int32_t layer, ValueId x) {
    const auto at = static_cast<size_t>(layer);
    NamedValues values = tables_[layout_.group[at]];
    values.set("x", x);
    values.set("stream", stream_);
    if (c_.ranks > 1) values.set("part", part_ = g_.between("part"));
    append_attention(&g_, c_.layers[at].attention, bounds_, values, rows_max_);
  }

  // stream += mlp(norm(stream)), with experts or a dense MLP; with several ranks, only computes this rank's part of the output.
  // Offloaded experts run between two parts of the graph, and with them this norm and the next one.
  void mlp(int32_t layer) {
    const bool in_parts = c_.ranks > 1;
    const MoeConfig mlp = in_parts ? c_.layers[static_cast<size_t>(layer)].mlp : mlp_with_norm(c_, layer);
    if (offloads_ && !mlp.dense) {
      is_normed_ = true;
      return g_.cut();
    }
    NamedValues values;
    if (in_parts) {
      values.set("x", norm("mlp.norm"));
      values.set("y", part_ = g_.between("part"));
    } else {
      values.set("x", stream_);
      values.set("x_norm_weight", g_.held("mlp.norm"));
      values.set("residual", stream_);
      values.set("y", stream_);
    }
    values.set("zeros", zeros_);
    if (mlp.capture)
      values.set(chooses_in_captured(mlp) ? "ids" : "captured", slice_of(captured_, moe_layers_));
    hold_weights(&g_, mlp, &values);
    append_moe(&g_, mlp, values);
    if (!mlp.dense) ++moe_layers_;
  }

  // Copies `from` to the taps of this number (DecoderConfig::taps), by an embedding lookup whose ids are the row numbers.
  void tap(int32_t number, ValueId from) {
    const int64_t step_rows_max =
        rows_max_ == 1 ? std::min(bounds_.tokens, bounds_.sequences) : bounds_.tokens;
    using E = Embedding::Args;
    for (size_t i = 0; i < c_.taps.size(); ++i)
      if (c_.taps[i] == number)
        g_.add<Embedding>(
            "tap", {.tokens = 0, .vocab = step_rows_max, .hidden = c_.hidden, .table = c_.x, .y = c_.x},
            {{&E::ids, rows_}, {&E::table, from}, {&E::y, Bind(taps_, static_cast<int64_t>(i) * c_.hidden)}});
  }

  ValueId stream() const { return stream_; }
  LayersGraph finish(ValueId normed) {
    g_.keep(normed);
    if (offloads_) g_.keep(stream_);
    return {.graph = std::move(g_), .stream = stream_, .normed = normed};
  }

 private:
  const DecoderConfig& c_;
  const StepBounds& bounds_;
  int64_t rows_max_;
  bool offloads_;
  Graph g_;
  CacheLayout layout_;
  std::vector<NamedValues> tables_;  // by group of layers
  ValueId token_ids_ = kNoValue, captured_ = kNoValue, zeros_ = kNoValue, rows_ = kNoValue, taps_ = kNoValue;
  ValueId stream_ = kNoValue, normed_ = kNoValue;
  ValueId part_ = kNoValue;  // with several ranks, the output of the previous block of this rank
  bool is_normed_ = false;  // whether the offloaded experts of the previous layer also computed the next norm
  int32_t moe_layers_ = 0;  // number of MoE layers so far
};

}  // namespace

LayersGraph layers_graph(const DecoderConfig& c, const StepBounds& bounds, int64_t rows_max,
                         bool experts_offloaded) {
  LayersBuilder b(c, bounds, rows_max, experts_offloaded);
  const auto layers = static_cast<int32_t>(c.layers.size());
  b.embed();
  for (int32_t layer = 0; layer < layers; ++layer) {
    b.begin_layer(layer);
    const ValueId x = b.norm("attention.norm");
    b.tap(layer, b.stream());
    b.attention(layer, x);
    b.mlp(layer);
  }
  b.end_layers();
  const ValueId normed = b.norm("final_norm");
  b.tap(layers, b.stream());
  b.tap(layers + 1, normed);
  return b.finish(normed);
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
