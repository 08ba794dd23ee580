// Loads the multi-token prediction layer of a DeepSeek V3 checkpoint from config.json and safetensors into weights for nn/mtp.h.
#pragma once
#include <memory>
#include <string>

#include "base/json.h"
#include "nn/mtp.h"

namespace sluice {

struct MtpModelConfig {
  MtpConfig mtp;
  int64_t layers = 0;   // of the main model: draft layer i is "model.layers.<layers + i>."
  int64_t drafts = 0;   // num_nextn_predict_layers
  int64_t context = 0;  // positions that the model supports
};

// Reads config.json of a DeepseekV3ForCausalLM. kUnsupported or kCorrupt names the key, what was wanted and what was found.
Result<MtpModelConfig> read_mtp_config(const JsonAt& config);

struct MtpLoadOptions {
  int64_t draft = 0;       // index of the draft layer
  DType x = DType::kBF16;  // activations and cache: kBF16 or kF32
  // Settings of the main model: the device of its MoE layers (null: the model's device) and the type of their
  // router logits. The draft follows them by default, because it was trained together with the main model.
  Device* experts = nullptr;
  DType router_logits = DType::kF32;
  // Overrides for the draft; empty: the main model's setting. Backend: "cpu" or "cuda", which must be the
  // backend of one of the devices here. Router type: "float32" or "bfloat16".
  std::string speculative_moe_backend = {}, speculative_router_dtype = {};
  Device* spare = nullptr;  // another device for the draft's MoE layer; must outlive the layer
  // Tensors of the main model, if it is loaded, which the draft layer then shares instead of copying. Give both or neither.
  Tensor embedding = {}, head = {};  // "embedding" and "lm_head" of the main model's weights
  // Checks a few rows of the experts against the references first. Skip it only to measure loading.
  enum class Canary : uint8_t { kRun, kSkip } canary = Canary::kRun;
};

// One draft layer in memory, ready for Mtp::forward of config().
class LoadedMtp {
 public:
  // Reads <directory>/config.json and its safetensors: "model.layers.<n>." embed_tokens, enorm, hnorm,
  // eh_proj, self_attn, mlp, shared_head and the norms, in bf16. If a checkpoint lacks the layer's
  // embedding or head, the main model's tensor is used. kInvalidArgument: an impossible option, with the
  // values allowed. Other errors as in LoadedModel::load (models/load.h).
  static Result<std::unique_ptr<LoadedMtp>> load(Device& device, const std::string& directory,
                                                 const MtpLoadOptions& options = {});
  ~LoadedMtp();
  LoadedMtp(const LoadedMtp&) = delete;
  LoadedMtp& operator=(const LoadedMtp&) = delete;

  const MtpConfig& config() const;
  const NamedWeights& weights() const;  // names as in nn/mtp.h
  int64_t layer() const;                // its number in the checkpoint
  int64_t weight_bytes() const;         // in memory, without tensors shared with the main model
  Device* experts() const;  // argument of Mtp::plan: null if the MoE layer is on the model's device

  struct Parts;

 private:
  explicit LoadedMtp(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace sluice
