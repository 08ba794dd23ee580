// Loads a draft head of EAGLE3, as SpecForge, speculators, ModelOpt and others save it, into weights for nn/eagle3.h.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "models/load.h"
#include "nn/eagle3.h"

namespace sluice {

// Reads config.json of a head that drafts for `model`, except for maps_tokens, which only the files tell. kUnsupported or kCorrupt names
// the key, what was wanted and what was found.
Result<Eagle3Config> read_eagle3_config(const JsonAt& config, const ModelConfig& model);
// The number of drafts that the head's authors recommend, if config.json gives one.
Result<std::optional<int64_t>> read_speculative_tokens(const JsonAt& config);

struct Eagle3LoadOptions {
  DType x = DType::kBF16;  // activations and cache: kBF16 or kF32
  LoadFormat format = LoadFormat::kSafetensors;
  uint64_t seed = 0;  // for kDummy
};

// A head in memory, ready for Eagle3::bind of config().
class LoadedEagle3 {
 public:
  // Reads <directory>/config.json and its safetensors. The head shares the model's embedding and output layer unless the files have their
  // own, so the model must be loaded on `device` and outlive the head. With kDummy it shares what the model's shapes allow, and the tokens
  // that it drafts are spread evenly over the model's. Errors as in LoadedModel::load.
  static Result<std::unique_ptr<LoadedEagle3>> load(Device& device, const std::string& directory,
                                                    const LoadedModel& model,
                                                    const Eagle3LoadOptions& options = {});
  ~LoadedEagle3();
  LoadedEagle3(const LoadedEagle3&) = delete;
  LoadedEagle3& operator=(const LoadedEagle3&) = delete;

  const Eagle3Config& config() const;
  const NamedWeights& weights() const;  // by the names of eagle3_weights()
  int64_t weight_bytes() const;         // in memory, without tensors shared with the model
  std::optional<int64_t> speculative_tokens() const;

  struct Parts;

 private:
  explicit LoadedEagle3(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace sluice
