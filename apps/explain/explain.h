// sluice explain: shows which kernel would run, and why other kernels would not.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/commands.h"
#include "apps/common/speculative_config.h"
#include "dispatch/decide.h"
#include "nn/moe/layer.h"

namespace sluice::apps {

enum class Show : uint8_t {
  kDecision,  // the chosen kernel, and the reason
  kSweep,     // the chosen kernel for each token count
  kContract,  // the operation's fields and tensors
};

struct ExplainOptions {
  std::string op;                                           // empty: lists the operations
  std::vector<std::pair<std::string, std::string>> fields;  // name and value as typed
  // If set, explains all operations in a step of `tokens` tokens of this model, instead of `op`. The value is a directory or a
  // name of known_moe().
  std::optional<std::string> model;
  int64_t tokens = 1, max_model_len = 0;
  // cpu, cuda or auto for this machine, or a known device; nullopt: this machine
  std::optional<std::string> device;
  Policy policy;
  MoeBackend moe_backend = {};          // kernels of the model's experts
  bool fp8_activations = false;         // MoeConfig::fp8_activations of the model's layers
  std::string kv_cache_dtype = "auto";  // type of the model's KV cache; see ModelFlags
  // With a model: shows the best numbers of drafts instead of the kernels.
  std::optional<SpeculativeConfig> speculation;
  int64_t tokens_max = 1024;  // the largest token count of a sweep
  Show show = Show::kDecision;
  Format format = Format::kText;
};
int explain(const ExplainOptions& options);

}  // namespace sluice::apps
