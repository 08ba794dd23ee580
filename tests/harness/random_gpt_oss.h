// A directory with a small random gpt-oss model whose heads have the large models' shapes.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/random.h"
#include "models/family.h"
#include "weights/files.h"

namespace sluice::test {

inline constexpr const char* kRandomGptOss = R"({
  "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": true, "hidden_act": "silu",
  "tie_word_embeddings": false, "vocab_size": 1000, "hidden_size": 512, "intermediate_size": 512,
  "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 64,
  "num_local_experts": 16, "num_experts_per_tok": 4, "sliding_window": 32, "max_position_embeddings": 4096,
  "rms_norm_eps": 1e-05, "swiglu_limit": 7.0, "rope_theta": 150000, "eos_token_id": 999,
  "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024,
                   "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false},
  "quantization_config": {"quant_method": "mxfp4"}})";

// Magnitudes at which every stage changes the residual stream and no stage dominates it.
inline void fill_random(const TensorSpec& spec, Random& random, StoredTensor* t) {
  t->bytes.resize(static_cast<size_t>(*stored_bytes(spec.type, spec.shape)));
  if (spec.type != StoredType::kBF16) {
    const bool scales = spec.weight.ends_with("_scale");
    for (std::byte& b : t->bytes)
      b = static_cast<std::byte>(scales ? 121 + random.integer(-1, 1) : random.integer(0, 255));
    return;
  }
  const bool norm = spec.weight.ends_with("norm");
  const auto width = static_cast<double>(spec.shape.back());
  const double size = norm                                                   ? 0.1
                      : spec.shape.size() == 1 || spec.weight == "embedding" ? 0.5
                                                                             : 1 / std::sqrt(width);
  auto* const to = reinterpret_cast<BF16*>(t->bytes.data());
  for (size_t i = 0; i < t->bytes.size() / 2; ++i)
    to[i] = to_bf16(static_cast<float>((norm ? 1 : 0) + size * random.normal()));
}

inline void write_random_gpt_oss(const std::string& directory) {
  std::ofstream(directory + "/config.json") << kRandomGptOss;
  const auto config = read_model_config(directory);
  ASSERT_TRUE(config.ok()) << config.status().message;
  Random random(21);
  std::vector<StoredTensor> tensors;
  for (const TensorSpec& spec : families().front()->tensors(config.value(), MoeNaming::kGptOss)) {
    tensors.push_back({{spec.name, spec.type, spec.shape}, {}});
    fill_random(spec, random, &tensors.back());
  }
  write_tensors(directory + "/model.safetensors", tensors);
}

}  // namespace sluice::test
