// Loads draft layers into weights for nn/draft_layer.h: heads of EAGLE3, as SpecForge, speculators, ModelOpt and others save them, and the
// layers for multi-token prediction (MTP) in DeepSeek V3's checkpoints.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "models/load.h"
#include "nn/draft_layer.h"

namespace sluice {

// Reads config.json of a head that drafts for `model`, except for maps_tokens, which only the files tell. kUnsupported or kCorrupt names
// the key, what was wanted and what was found.
Result<DraftLayerConfig> read_eagle3_config(const JsonAt& config, const ModelConfig& model);
// The number of drafts that the head's authors recommend, if config.json gives one.
Result<std::optional<int64_t>> read_speculative_tokens(const JsonAt& config);
// The first layer for multi-token prediction of a model that has one (ModelConfig::mtp_layers): its attention and its experts are as in the
// model's last layer. kUnsupported: the model has none.
Result<DraftLayerConfig> mtp_config(const ModelConfig& model);

// Its tensors in a checkpoint, in loading order, those of one weight together.
std::vector<TensorSpec> mtp_tensors(const DraftLayerConfig& config, int64_t layer);
// Copies of the model's embedding and output layer that files may have in the layer, and that are not read.
std::vector<std::string> mtp_copies(int64_t layer);
// Whether the files have the layer. An ordinary layer after the model's last one is none, whatever config.json says.
bool has_mtp_layer(const Checkpoint& files, const ModelConfig& model);

struct DraftLoadOptions {
  DType x = DType::kBF16;  // activations and cache: kBF16 or kF32
  LoadFormat format = LoadFormat::kSafetensors;
  uint64_t seed = 0;  // for kDummy
  // Of a layer with experts. Their device; null: that of the other weights. It must outlive the layer.
  Device* experts = nullptr;
  // The type that router scores are rounded to. Drafts are accepted more often with the type of training.
  DType router_logits = DType::kF32;
};

// A draft layer in memory, ready for DraftLayer::bind of config().
class LoadedDraft {
 public:
  // Reads <directory>/config.json and safetensors of a head of EAGLE3. The head shares the model's embedding and output layer unless the
  // files have their own, so the model must be loaded on `device` and outlive the head. With kDummy it shares what the model's shapes allow,
  // and the tokens that it drafts are spread evenly over the model's. Errors as in LoadedModel::load.
  static Result<std::unique_ptr<LoadedDraft>> load_eagle3(Device& device, const std::string& directory,
                                                          const LoadedModel& model,
                                                          const DraftLoadOptions& options = {});
  // Reads the first layer for multi-token prediction from the model's own safetensors: "model.layers.<number of layers>." with enorm,
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
  int64_t weight_bytes() const;         // in memory, without tensors shared with the model
  std::optional<int64_t> speculative_tokens() const;
  Device* experts() const;  // their device, if it is another one

  struct Parts;

 private:
  explicit LoadedDraft(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace sluice
