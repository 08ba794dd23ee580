// Reads the keys of config.json that several model families share: attention heads, the rotary embedding,
// tied embeddings, dense MLPs.
#pragma once
#include <string>

#include "base/json.h"
#include "models/family.h"

namespace sluice {

// A family's defaults for the rotary embedding.
struct RopeFamily {
  std::string models;  // name of the models in error messages: "gpt-oss"
  // Used if the config has neither rope_scaling nor rope_parameters. The default of theta also applies if
  // only theta is missing.
  RopeScaling unsaid;
  double context = 32768;  // default of max_position_embeddings
};

// Reads the rotary embedding. Before version 5, transformers writes rope_scaling and rope_theta; version 5
// writes both into rope_parameters, which some tools nest by kind of layer. rope_scaling takes precedence
// over rope_parameters, and inner keys over outer keys. kUnsupported names a type other than "yarn" and
// "default", or a member that neither type has.
Status read_rope(const JsonAt& config, const RopeFamily& family, RopeScaling* rope);

enum class HeadDim : uint8_t {
  kSaid,          // required, because the default in transformers is the value of one published model
  kMayBeMissing,  // optional; default: hidden_size / num_attention_heads
};
// Reads the numbers of heads and head_dim, which are the same in every kind of layer. a->hidden must be set.
// null is read as transformers reads it.
Status read_heads(const JsonAt& config, HeadDim head_dim, AttentionConfig* a);

// Reads tie_word_embeddings, false by default.
Status read_tied(const JsonAt& config, ModelConfig* model);

// Implements Family::fit for families whose files may contradict only tie_word_embeddings: a separate lm_head
// in the files takes precedence.
Status fit_head_to_files(const Checkpoint& files, ModelConfig* config);

// Reads the MLP config of a model's dense layers: intermediate_size.
Status read_dense_mlp(const JsonAt& config, int64_t hidden, MoeConfig* mlp);

// Checks that a second key for the same number agrees with the first.
Status must_be_also(const JsonAt& config, const std::string& key, const std::string& first, int64_t value);

// The error for a key whose value is wrong or missing.
Status refused(const JsonAt& config, const std::string& key, const std::string& wanted);

}  // namespace sluice
