// Loads draft layers (nn/draft_layer.h): EAGLE3 heads, as saved by SpecForge, speculators, ModelOpt and other
// tools, and the multi-token prediction (MTP) layers in DeepSeek V3's checkpoints.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "models/load.h"
#include "nn/draft_layer.h"

namespace sluice {

// Reads config.json of an EAGLE3 head that drafts for `model`. Does not set maps_tokens, which depends on the
// files. kUnsupported and kCorrupt name the key, what was wanted and what was found.
Result<DraftLayerConfig> read_eagle3_config(const JsonAt& config, const ModelConfig& model);
// The number of drafts per step that the head's authors recommend, if config.json gives one.
Result<std::optional<int64_t>> read_speculative_tokens(const JsonAt& config);
// The config of the model's first multi-token prediction layer (ModelConfig::mtp_layers), whose attention and
// experts have the shapes of the model's last layer. kUnsupported: the model has no such layer.
Result<DraftLayerConfig> mtp_config(const ModelConfig& model);

// The MTP layer's tensors in a checkpoint, in loading order; tensors of the same weight are adjacent.
std::vector<TensorSpec> mtp_tensors(const DraftLayerConfig& config, int64_t layer);
// The names of the tensors with which an MTP layer's files may repeat the model's embedding and lm_head.
// These tensors are not read.
std::vector<std::string> mtp_copies(int64_t layer);
// Whether the files have an MTP layer. An ordinary decoder layer after the model's last layer does not count,
// even if config.json has num_nextn_predict_layers.
bool has_mtp_layer(const Checkpoint& files, const ModelConfig& model);

struct DraftLoadOptions {
  DType x = DType::kBF16;  // activations and cache: kBF16 or kF32
  LoadFormat format = LoadFormat::kSafetensors;
  uint64_t seed = 0;  // for kDummy
  // The device of the layer's experts, if it has any; null: the device of the other weights. Must outlive the
  // draft layer.
  Device* experts = nullptr;
  // The type to which router logits are rounded. More drafts are accepted with the type that training used.
  DType router_logits = DType::kF32;
};

// A draft layer in memory, ready for DraftLayer::bind of a layer planned for config().
class LoadedDraft {
 public:
  // Reads <directory>/config.json and the safetensors of an EAGLE3 head. The head shares the model's
  // embedding and lm_head unless its files have their own, so the model must be loaded on `device` and
  // outlive the head. With kDummy, the head shares the weights whose shapes match, and its draft tokens are
  // spread evenly over the model's vocabulary. Errors as in LoadedModel::load.
  static Result<std::unique_ptr<LoadedDraft>> load_eagle3(Device& device, const std::string& directory,
                                                          const LoadedModel& model,
                                                          const DraftLoadOptions& options = {});
  // Reads the first multi-token prediction layer from the model's safetensors: "model.layers.<number of
  // layers>." with enorm, hnorm, eh_proj, self_attn, mlp and shared_head.norm. The layer shares the model's
  // embedding and lm_head; copies of them in the files are ignored. kUnsupported: the model has no such
  // layer.
  static Result<std::unique_ptr<LoadedDraft>> load_mtp(Device& device, const std::string& directory,
                                                       const LoadedModel& model,
                                                       const DraftLoadOptions& options = {});
  ~LoadedDraft();
  LoadedDraft(const LoadedDraft&) = delete;
  LoadedDraft& operator=(const LoadedDraft&) = delete;

  const DraftLayerConfig& config() const;
  const NamedWeights& weights() const;  // under the names of draft_layer_weights()
  int64_t weight_bytes() const;         // bytes in memory, without tensors shared with the model
  std::optional<int64_t> speculative_tokens() const;
  Device* experts() const;  // the experts' device, if it differs from the layer's; otherwise null

  struct Parts;

 private:
  explicit LoadedDraft(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace sluice
