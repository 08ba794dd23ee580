// The attention of a decoder layer: projection, norm of queries and keys, rotary embedding, paged cache, attention, projection back.
#pragma once
#include "nn/named_values.h"
#include "ops/all.h"

namespace sluice {

struct AttentionConfig {
  int64_t hidden = 2880, heads = 64, kv_heads = 8, head_dim = 64;
  DType x = DType::kBF16;              // activations; weights, biases and sinks are bf16
  CacheType cache = CacheType::kSame;  // keys and values; kSame: as activations
  WeightLayout layout = WeightLayout::kPanels16;
  bool qkv_bias = false, o_bias = false, sinks = false;
  // RMS norm of each head of the queries and of the keys, before the rotary embedding (Qwen3).
  bool qk_norm = false;
  double qk_norm_eps = 1e-6;
  int64_t window = 0;  // positions that a query sees; 0: all
  double scale = 0.125;
  int64_t rotary = 64;  // leading elements of a head that turn
  RopePairs pairs = RopePairs::kHalves;
  DType cache_type() const { return cache_dtype(cache, x); }
  bool operator==(const AttentionConfig&) const = default;
};

// What a step may hold at most; sizes launches, caches and page tables.
struct StepBounds {
  int64_t tokens = 512;      // of all sequences together
  int64_t sequences = 8;     // rows of the page table
  int64_t positions = 4096;  // of one sequence: rows of the rotary table
  int64_t page_size = 16;    // tokens of a page
  int64_t pages = 2048;      // of the cache, for all sequences together
  int64_t rows = 0;          // logit rows of one step; 0: one for each sequence
  int64_t logit_rows() const { return rows > 0 ? rows : sequences; }
  int64_t pages_per_seq() const { return (positions + page_size - 1) / page_size; }
};

// What a step's sequences are; one for all layers. Shapes and meaning: ops/attention.h, ops/kv_write.h, ops/rope.h.
// They come with a copy before the step's launches, and of the caches the step writes its own positions alone ("settled" there).
struct StepTables {
  Tensor positions, slot_of;           // i32[tokens]
  Tensor q_begin, kv_len, page_table;  // i32[sequences + 1], i32[sequences], i32[sequences, pages_per_seq]
  Tensor rope;                         // f32[positions, rotary / 2, 2]
  int64_t rows_max = 0;  // rows of one sequence at most; 0: unknown. 1 where every sequence decodes
};

// Appends stream += attention(x) to a graph. `values`: "x" and "stream" [tokens, hidden], and the tables by their names above. The graph
// holds, of the layer that has begun:
//
//   attention.qkv       bf16 [(heads + 2 kv_heads) * head_dim, hidden], queries, keys, values; in config.layout
//   attention.qkv_bias  bf16 [(heads + 2 kv_heads) * head_dim], with qkv_bias
//   attention.q_norm, attention.k_norm   bf16 [head_dim], with qk_norm
//   attention.sinks     bf16 [heads], with sinks
//   attention.o         bf16 [hidden, heads * head_dim], in config.layout
//   attention.o_bias    bf16 [hidden], with o_bias
//   k_cache, v_cache    [pages, kv_heads, page_size, head_dim] in config.cache_type()
//
// `decodes`: every sequence owns one row at most.
void append_attention(Graph* graph, const AttentionConfig& config, const StepBounds& bounds,
                      const NamedValues& values, bool decodes);

}  // namespace sluice
