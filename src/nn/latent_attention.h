// The attention of a DeepSeek V3 layer: low-rank queries, one latent for keys and values, rotary embedding,
// paged cache, latent attention, output projection.
#pragma once
#include "nn/attention.h"

namespace sluice {

struct LatentAttentionConfig {
  int64_t hidden = 7168, heads = 128;
  int64_t q_rank = 1536, rank = 512;           // of the query latent, of the key-value latent
  int64_t nope = 128, rope = 64, v_dim = 128;  // elements of a head: without position, with it, of values
  double eps = 1e-6;                           // of the norms of both latents
  DType x = DType::kBF16;                      // activations and cache; weights are bf16
  WeightLayout layout = WeightLayout::kPanels16;
  double scale = 0.0721687836487032;  // of the scores: (nope + rope)^-0.5, times YaRN's factor
};

// Appends stream += attention(x) to a graph. `values` holds "x" and "stream" [tokens, hidden] and the
// tables by their names in StepTables; the rotary table is [positions, rope / 2, 2]. The graph must hold
// these values of the current layer:
//
//   attention.q_a      bf16 [q_rank, hidden], in config.layout
//   attention.q_norm   bf16 [q_rank]
//   attention.q_b      bf16 [heads * (nope + rope), q_rank], in config.layout
//   attention.kv_a     bf16 [rank + rope, hidden], in config.layout
//   attention.kv_norm  bf16 [rank]
//   attention.kv_b     bf16 [heads, nope + v_dim, rank], row-major
//   attention.o        bf16 [hidden, heads * v_dim], in config.layout
//   cache              [pages, 1, page_size, rank + rope] in config.x
void append_latent_attention(Graph* graph, const LatentAttentionConfig& config, const StepBounds& bounds,
                             const NamedValues& values);

}  // namespace sluice
