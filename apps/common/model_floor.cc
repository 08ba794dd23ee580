#include "apps/common/model_floor.h"

#include <algorithm>
#include <cmath>

namespace sluice::apps {
namespace {

double real(int64_t value) { return static_cast<double>(value); }

// The number of elements in the attention projections of one layer.
double projection_elements(const AttentionConfig& a) {
  if (a.latent) {
    const LatentShape& l = *a.latent;
    const double queries = real(a.heads * a.query_dim()), row = real(l.rank + a.rotary);
    const double of_q = l.q_rank > 0 ? real(l.q_rank) * (real(a.hidden) + queries) : real(a.hidden) * queries;
    return of_q + real(a.hidden) * row + real(a.heads * (l.nope + l.v_dim)) * real(l.rank) +
           real(a.heads * l.v_dim) * real(a.hidden);
  }
  const int64_t qkv = (a.heads + 2 * a.kv_heads) * a.head_dim, o = a.heads * a.head_dim;
  return real(a.hidden) * real(qkv + o);
}

double elements_of_expert(const MoeConfig& m) { return 3 * real(m.hidden) * real(m.intermediate); }
double elements_of_shared(const MoeConfig& m) { return 3 * real(m.hidden) * real(m.shared_intermediate); }

double bytes_of_expert(const MoeConfig& m) {
  return elements_of_expert(m) * WeightFormat{m.expert_w, m.expert_scales}.bits() / 8;
}
double bytes_of_shared(const MoeConfig& m) {
  return elements_of_shared(m) * WeightFormat{m.shared_w, m.shared_scales}.bits() / 8;
}

// The bytes of one position in the cache. A latent is both key and value, so it counts once.
double bytes_of_position(const AttentionConfig& a) {
  return (a.latent ? 1 : 2) * real(a.kv_heads * a.head_dim) * real(bytes_of(a.cache_type(), 1));
}
double flops_of_position(const AttentionConfig& a) {
  if (a.latent) return 2 * real(a.heads) * real(a.head_dim + a.latent->rank);
  return 4 * real(a.heads * a.head_dim);
}

// The number of positions that the query at position `last` attends to.
double attended(const AttentionConfig& a, int64_t last) {
  return real(a.window > 0 ? std::min(last + 1, a.window) : last + 1);
}

Floor weights_floor(const DecoderConfig& c, int64_t tokens, int64_t rows, double experts) {
  Floor f;
  for (const LayerConfig& layer : c.layers) {
    const MoeConfig& m = layer.mlp;
    const double router = m.dense ? 0 : real(c.hidden) * real(m.experts);
    const double dense = projection_elements(layer.attention) + router;
    f.dense_bytes += 2 * dense + (m.dense ? bytes_of_expert(m) : bytes_of_shared(m));
    f.expert_bytes += m.dense ? 0 : experts * bytes_of_expert(m);
    f.flops += 2 * real(tokens) * (dense + elements_of_shared(m) + real(m.top_k) * elements_of_expert(m));
  }
  const double head = real(c.vocab) * real(c.hidden);
  f.dense_bytes += 2 * head;
  f.flops += 2 * real(rows) * head;
  return f;
}

}  // namespace

double floor_us(double bytes, double flops, const DeviceInfo& d) {
  return std::max(bytes / d.mem_bytes_per_us, flops / d.bf16_flops_per_us);
}

double expected_experts(const MoeConfig& m, int64_t tokens) {
  const double chosen = real(m.top_k) / real(m.experts);
  return real(m.experts) * (1 - std::pow(1 - chosen, real(tokens)));
}

Floor decode_floor(const DecoderConfig& c, int64_t sequences, int64_t context, double experts) {
  Floor f = weights_floor(c, sequences, sequences, experts);
  for (const LayerConfig& layer : c.layers) {
    const AttentionConfig& a = layer.attention;
    const double keys = real(sequences) * attended(a, context);
    f.kv_bytes += keys * bytes_of_position(a);
    f.flops += keys * flops_of_position(a);
  }
  return f;
}

Floor prefill_floor(const DecoderConfig& c, int64_t tokens, double experts) {
  Floor f = weights_floor(c, tokens, 1, experts);
  for (const LayerConfig& layer : c.layers) {
    const AttentionConfig& a = layer.attention;
    const int64_t whole =
        // The number of queries that attend to all previous positions.
        a.window > 0 ? std::min(tokens, a.window) : tokens;
    const double keys = real(whole) * (real(whole) + 1) / 2 + real(tokens - whole) * real(a.window);
    f.kv_bytes += real(tokens) * bytes_of_position(a);
    f.flops += keys * flops_of_position(a);
  }
  return f;
}

}  // namespace sluice::apps
