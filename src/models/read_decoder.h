// What the config.json of several decoder families says alike: heads of attention and the rotary embedding.
#pragma once
#include <string>

#include "base/json.h"
#include "models/family.h"

namespace sluice {

// How a family rotates.
struct RopeFamily {
  std::string models;  // what errors call it: "gpt-oss"
  RopeScaling
      unsaid;  // of a config without rope_scaling and rope_parameters; its theta wherever none is said
  double context = 32768;  // where max_position_embeddings is missing
};

// Hugging Face writes rope_scaling and rope_theta; transformers 5 writes both into rope_parameters, which other tools nest by kind of
// layer. A rope_scaling stands over rope_parameters, and what is inside over what is beside. kUnsupported names a type that is neither
// "yarn" nor "default", and members that neither has.
Status read_rope(const JsonAt& config, const RopeFamily& family, RopeScaling* rope);

enum class HeadDim : uint8_t {
  kSaid,          // a missing key is an error: to transformers it means the published model's
  kMayBeMissing,  // hidden_size / num_attention_heads then
};
// Of every kind of layer; a->hidden is known. null means what it means to transformers.
Status read_heads(const JsonAt& config, HeadDim head_dim, AttentionConfig* a);

// tie_word_embeddings; false where it is missing.
Status read_tied(const JsonAt& config, ModelConfig* model);

// A second name of a number.
Status must_be_also(const JsonAt& config, const std::string& key, const std::string& first, int64_t value);

// The error of a key that is there, or of a key that is not.
Status refused(const JsonAt& config, const std::string& key, const std::string& wanted);

}  // namespace sluice
