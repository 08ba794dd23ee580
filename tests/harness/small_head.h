// A draft head with random weights for the small decoder.
#pragma once
#include "engine/draft_runner.h"
#include "harness/engine_runs.h"

namespace sluice::test {

// The head drafts only these tokens.
inline const std::vector<int32_t> kHeadTokens = {5, 17, 60};

inline DraftLayerConfig small_head(DType x = DType::kBF16) {
  DraftLayerConfig c;
  c.vocab = kSmallVocab, c.draft_vocab = std::ssize(kHeadTokens), c.maps_tokens = true;
  c.hidden = 32, c.model_hidden = 64;
  c.taps = {0, 2, 3};
  c.attention = {.hidden = 32, .heads = 4, .kv_heads = 2, .head_dim = 16};
  c.attention.input = 64, c.attention.rotary = 16, c.attention.scale = 0.25;
  c.mlp = dense_mlp(32, 48);
  c.rope = {.theta = 10000};
  return c.with_activations(x);
}

struct HeadWeights {
  explicit HeadWeights(const DraftLayerConfig& c) {
    Random random(23);
    MoeWeights mlp;
    add_moe_weights(c.mlp, random, &store, &mlp);
    weights.set_moe(-1, c.mlp, mlp);
    for (const HeldSlot& held : draft_layer_weights(c)) {
      if (weights(-1, held.name).present()) continue;
      const Tensor t = store.add(held.spec);
      weights.set(-1, held.name, t);
      if (held.name == "token_of") {
        std::copy(kHeadTokens.begin(), kHeadTokens.end(), t.as<int32_t>());
        continue;
      }
      const int64_t width = held.name == "fc"              ? c.features()
                            : held.name == "attention.qkv" ? 2 * c.hidden
                                                           : 64;
      const bool matrix = held.name != "embedding" && (t.dtype == DType::kU8 || t.rank > 1);
      fill_bf16(t.data, bytes_of(t.dtype, elements_of(t)) / 2, matrix ? gain_of(width) : 0, random);
    }
  }
  TensorStore store;
  NamedWeights weights;
};

}  // namespace sluice::test
