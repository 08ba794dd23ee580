// Shared by the kernel descriptors of attention: bounds that follow from a problem, and parameters of launches. Plain C++.
#pragma once
#include "backends/cuda/card.h"
#include "ops/attention.h"

namespace sluice::cuda {

// The maximum number of rows of one sequence in the step.
inline int64_t attention_rows(const Attention::Problem& p) {
  return p.rows_max > 0 ? std::min(p.rows_max, p.tokens) : p.tokens;
}
// The maximum number of positions to which a query attends.
inline int64_t attention_context(const Attention::Problem& p) {
  const int64_t all = p.pages_per_seq * p.page_size;
  return p.window > 0 ? std::min(p.window, all) : all;
}

// Adds the conditions of the kernels with tensor cores and TMA.
inline void need_attention_tiles(Refusal& r, const Attention::Problem& p, const DeviceInfo& d) {
  need_sm90(r, d);
  need_type(r, "q", p.q, DType::kBF16, "products of bf16");
  r.need(p.head_dim == 64 || p.head_dim == 128, "head_dim of 64 or 128 (tiles of 128-byte rows)", "head_dim",
         p.head_dim);
  need_multiple(r, "page_size", p.page_size, 16, "keys of a TMA box");
  constexpr int64_t kMax = int64_t{1} << 30;  // coordinates and indices of tiles are i32
  r.need(p.pages * p.page_size * p.kv_heads < kMax, "pages * page_size * kv_heads < 2^30 (TMA coordinates)",
         "pages * page_size * kv_heads", p.pages * p.page_size * p.kv_heads);
  r.need(p.tokens * p.heads < kMax, "tokens * heads < 2^30 (query indices are i32)", "tokens * heads",
         p.tokens * p.heads);
  r.need(p.kv_heads <= 65535, "kv_heads <= 65535 (CTAs along one dimension of a grid)", "kv_heads",
         p.kv_heads);
}

// A launch of the decode kernel: its sequences, and the CTAs and warps that divide the keys of a tile of queries.
struct AttentionDecode {
  int groups = 1;   // groups of 16 queries per tile
  int cluster = 1;  // CTAs that divide the keys of a tile of queries
  // kv heads per CTA, each with an equal part of its warps. If there are several, the cluster is 1.
  int heads = 1;
  int by_row = 0;      // every row has tiles of its own
  int most = 1 << 30;  // maximum number of queries of a sequence; another kernel computes longer sequences
  // Tiles of eight queries and fewer stages, to leave shared memory for the weights of the next dense layer.
  int narrow = 0;
  static AttentionDecode of(const KernelLaunch& l) {
    return {l.value[0], l.value[1], l.value[2], l.value[3], l.value[4], l.value[5]};
  }
  KernelLaunch launch() const { return {.value = {groups, cluster, heads, by_row, most, narrow}}; }
  int queries() const { return narrow ? 8 : 16 * groups; }  // per tile
};

}  // namespace sluice::cuda
