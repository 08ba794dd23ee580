// sluice explain: which kernel would run, and why not the others.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/commands.h"
#include "dispatch/decide.h"
#include "nn/moe/layer.h"

namespace sluice::apps {

enum class Show : uint8_t {
  kDecision,  // which kernel is chosen, and why
  kSweep,     // which kernel is chosen for each count of tokens
  kContract,  // fields and tensors
};

struct ExplainOptions {
  std::string op;                                           // empty: lists the operations
  std::vector<std::pair<std::string, std::string>> fields;  // name and value, as they were typed
  // Instead of one operation: all that a model runs for a step of `tokens`. A directory, or a name of known_moe().
  std::optional<std::string> model;
  int64_t tokens = 1, max_model_len = 0;
  std::optional<std::string> device;  // a known device; none: this machine
  Policy policy;
  MoeBackend moe_backend = {};          // of the model's experts
  std::string kv_cache_dtype = "auto";  // of the model's caches, as ModelFlags has it
  int64_t tokens_max = 1024;            // of a sweep
  Show show = Show::kDecision;
  Format format = Format::kText;
};
int explain(const ExplainOptions& options);

}  // namespace sluice::apps
