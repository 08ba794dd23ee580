// The multi-token prediction layer of DeepSeek V3: computes the logits of one more token from a token and
// the main model's hidden state. Speculative decoding runs it as its draft.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/latent_attention.h"
#include "nn/moe/offloaded.h"
#include "nn/named_weights.h"

namespace sluice {

// For a token at position t whose successor is known:
//
//   x       = eh_proj concat(enorm(embedding[token t + 1]), hnorm(hidden[t]))
//   x      += attention(attention_norm(x))      latent attention, over this layer's own cache
//   x      += moe(norm(x))                      routed experts and the shared one
//   logits  = head head_norm(x)                 of the token at t + 2
//
// The next draft step takes x in place of the main model's hidden state.
// Source: DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.2; vLLM model_executor/models/deepseek_mtp.py.
struct MtpConfig {
  int64_t vocab = 129280, hidden = 7168;
  double eps = 1e-6;       // of every norm around the attention
  DType x = DType::kBF16;  // activations, residual stream and cache; logits are f32
  LatentAttentionConfig attention;
  MoeConfig moe;  // also adds the residual stream
  RopeScaling rope;
  // Returns this config with the weight layouts of a device: DeviceInfo::layout for dense weights, layout_for for experts.
  MtpConfig with_layouts_of(const DeviceInfo& device) const;
  // Returns this config with activations and cache of type `x`.
  MtpConfig with_activations(DType x) const;
};

// The values that the steps hold, in the order of their graphs' held slots. All weights are outside the
// layers (-1): "embedding" bf16 [vocab, hidden]; "enorm" and "hnorm" bf16 [hidden], for the embedding and
// for the hidden state; "eh_proj" bf16 [hidden, 2 hidden] in the attention's layout; "attention.norm",
// "mlp.norm" and "final_norm" bf16 [hidden]; the weights of append_latent_attention() and of
// weight_slots(); "lm_head" bf16 [vocab, hidden] in the attention's layout.
struct MtpHeld {
  std::vector<Tensor> layer, head;
  MoeWeights apart = {};  // with offloaded experts
};

// The inputs of one step, in device memory; 0 <= rows <= bounds.sequences.
struct MtpIn {
  Tensor
      token_ids;  // i32[tokens]: for each row the token after its own; -1 (some engines at position 0) embeds
                  // as zeros
  Tensor hidden;  // [tokens, hidden]: from the main model, or MtpOut::hidden of the previous step
  StepTables tables;
  Tensor logit_rows;  // i32[rows]: the rows whose logits are needed
};
struct MtpOut {
  Tensor hidden;  // [bounds.tokens, hidden]: x; rows from `tokens` on stay unchanged. May alias MtpIn::hidden
  Tensor logits;  // f32[rows, vocab]
};

// The steps of an Mtp: host data only, so the device may be absent.
struct MtpSteps {
  std::optional<Step> layer, head;  // `tokens` rows through the layer; `rows` of its rows to logits
};
Result<MtpSteps> plan_mtp(const DeviceInfo& device, const Catalog& catalog, const MtpConfig& config,
                          const StepBounds& bounds, const Policy& policy = {}, bool experts_apart = false);

class Mtp {
 public:
  // With `experts`, the MoE layer runs on that device, which must hold its weights; `device` must then share the host's memory.
  static Result<std::unique_ptr<Mtp>> plan(Device& device, const MtpConfig& config, const StepBounds& bounds,
                                           const Policy& policy = {}, Device* experts = nullptr);
  const MtpConfig& config() const { return config_; }
  const StepBounds& bounds() const { return bounds_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  int64_t cache_bytes() const;
  // Returns a view of `memory`, which has cache_bytes() bytes.
  Tensor cache(void* memory) const;
  const MtpSteps& steps() const { return steps_; }

  // Call it once for weights and cache, whose addresses must not change. kInvalidArgument names the first
  // tensor that is missing or has another shape.
  Result<MtpHeld> bind(const NamedWeights& weights, const Tensor& cache) const;
  // Enqueues one step. May be captured, except with offloaded experts.
  Status forward(const MtpIn& in, const MtpHeld& held, const MtpOut& out, Workspace workspace,
                 Stream stream) const;
  // Returns (stage, kernel) in execution order for `tokens` tokens and `rows` rows of logits.
  std::vector<std::pair<std::string, std::string>> kernels(int64_t tokens, int64_t rows) const;

 private:
  Mtp(Device& device, MtpConfig config, const StepBounds& bounds)
      : device_(device), config_(std::move(config)), bounds_(bounds) {}
  Status plan_apart(const Policy& policy, Device& experts);

  Device& device_;
  MtpConfig config_;
  StepBounds bounds_;
  MtpSteps steps_;
  std::unique_ptr<MoeApart> apart_;  // set with offloaded experts
  ValueId normed_ = kNoValue;        // input of the experts
  OwnedTensor zeros_;                // i32[bounds.tokens, 1]
  size_t workspace_bytes_ = 0;
};

}  // namespace sluice
