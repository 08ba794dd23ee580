// How attention_paged divides its work. Plain arithmetic, the same for every vector width.
#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/attention.h"

namespace sluice::cpu {

constexpr int64_t kAttentionQueries = 32;      // rows times heads that share the loads of keys and values
constexpr int64_t kAttentionBlock = 64;        // positions scored at a time; blocks start at multiples of it
constexpr int64_t kAttentionPart = 1024;       // positions per part of a context, a multiple of the block
constexpr double kPartialFloatsMax = 1 << 24;  // at most 64 MiB of partial results

struct AttentionShape {
  int64_t group = 1;        // query heads per kv head
  int64_t group_heads = 1;  // query heads per item
  int64_t chunks = 1;       // items that a group is divided into
  int64_t rows = 1;         // query rows per item
  int64_t row_blocks = 1;
  int64_t parts = 1;       // items that a context is divided into; 1: each item processes its whole context
  int64_t padded_dim = 1;  // head_dim, rounded up to the length of any vector
  bool widens = false;     // the caches are e4m3
  int64_t items() const { return row_blocks * chunks * parts; }  // per kv head
  int64_t partial_floats() const { return padded_dim + 2; }      // values, largest score, sum of weights
  // Queries, two kinds of sums and, for e4m3 caches, a block of keys and values.
  int64_t thread_floats() const {
    return (3 * kAttentionQueries + (widens ? 2 * kAttentionBlock : 0)) * padded_dim;
  }
};

// Depends only on the problem, because results must not depend on the number of threads.
inline AttentionShape attention_shape(const Attention::Problem& p) {
  AttentionShape s;
  s.group = p.heads / p.kv_heads;
  s.group_heads = std::min(s.group, kAttentionQueries);
  s.chunks = (s.group + s.group_heads - 1) / s.group_heads;
  s.rows = kAttentionQueries / s.group_heads;
  s.row_blocks = (p.tokens + s.rows - 1) / s.rows;
  s.padded_dim = (p.head_dim + 63) / 64 * 64;
  s.widens = p.cache == CacheType::kE4M3;
  const int64_t parts = (p.pages_per_seq * p.page_size + kAttentionPart - 1) / kAttentionPart;
  const double floats = static_cast<double>(p.tokens) * static_cast<double>(p.heads * s.partial_floats()) *
                        static_cast<double>(parts);
  if (floats <= kPartialFloatsMax) s.parts = parts;
  return s;
}

// The positions [first, end) of a sequence to which one query row attends; -1: the row belongs to no sequence.
struct RowSpan {
  int64_t sequence = -1, first = 0, end = 0;
  bool meets(int64_t begin, int64_t stop) const { return std::max(first, begin) < std::min(end, stop); }
};

inline RowSpan row_span(const Attention::Problem& p, const Attention::Args& a, int64_t row) {
  const auto* begin = a.q_begin.as<const int32_t>();
  const int64_t s = std::upper_bound(begin, begin + p.sequences + 1, row) - begin - 1;
  if (s < 0 || s >= p.sequences) return {};
  const int64_t position = a.kv_len.as<const int32_t>()[s] - (begin[s + 1] - row);
  const int64_t end = std::clamp<int64_t>(position + 1, 0, p.pages_per_seq * p.page_size);
  const int64_t first = p.window > 0 ? std::max<int64_t>(0, position - p.window + 1) : 0;
  return {s, std::min(first, end), end};
}

inline float sink_of(const Attention::Problem& p, const Attention::Args& a, int64_t head) {
  return p.s == DType::kBF16 ? to_float(a.sinks.as<const BF16>()[head]) : a.sinks.as<const float>()[head];
}

}  // namespace sluice::cpu
