#include "nn/latent_attention.h"

namespace sluice {
namespace {

LatentAttention::Problem latent_problem(const AttentionConfig& c, const StepBounds& b, int64_t rows_max) {
  return {.tokens = 0,
          .sequences = b.sequences,
          .heads = c.heads,
          .rank = c.latent->rank,
          .nope = c.latent->nope,
          .rope = c.rotary,
          .v_dim = c.latent->v_dim,
          .pages = b.pages,
          .page_size = b.page_size,
          .pages_per_seq = b.pages_per_seq(),
          .rows_max = rows_max,
          .scale = c.scale,
          .q = c.x};
}

}  // namespace

void append_latent_attention(Graph* graph, const AttentionConfig& c, const StepBounds& b,
                             const NamedValues& v, int64_t rows_max) {
  Graph& g = *graph;
  const LatentShape& latent = *c.latent;
  const int64_t head = c.query_dim(), row = latent.rank + c.rotary, queries = c.heads * head;
  const int64_t q_rows = latent.q_rank > 0 ? latent.q_rank : queries;
  // One projection of x computes the query latent (or the queries) and, after it, the cache row (KV latent
  // and rotary key). Rows are padded to multiples of 16 bytes, as the matrix products require.
  constexpr int64_t kEach = 8;
  const ValueId projected = g.between("qkv", (q_rows + row + kEach - 1) / kEach * kEach);
  const Bind of_keys(projected, q_rows);
  const ValueId q = latent.q_rank > 0 ? g.between("q", queries) : projected, heads = g.between("heads");
  const auto project = [&](const char* name, int64_t features, int64_t width, const Bind& x, const Bind& y,
                           const Bind& residual = {}) {
    using L = Linear::Args;
    g.add<Linear>(name,
                  {.tokens = 0,
                   .features = features,
                   .width = width,
                   .x = c.x,
                   .y = c.x,
                   .layout = c.layout,
                   .residual = residual.value != kNoValue},
                  {{&L::x, x}, {&L::w, g.held(name)}, {&L::residual, residual}, {&L::y, y}});
  };
  const auto norm = [&](const char* name, int64_t width, const Bind& x) {
    using N = RmsNorm::Args;
    g.add<RmsNorm>(name, {.tokens = 0, .hidden = width, .eps = latent.eps, .x = c.x, .y = c.x},
                   {{&N::x, x}, {&N::weight, g.held(name)}, {&N::y, x}});
  };
  // Rotates the last `rotary` elements of each head.
  const auto rotate = [&](const char* name, int64_t count, int64_t head_dim, const Bind& x) {
    using R = Rope::Args;
    g.add<Rope>(name,
                {.tokens = 0,
                 .heads = count,
                 .head_dim = head_dim,
                 .rotary = c.rotary,
                 .first = head_dim - c.rotary,
                 .table_rows = b.positions,
                 .pairs = c.pairs,
                 .x = c.x},
                {{&R::positions, v("positions")}, {&R::table, v("rope")}, {&R::x, x}});
  };
  project("attention.qkv", q_rows + row, c.input > 0 ? c.input : c.hidden, v("x"), projected);
  if (latent.q_rank > 0) {
    norm("attention.q_norm", latent.q_rank, projected);
    project("attention.q_b", queries, latent.q_rank, projected, q);
  }
  rotate("attention.q_rope", c.heads, head, q);
  // The norm applies to the KV latent, the rotation to the rotary key after it.
  norm("attention.kv_norm", latent.rank, of_keys);
  rotate("attention.k_rope", 1, row, of_keys);
  const ValueId cache = g.held("k_cache");
  using W = KvWrite::Args;
  g.add<KvWrite>("attention.kv_write",
                 {.tokens = 0,
                  .kv_heads = 1,
                  .head_dim = row,
                  .pages = b.pages,
                  .page_size = b.page_size,
                  .kv = c.x,
                  .values = false},
                 {{&W::k, of_keys}, {&W::slot_of, v("slot_of")}, {&W::k_cache, cache}});
  using A = LatentAttention::Args;
  g.add<LatentAttention>("attention.latent", latent_problem(c, b, rows_max),
                         {{&A::q, q},
                          {&A::kv_b, g.held("attention.kv_b")},
                          {&A::cache, cache},
                          {&A::page_table, v("page_table")},
                          {&A::q_begin, v("q_begin")},
                          {&A::kv_len, v("kv_len")},
                          {&A::y, heads}});
  const Bind residual = v("residual").value == kNoValue ? v("stream") : v("residual");
  project("attention.o", c.hidden, c.heads * latent.v_dim, heads, v("stream"), residual);
}

}  // namespace sluice
