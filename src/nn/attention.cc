#include "nn/attention.h"

#include <cmath>

#include "nn/latent_attention.h"

namespace sluice {
namespace {

// Normalizes in place the columns of the projection that hold these heads.
void norm_heads(Graph* graph, const char* name, const AttentionConfig& c, int64_t heads, const Bind& x,
                const Bind& weight) {
  using N = RmsNorm::Args;
  graph->add<RmsNorm>(
      name, {.tokens = 0, .hidden = c.head_dim, .eps = c.qk_norm_eps, .x = c.x, .y = c.x, .heads = heads},
      {{&N::x, x}, {&N::weight, weight}, {&N::y, x}});
}

ValueId held_if(Graph* graph, bool used, const char* name) { return used ? graph->held(name) : kNoValue; }

// Appends the QKV projection of "x", and the norms of queries and keys.
void project_heads(Graph* graph, const AttentionConfig& c, const NamedValues& v, ValueId qkv) {
  const int64_t queries = c.heads * c.head_dim;
  using L = Linear::Args;
  graph->add<Linear>("attention.qkv",
                     {.tokens = 0,
                      .features = queries + 2 * c.kv_heads * c.head_dim,
                      .width = c.input > 0 ? c.input : c.hidden,
                      .x = c.x,
                      .y = c.x,
                      .layout = c.layout,
                      .bias = c.qkv_bias},
                     {{&L::x, v("x")},
                      {&L::w, graph->held("attention.qkv")},
                      {&L::bias, held_if(graph, c.qkv_bias, "attention.qkv_bias")},
                      {&L::y, qkv}});
  if (!c.qk_norm) return;
  norm_heads(graph, "attention.q_norm", c, c.heads, qkv, graph->held("attention.q_norm"));
  norm_heads(graph, "attention.k_norm", c, c.kv_heads, Bind(qkv, queries), graph->held("attention.k_norm"));
}

Attention::Problem attention_problem(const AttentionConfig& c, const StepBounds& b, int64_t rows_max) {
  return {.tokens = 0,
          .sequences = b.sequences,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .pages = b.pages,
          .page_size = b.page_size,
          .pages_per_seq = b.pages_per_seq(),
          .window = c.window,
          .rows_max = rows_max,
          .scale = c.scale,
          .q = c.x,
          .cache = c.cache,
          .sinks = c.sinks,
          .settled = true};  // the host copies the tables before the step's first launch
}

}  // namespace

AttentionConfig latent_attention(int64_t hidden, int64_t heads, int64_t rotary, const LatentShape& shape) {
  return {.hidden = hidden,
          .heads = heads,
          .kv_heads = 1,
          .head_dim = shape.rank + rotary,
          .scale = 1 / std::sqrt(static_cast<double>(shape.nope + rotary)),
          .rotary = rotary,
          .pairs = RopePairs::kInterleaved,
          .latent = shape};
}

Status check_attention(const std::string& who, const AttentionConfig& c) {
  if (!c.latent) return {};
  const auto same = [&](const char* what, int64_t found, int64_t wanted) {
    return found == wanted ? Status{}
                           : invalid(who + ": " + what + ": wanted " + std::to_string(wanted) +
                                     " with latent attention, found " + std::to_string(found));
  };
  SLUICE_TRY(same("kv_heads", c.kv_heads, 1));
  SLUICE_TRY(same("head_dim", c.head_dim, c.latent->rank + c.rotary));
  SLUICE_TRY(same("window", c.window, 0));
  SLUICE_TRY(same("sinks", c.sinks, 0));
  SLUICE_TRY(same("qk_norm", c.qk_norm, 0));
  SLUICE_TRY(same("qkv_bias", c.qkv_bias, 0));
  SLUICE_TRY(same("o_bias", c.o_bias, 0));
  if (c.cache_type() != c.x)
    return unsupported(who + ": kv_cache_dtype: wanted the type of the activations (" + text(c.x) +
                       ") with latent attention, found " + text(c.cache_type()));
  return {};
}

void append_attention(Graph* graph, const AttentionConfig& c, const StepBounds& b, const NamedValues& v,
                      int64_t rows_max) {
  if (c.latent) return append_latent_attention(graph, c, b, v, rows_max);
  const int64_t queries = c.heads * c.head_dim, keys = c.kv_heads * c.head_dim, width = queries + 2 * keys;
  Graph& g = *graph;
  const ValueId qkv = g.between("qkv", width), heads = g.between("heads");
  project_heads(graph, c, v, qkv);
  // Queries and keys are adjacent and rotated alike, so one launch rotates both.
  using R = Rope::Args;
  g.add<Rope>("attention.rope",
              {.tokens = 0,
               .heads = c.heads + c.kv_heads,
               .head_dim = c.head_dim,
               .rotary = c.rotary,
               .table_rows = b.positions,
               .pairs = c.pairs,
               .x = c.x},
              {{&R::positions, v("positions")}, {&R::table, v("rope")}, {&R::x, qkv}});
  const ValueId k_cache = g.held("k_cache"), v_cache = g.held("v_cache");
  using W = KvWrite::Args;
  g.add<KvWrite>("attention.kv_write",
                 {.tokens = 0,
                  .kv_heads = c.kv_heads,
                  .head_dim = c.head_dim,
                  .pages = b.pages,
                  .page_size = b.page_size,
                  .kv = c.x,
                  .cache = c.cache},
                 {{&W::k, Bind(qkv, queries)},
                  {&W::v, Bind(qkv, queries + keys)},
                  {&W::slot_of, v("slot_of")},
                  {&W::k_cache, k_cache},
                  {&W::v_cache, v_cache}});
  using A = Attention::Args;
  g.add<Attention>(c.window > 0 ? "attention.sliding" : "attention.full", attention_problem(c, b, rows_max),
                   {{&A::q, qkv},
                    {&A::k_cache, k_cache},
                    {&A::v_cache, v_cache},
                    {&A::page_table, v("page_table")},
                    {&A::q_begin, v("q_begin")},
                    {&A::kv_len, v("kv_len")},
                    {&A::sinks, held_if(graph, c.sinks, "attention.sinks")},
                    {&A::y, heads}});
  const bool in_part = v("part").value != kNoValue;
  const Bind residual = v("residual").value == kNoValue ? v("stream") : v("residual");
  using L = Linear::Args;
  g.add<Linear>("attention.o",
                {.tokens = 0,
                 .features = c.hidden,
                 .width = queries,
                 .x = c.x,
                 .y = c.x,
                 .layout = c.layout,
                 .bias = c.o_bias,
                 .residual = !in_part},
                {{&L::x, heads},
                 {&L::w, g.held("attention.o")},
                 {&L::bias, held_if(graph, c.o_bias, "attention.o_bias")},
                 {&L::residual, in_part ? Bind() : residual},
                 {&L::y, in_part ? v("part") : v("stream")}});
}

}  // namespace sluice
