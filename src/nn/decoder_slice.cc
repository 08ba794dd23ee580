#include "nn/decoder_slice.h"

namespace sluice {
namespace {

Status check_slice(const DecoderSlice& s) {
  if (s.ranks < 1 || s.ranks > AllReduceNorm::kRanksMax)
    return invalid("tensor parallelism: wanted 1 to " + std::to_string(AllReduceNorm::kRanksMax) +
                   " ranks, found " + std::to_string(s.ranks));
  if (s.rank >= 0 && s.rank < s.ranks) return {};
  return invalid("tensor parallelism: wanted a rank from 0 to " + std::to_string(s.ranks - 1) + ", found " +
                 std::to_string(s.rank));
}

Status check_divides(const char* what, int64_t size, int64_t ranks) {
  if (size % ranks == 0) return {};
  return invalid("tensor parallelism: wanted a number of ranks that divides " + std::string(what) + " = " +
                 std::to_string(size) + ", found " + std::to_string(ranks));
}

Status has_no_slices(const char* what) {
  return unsupported(
      std::string(
          "tensor parallelism: wanted grouped-query attention and routed experts in every layer (gpt-oss, "
          "Qwen3-MoE), found ") +
      what);
}

}  // namespace

Result<DecoderConfig> sliced(const DecoderConfig& whole, const DecoderSlice& s) {
  SLUICE_TRY(check_slice(s));
  if (s.ranks == 1) return whole;
  DecoderConfig out = whole;
  out.ranks = s.ranks;
  for (LayerConfig& layer : out.layers) {
    AttentionConfig& a = layer.attention;
    if (a.latent) return has_no_slices("latent attention");
    if (layer.mlp.dense) return has_no_slices("a dense MLP");
    if (layer.mlp.shared_intermediate > 0) return has_no_slices("a shared expert");
    SLUICE_TRY(check_divides("num_attention_heads", a.heads, s.ranks));
    SLUICE_TRY(check_divides("num_key_value_heads", a.kv_heads, s.ranks));
    a.heads /= s.ranks, a.kv_heads /= s.ranks;
    a.o_bias = a.o_bias && s.rank == 0;
    auto mlp = sliced(layer.mlp, s.mlp());
    if (!mlp.ok()) return mlp.status();
    layer.mlp = std::move(mlp).value();
    layer.mlp.residual = false;  // the all-reduce adds the stream
  }
  return out;
}

WeightParts parts_of_weight(const AttentionConfig& whole, std::string_view weight, const DecoderSlice& s) {
  WeightParts out;
  if (s.ranks == 1) return out;
  const auto share = [&](int64_t first, int64_t count) {
    return Part{first + count / s.ranks * s.rank, count / s.ranks};
  };
  const int64_t queries = whole.heads * whole.head_dim, keys = whole.kv_heads * whole.head_dim;
  if (weight == "attention.qkv" || weight == "attention.qkv_bias")
    out.rows = {share(0, queries), share(queries, keys), share(queries + keys, keys)};
  if (weight == "attention.sinks") out.rows = {share(0, whole.heads)};
  if (weight == "attention.o") out.columns = share(0, queries);
  return out;
}

}  // namespace sluice
