// Loads draft layers into weights for nn/draft_layer.h: EAGLE3 heads, as SpecForge, speculators, ModelOpt and others save them, and the
// multi-token prediction (MTP) layers in DeepSeek V3's checkpoints.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "models/load.h"
#include "nn/draft_layer.h"

namespace sluice {

// Reads config.json of a head that drafts for `model`. Leaves maps_tokens, which depends on the files. kUnsupported or kCorrupt names
// the key, what was wanted and what was found.
Result<DraftLayerConfig> read_eagle3_config(const JsonAt& config, const ModelConfig& model);
// The number of drafts that the head's authors recommend, if config.json gives one.
Result<std::optional<int64_t>> read_speculative_tokens(const JsonAt& config);
// The first multi-token prediction layer of a model that has one (ModelConfig::mtp_layers): its attention and its experts have the shapes of
// the model's last layer. kUnsupported: the model has no such layer.
Result<DraftLayerConfig> mtp_config(const ModelConfig& model);

// The layer's tensors in a checkpoint, in loading order; tensors of the same weight are adjacent.
std::vector<TensorSpec> mtp_tensors(const DraftLayerConfig& config, int64_t layer);
// Copies of the model's embedding and output layer that files may hold in the layer; they are not read.
std::vector<std::string> mtp_copies(int64_t layer);
// Whether the files have the layer. An ordinary layer after the model's last one does not count, whatever config.json says.
bool has_mtp_layer(const Checkpoint& files, const ModelConfig& model);

struct DraftLoadOptions {
  DType x = DType::kBF16;  // activations and cache: kBF16 or kF32
  LoadFormat format = LoadFormat::kSafetensors;
  uint64_t seed = 0;  // for kDummy
  // Device of the layer's experts, if it has any; null: the device of the other weights. It must outlive the layer.
  Device* experts = nullptr;
  // The type that router scores are rounded to. Drafts are accepted more often with the type that training used.
  DType router_logits = DType::kF32;
};

// A draft layer in memory, ready for DraftLayer::bind of config().
class LoadedDraft {
 public:
  // Reads <directory>/config.json and the safetensors of an EAGLE3 head. The head shares the model's embedding and output layer unless the
  // files have their own, so the model must be loaded on `device` and outlive the head. With kDummy the head shares what the model's shapes
  // allow, and its draft tokens are spread evenly over the model's tokens. Errors as in LoadedModel::load.
  static Result<std::unique_ptr<LoadedDraft>> load_eagle3(Device& device, const std::string& directory,
                                                          const LoadedModel& model,
                                                          const DraftLoadOptions& options = {});
  // Reads the first multi-token prediction layer from the model's own safetensors: "model.layers.<number of layers>." with enorm,
  // hnorm, eh_proj, self_attn, mlp and shared_head.norm. It shares the model's embedding and output layer, whose copies in the files are
  // ignored. kUnsupported: the model has no such layer.
  static Result<std::unique_ptr<LoadedDraft>> load_mtp(Device& device, const std::string& directory,
                                                       const LoadedModel& model,
                                                       const DraftLoadOptions& options = {});
  ~LoadedDraft();
  LoadedDraft(const LoadedDraft&) = delete;
  LoadedDraft& operator=(const LoadedDraft&) = delete;

  const DraftLayerConfig& config() const;
  const NamedWeights& weights() const;  // by the names of draft_layer_weights()
  int64_t weight_bytes() const;         // bytes in memory, without tensors shared with the model
  std::optional<int64_t> speculative_tokens() const;
  Device* experts() const;  // device of the experts, if it is not the layer's own

  struct Parts;

 private:
  explicit LoadedDraft(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace sluice
