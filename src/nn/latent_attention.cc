#include "nn/latent_attention.h"

namespace sluice {
namespace {

LatentAttention::Problem attention_problem(const LatentAttentionConfig& c, const StepBounds& b) {
  return {.tokens = 0,
          .sequences = b.sequences,
          .heads = c.heads,
          .rank = c.rank,
          .nope = c.nope,
          .rope = c.rope,
          .v_dim = c.v_dim,
          .pages = b.pages,
          .page_size = b.page_size,
          .pages_per_seq = b.pages_per_seq(),
          .scale = c.scale,
          .q = c.x};
}

}  // namespace

void append_latent_attention(Graph* graph, const LatentAttentionConfig& c, const StepBounds& b,
                             const NamedValues& v) {
  Graph& g = *graph;
  const int64_t head = c.nope + c.rope, row = c.rank + c.rope;
  const ValueId q_latent = g.between("q_latent"), q = g.between("q"), latent = g.between("latent", row),
                heads = g.between("heads");
  const auto project = [&](const char* name, int64_t features, int64_t width, const Bind& x, const Bind& w,
                           const Bind& y, bool residual = false) {
    using L = Linear::Args;
    g.add<Linear>(name,
                  {.tokens = 0,
                   .features = features,
                   .width = width,
                   .x = c.x,
                   .y = c.x,
                   .layout = c.layout,
                   .residual = residual},
                  {{&L::x, x}, {&L::w, w}, {&L::residual, residual ? y : Bind()}, {&L::y, y}});
  };
  const auto norm = [&](const char* name, int64_t width, const Bind& x, const Bind& weight) {
    using N = RmsNorm::Args;
    g.add<RmsNorm>(name, {.tokens = 0, .hidden = width, .eps = c.eps, .x = c.x, .y = c.x},
                   {{&N::x, x}, {&N::weight, weight}, {&N::y, x}});
  };
  // Rotates the part of a head that carries the position.
  const auto turn = [&](const char* name, int64_t count, int64_t head_dim, ValueId x) {
    using R = Rope::Args;
    g.add<Rope>(name,
                {.tokens = 0,
                 .heads = count,
                 .head_dim = head_dim,
                 .rotary = c.rope,
                 .first = head_dim - c.rope,
                 .table_rows = b.positions,
                 .pairs = RopePairs::kInterleaved,
                 .x = c.x},
                {{&R::positions, v("positions")}, {&R::table, v("rope")}, {&R::x, x}});
  };
  project("attention.q_a", c.q_rank, c.hidden, v("x"), g.held("attention.q_a"), q_latent);
  norm("attention.q_norm", c.q_rank, q_latent, g.held("attention.q_norm"));
  project("attention.q_b", c.heads * head, c.q_rank, q_latent, g.held("attention.q_b"), q);
  turn("attention.q_rope", c.heads, head, q);
  // A row holds the latent followed by the key that carries the position: the norm applies to the former,
  // the rotation to the latter.
  project("attention.kv_a", row, c.hidden, v("x"), g.held("attention.kv_a"), latent);
  norm("attention.kv_norm", c.rank, latent, g.held("attention.kv_norm"));
  turn("attention.k_rope", 1, row, latent);
  const ValueId cache = g.held("cache");
  using W = KvWrite::Args;
  g.add<KvWrite>("attention.kv_write",
                 {.tokens = 0,
                  .kv_heads = 1,
                  .head_dim = row,
                  .pages = b.pages,
                  .page_size = b.page_size,
                  .kv = c.x,
                  .values = false},
                 {{&W::k, latent}, {&W::slot_of, v("slot_of")}, {&W::k_cache, cache}});
  using A = LatentAttention::Args;
  g.add<LatentAttention>("attention.latent", attention_problem(c, b),
                         {{&A::q, q},
                          {&A::kv_b, g.held("attention.kv_b")},
                          {&A::cache, cache},
                          {&A::page_table, v("page_table")},
                          {&A::q_begin, v("q_begin")},
                          {&A::kv_len, v("kv_len")},
                          {&A::y, heads}});
  project("attention.o", c.hidden, c.heads * c.v_dim, heads, g.held("attention.o"), v("stream"), true);
}

}  // namespace sluice
