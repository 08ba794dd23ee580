// Reads the keys of config.json that several decoder families share: attention heads and the rotary embedding.
#pragma once
#include <string>

#include "base/json.h"
#include "models/family.h"

namespace sluice {

// A family's rotary embedding.
struct RopeFamily {
  std::string models;  // name of the models in error messages: "gpt-oss"
  // defaults of a config without rope_scaling and rope_parameters; the default of theta also applies if only theta is missing
  RopeScaling unsaid;
  double context = 32768;  // default of max_position_embeddings
};

// Hugging Face writes rope_scaling and rope_theta. transformers 5 writes both into rope_parameters, which other tools nest by kind of
// layer. rope_scaling takes precedence over rope_parameters, and inner keys over outer keys. kUnsupported names a type that is neither
// "yarn" nor "default", and members that neither type has.
Status read_rope(const JsonAt& config, const RopeFamily& family, RopeScaling* rope);

enum class HeadDim : uint8_t {
  kSaid,          // a missing key is an error: transformers would use the published model's value
  kMayBeMissing,  // default: hidden_size / num_attention_heads
};
// Reads the heads, which are the same in every kind of layer; a->hidden must be set. null means the same as in transformers.
Status read_heads(const JsonAt& config, HeadDim head_dim, AttentionConfig* a);

// Reads tie_word_embeddings, false by default.
Status read_tied(const JsonAt& config, ModelConfig* model);

// Implements Family::fit for families whose files may contradict only tied embeddings: a separate output layer in the files decides.
Status fit_head_to_files(const Checkpoint& files, ModelConfig* config);

// Reads the dense MLP of layers beside layers with experts: intermediate_size.
Status read_dense_mlp(const JsonAt& config, int64_t hidden, MoeConfig* mlp);

// Checks that a second key for the same number agrees with the first.
Status must_be_also(const JsonAt& config, const std::string& key, const std::string& first, int64_t value);

// The error for a key with a wrong value, or for a missing key.
Status refused(const JsonAt& config, const std::string& key, const std::string& wanted);

}  // namespace sluice
