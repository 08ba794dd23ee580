// A directory with the config of a small gpt-oss model, and the weights that `sluice make-checkpoint` would write.
#pragma once
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "models/random_weights.h"
#include "weights/files.h"

namespace sluice::test {

// Sizes that end inside tiles, words and pieces; some matrices are large enough for several threads, others
// are not.
inline constexpr const char* kSmallGptOss = R"({
  "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": true, "hidden_act": "silu",
  "tie_word_embeddings": false, "vocab_size": 9001, "hidden_size": 480, "intermediate_size": 224,
  "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64,
  "num_local_experts": 9, "num_experts_per_tok": 3, "sliding_window": 32, "max_position_embeddings": 4096,
  "rms_norm_eps": 1e-05, "swiglu_limit": 7.0, "rope_theta": 150000, "eos_token_id": 999,
  "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024,
                   "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false},
  "quantization_config": {"quant_method": "mxfp4"}})";

inline std::vector<TensorSpec> write_small_config(const std::string& directory) {
  std::ofstream(directory + "/config.json") << kSmallGptOss;
  const auto config = read_model_config(directory);
  EXPECT_TRUE(config.ok()) << config.status().message;
  return families().front()->tensors(config.value(), MoeNaming::kGptOss);
}

// Writes in pieces of `piece_bytes` bytes, a multiple of 8, like a program that cannot hold a whole tensor.
inline void write_small_weights(const std::string& directory, const std::vector<TensorSpec>& specs,
                                uint64_t seed, int64_t piece_bytes) {
  std::vector<TensorToWrite> what;
  for (const TensorSpec& s : specs) what.push_back({s.name, s.type, s.shape});
  auto writer = SafetensorsWriter::create(directory + "/model.safetensors", what);
  ASSERT_TRUE(writer.ok()) << writer.status().message;
  RandomWeights random(specs, {.seed = seed}, 0);
  std::vector<std::byte> piece(static_cast<size_t>(piece_bytes));
  for (const TensorSpec& s : specs) {
    const int64_t bytes = stored_bytes(s.type, s.shape).value();
    for (int64_t at = 0; at < bytes; at += piece_bytes) {
      const std::span part(piece.data(), static_cast<size_t>(std::min(piece_bytes, bytes - at)));
      random.fill(s, at, part);
      ASSERT_TRUE(writer.value()->write(part).ok()) << s.name;
    }
  }
  ASSERT_TRUE(writer.value()->finish().ok());
}

}  // namespace sluice::test
