// The attention block of a DeepSeek V3 layer: projection to the KV latent and, optionally, a query latent;
// rotary embedding; write to the paged cache; latent attention; output projection.
#pragma once
#include "nn/attention.h"

namespace sluice {

// append_attention() for config.latent. The rotary table is [positions, rotary / 2, 2]. Let head = nope +
// rotary, row = rank + rotary, and q_rows = q_rank (or heads * head if q_rank is 0). The graph must hold
// these values of the current layer:
//
//   attention.qkv       bf16 [q_rows + row, input]: the query latent or the queries, then the KV latent, then
//                       the rotary key that all heads share; in config.layout
//   attention.q_norm    bf16 [q_rank], with q_rank
//   attention.q_b       bf16 [heads * head, q_rank], with q_rank; in config.layout
//   attention.kv_norm   bf16 [rank]
//   attention.kv_b      bf16 [heads, nope + v_dim, rank], row-major
//   attention.o         bf16 [hidden, heads * v_dim], in config.layout
//   k_cache             [pages, 1, page_size, row] in config.x
void append_latent_attention(Graph* graph, const AttentionConfig& config, const StepBounds& bounds,
                             const NamedValues& values, int64_t rows_max);

}  // namespace sluice
