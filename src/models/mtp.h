// The multi-token prediction layer of a DeepSeek V3 checkpoint: from config.json and safetensors to weights that nn/mtp.h reads.
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
  int64_t context = 0;  // positions that the model knows
};

// config.json of a DeepseekV3ForCausalLM. kUnsupported or kCorrupt names the key, what was wanted and what was found.
Result<MtpModelConfig> read_mtp_config(const JsonAt& config);

struct MtpLoadOptions {
  int64_t draft = 0;       // which of the model's draft layers
  DType x = DType::kBF16;  // activations and cache: kBF16 or kF32
  // The main model's: the device of its MoE layers (null: the one that gets the rest) and the type of their router's logits. What
  // a draft layer was trained with is what its target is trained with, so the draft follows them.
  Device* experts = nullptr;
  DType router_logits = DType::kF32;
  // The draft's own; empty: the main model's. "cpu" or "cuda", the backend of one of the devices here; "float32" or "bfloat16".
  std::string speculative_moe_backend = {}, speculative_router_dtype = {};
  Device* spare = nullptr;  // one more device that the draft's MoE layer may be put on; outlives the layer
  // The main model's own, if it is loaded: the layer then has no copy of its own. Both or none.
  Tensor embedding = {}, head = {};  // as "embedding" and "lm_head" of its weights
  // Checks a few rows of the experts against the references first. Skip it only to measure loading.
  enum class Canary : uint8_t { kRun, kSkip } canary = Canary::kRun;
};

// One draft layer in memory, ready for Mtp::forward of config().
class LoadedMtp {
 public:
  // Reads <directory>/config.json and its safetensors: "model.layers.<n>." embed_tokens, enorm, hnorm, eh_proj, self_attn, mlp,
  // shared_head and the norms, bf16. A checkpoint without an embedding or a head of that layer has them of the main model.
  // kInvalidArgument: an option that cannot be, with what was wanted. Others as LoadedModel::load (models/load.h).
  static Result<std::unique_ptr<LoadedMtp>> load(Device& device, const std::string& directory,
                                                 const MtpLoadOptions& options = {});
  ~LoadedMtp();
  LoadedMtp(const LoadedMtp&) = delete;
  LoadedMtp& operator=(const LoadedMtp&) = delete;

  const MtpConfig& config() const;
  const NamedWeights& weights() const;  // names: nn/mtp.h
  int64_t layer() const;                // its number in the checkpoint
  int64_t weight_bytes() const;         // in memory, without what the main model shares
  Device* experts() const;              // what Mtp::plan wants: null where the MoE layer is with the rest

  struct Parts;

 private:
  explicit LoadedMtp(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace sluice
