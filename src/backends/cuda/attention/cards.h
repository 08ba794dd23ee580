// What the cards of attention kernels share: bounds that follow from a problem, and costs. Plain C++.
#pragma once
#include "backends/cuda/card.h"
#include "ops/attention.h"

namespace sluice::cuda {

// Rows that one sequence may own.
inline int64_t attention_rows(const Attention::Problem& p) {
  return p.rows_max > 0 ? std::min(p.rows_max, p.tokens) : p.tokens;
}
// Positions that a query may see.
inline int64_t attention_context(const Attention::Problem& p) {
  const int64_t all = p.pages_per_seq * p.page_size;
  return p.window > 0 ? std::min(p.window, all) : all;
}

// What the kernels with tensor cores and TMA ask of a problem.
inline void need_attention_tiles(Refusal& r, const Attention::Problem& p, const DeviceInfo& d) {
  need_sm90(r, d);
  need_type(r, "q", p.q, DType::kBF16, "products of bf16");
  r.need(p.head_dim == 64 || p.head_dim == 128, "head_dim of 64 or 128 (tiles of 128-byte rows)", "head_dim",
         p.head_dim);
  need_multiple(r, "page_size", p.page_size, 16, "keys of a TMA box");
  constexpr int64_t kMost = int64_t{1} << 30;  // coordinates and lists of tiles are i32
  r.need(p.pages * p.page_size * p.kv_heads < kMost, "pages * page_size * kv_heads < 2^30 (TMA coordinates)",
         "pages * page_size * kv_heads", p.pages * p.page_size * p.kv_heads);
  r.need(p.tokens * p.heads < kMost, "tokens * heads < 2^30 (numbers of queries)", "tokens * heads",
         p.tokens * p.heads);
  r.need(p.kv_heads <= 65535, "kv_heads <= 65535 (CTAs along one dimension of a grid)", "kv_heads",
         p.kv_heads);
}

// How the decode kernel is launched: which sequences it takes, and who shares the keys of a tile of queries.
struct AttentionDecode {
  int groups = 1;   // of 16 queries in a tile
  int cluster = 1;  // CTAs that share the keys of a tile of queries
  int heads = 1;  // kv heads of a CTA, each with an equal part of its warps; a cluster of 1 if there are more
  int by_row = 0;      // each row is a tile of its own
  int most = 1 << 30;  // queries of a sequence, at most; longer ones are others'
  // Tiles of eight queries, and fewer stages: the weights of the dense layer behind have the rest of the shared memory.
  int narrow = 0;
  static AttentionDecode of(const KernelLaunch& l) {
    return {l.value[0], l.value[1], l.value[2], l.value[3], l.value[4], l.value[5]};
  }
  KernelLaunch launch() const { return {.value = {groups, cluster, heads, by_row, most, narrow}}; }
  int queries() const { return narrow ? 8 : 16 * groups; }  // of a tile
};

}  // namespace sluice::cuda
