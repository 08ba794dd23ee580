// The attention block of a decoder layer: QKV projection, norms of queries and keys, rotary embedding, write
// to the paged cache, attention, output projection.
#pragma once
#include <optional>

#include "nn/named_values.h"
#include "ops/all.h"

namespace sluice {

// Multi-head latent attention (MLA) of DeepSeek V2 and V3: the cache holds one short row per position, from
// which the keys and values of all heads are computed (nn/latent_attention.h).
struct LatentShape {
  int64_t q_rank = 1536;            // rank of the query latent; 0: queries are projected directly from x
  int64_t rank = 512;               // rank of the KV latent
  int64_t nope = 128, v_dim = 128;  // elements of a key head without rotary embedding, and of a value head
  double eps = 1e-6;                // epsilon of the norms of the query and KV latents
  bool operator==(const LatentShape&) const = default;
};

struct AttentionConfig {
  int64_t hidden = 2880, heads = 64, kv_heads = 8, head_dim = 64;
  int64_t input = 0;                   // columns of x; 0: hidden
  DType x = DType::kBF16;              // activations; weights, biases and sinks are bf16
  CacheType cache = CacheType::kSame;  // type of cached keys and values; kSame: the type `x`
  WeightLayout layout = WeightLayout::kPanels16;
  bool qkv_bias = false, o_bias = false, sinks = false;
  // Normalizes every query head and key head (RMS norm) before the rotary embedding, as in Qwen3.
  bool qk_norm = false;
  double qk_norm_eps = 1e-6;
  int64_t window = 0;  // sliding window: positions visible to a query; 0: all
  double scale = 0.125;
  int64_t rotary = 64;  // leading elements of a head that are rotated
  RopePairs pairs = RopePairs::kHalves;
  // Set for latent attention. Then head_dim must be rank + rotary, the width of a cache row, and kv_heads 1;
  // there is no value cache; biases, sinks, qk_norm and window must be off, and `cache` must be kSame.
  std::optional<LatentShape> latent = {};
  int64_t query_dim() const { return latent ? latent->nope + rotary : head_dim; }  // elements of a query head
  int64_t value_dim() const { return latent ? latent->v_dim : head_dim; }  // elements of a head's output
  DType cache_type() const { return cache_dtype(cache, x); }
  bool operator==(const AttentionConfig&) const = default;
};

// The config of latent attention. The last `rotary` elements of a query are rotated in adjacent pairs. The
// scale is 1 / sqrt(nope + rotary); with YaRN, the caller multiplies it by the square of YaRN's attention
// factor.
AttentionConfig latent_attention(int64_t hidden, int64_t heads, int64_t rotary, const LatentShape& shape);
// Checks that the members agree. kInvalidArgument begins with `who` and names the wrong member.
Status check_attention(const std::string& who, const AttentionConfig& config);

// Upper bounds of a step, which set the sizes of launches, caches and page tables.
struct StepBounds {
  int64_t tokens = 512;      // tokens of all sequences of a step
  int64_t sequences = 8;     // rows of the page table
  int64_t positions = 4096;  // positions of one sequence: rows of the rotary table
  int64_t page_size = 16;    // tokens per page
  int64_t pages = 2048;      // pages of the cache, shared by all sequences
  int64_t rows = 0;          // logit rows of one step; 0: one per sequence
  int64_t verify_rows = 0;   // tokens per sequence in a step that only verifies drafts; 0: no such step
  int64_t logit_rows() const { return rows > 0 ? rows : sequences; }
  int64_t pages_per_seq() const { return (positions + page_size - 1) / page_size; }
};

// Describes the sequences of a step, for all layers. Shapes and meaning: ops/attention.h, ops/kv_write.h,
// ops/rope.h. The tables are copied before the first launch of the step, and the step writes only its own
// positions of the caches, so the tables and the earlier positions are "settled" (ops/attention.h).
struct StepTables {
  Tensor positions, slot_of;           // i32[tokens]
  Tensor q_begin, kv_len, page_table;  // i32[sequences + 1], i32[sequences], i32[sequences, pages_per_seq]
  Tensor rope;                         // f32[positions, rotary / 2, 2]
  int64_t rows_max = 0;  // upper bound of the rows of one sequence; 0: unknown; 1: every sequence decodes
};

// Appends attention to a graph: stream += attention(x). If `values` has "residual", stream = residual +
// attention(x). If `values` has "part", part = attention(x), computed from this rank's heads. `values` holds
// "x" [tokens, input], "stream" [tokens, hidden] and the tables of StepTables by name. The graph must hold
// these values of the current layer:
//
//   attention.qkv       bf16 [(heads + 2 kv_heads) * head_dim, input]: queries, keys, values; config.layout
//   attention.qkv_bias  bf16 [(heads + 2 kv_heads) * head_dim], with qkv_bias
//   attention.q_norm, attention.k_norm   bf16 [head_dim], with qk_norm
//   attention.sinks     bf16 [heads], with sinks
//   attention.o         bf16 [hidden, heads * head_dim], in config.layout
//   attention.o_bias    bf16 [hidden], with o_bias
//   k_cache, v_cache    [pages, kv_heads, page_size, head_dim] in config.cache_type()
//
// With config.latent, the graph must hold the values that nn/latent_attention.h lists instead.
//
// rows_max: upper bound of the rows of one sequence; 0: unknown.
void append_attention(Graph* graph, const AttentionConfig& config, const StepBounds& bounds,
                      const NamedValues& values, int64_t rows_max);

}  // namespace sluice
