// A decoder layer that drafts for a model: it reads hidden states of the model and computes the token after the next one. It is either an
// EAGLE3 head or DeepSeek V3's multi-token prediction (MTP) layer.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nn/constants.h"
#include "nn/decoder.h"

namespace sluice {

// For a token at position t whose successor is known, with f = concat(the hidden states `taps` of the model)[t] and
// e = embedding[token t + 1]:
//
//   kEagle3   g  = fc norm(f)                 `feature_norm`: no norm, one norm of all of f, or one for each tap; without `fc`: g = f
//             h  = norm(g)
//             r  = (norm_before_residual ? h : g) + attention(concat(norm(e), h))
//   kMtp      r  = eh_proj concat(norm(e), norm(f))
//             r += attention(norm(r))
//   both      r += mlp(norm(r))               the attention has its own cache
//             y  = norm(r);  logits = head y  of the token at t + 2
//
// The next draft replaces g, or f, by r (norm_output: y), at the following position.
// Source: Li, Wei, Zhang, Zhang, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test" (2025);
// vLLM model_executor/models/llama_eagle3.py. DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.2; vLLM
// model_executor/models/deepseek_mtp.py.
struct DraftLayerConfig {
  enum class Kind : uint8_t { kEagle3, kMtp };
  enum class FeatureNorm : uint8_t { kNone, kAll, kEach };
  Kind kind = Kind::kEagle3;
  int64_t vocab = 201088;        // rows of the embedding: the model's tokens
  int64_t draft_vocab = 201088;  // tokens that can be drafted
  bool maps_tokens = false;      // "token_of" gives their ids; false: they are the first draft_vocab tokens
  int64_t hidden = 2880, model_hidden = 2880;
  // Hidden states of the model, in the order of the columns of fc. Number i < layers is the input of layer i; number `layers` is the residual
  // stream after the last layer; number `layers` + 1 is the output of the last norm.
  std::vector<int32_t> taps;
  // Used by kEagle3 only.
  bool fc = true;
  FeatureNorm feature_norm = FeatureNorm::kNone;
  bool norm_before_residual = false;
  bool norm_output = false;   // true for kMtp
  double eps = 1e-5;          // epsilon of every norm
  DType x = DType::kBF16;     // activations and residual stream; logits are f32
  AttentionConfig attention;  // kEagle3: input = 2 hidden
  MoeConfig mlp;              // kEagle3: dense; with the residual stream
  RopeScaling rope;
  int64_t features() const { return std::ssize(taps) * model_hidden; }
  // Returns this config with the weight layouts of a device: DeviceInfo::layout for dense weights, layout_for for the MLP.
  DraftLayerConfig with_layouts_of(const DeviceInfo& device) const;
  // Returns this config with activations of type `x`.
  DraftLayerConfig with_activations(DType x) const;
};
constexpr std::string_view text(DraftLayerConfig::Kind kind) {
  return kind == DraftLayerConfig::Kind::kMtp ? "mtp" : "eagle3";
}

// The weights of a draft layer, all outside the layers (-1): "embedding" bf16 [vocab, hidden]; "embedding_norm" and "hidden_norm" bf16
// [hidden]; the weights of append_attention(); "mlp.norm" bf16 [hidden]; the weights of weight_slots(); "final_norm" bf16 [hidden];
// "lm_head" bf16 [draft_vocab, hidden]; "token_of" i32[draft_vocab], with maps_tokens. kEagle3: "fc" bf16 [hidden, features()], with fc;
// "feature_norm" bf16 [features()], with kAll; "feature_norm.0", "feature_norm.1", ... bf16 [model_hidden], with kEach. kMtp: "eh_proj"
// bf16 [hidden, 2 hidden], "attention.norm" bf16 [hidden]. Matrices but the embedding are in the layouts of the config. Caches are not
// included.
std::vector<HeldSlot> draft_layer_weights(const DraftLayerConfig& config);

// The values that the steps hold: weights and caches in the order of the held slots of their graphs.
struct DraftLayerHeld {
  std::vector<Tensor> extend, next, head;
  // With offloaded experts: the MoE weights and the norm before them.
  MoeWeights offloaded = {};
  Tensor offloaded_norm = {};
};

// Rows of one pass, in device memory.
struct DraftLayerIn {
  Tensor token_ids;  // i32[tokens]: for each row the token that follows its own
  // extend(): [tokens, features()], from the model. next(): [tokens, hidden], written by draft().
  Tensor source;
  StepTables tables;
};

// The steps of a DraftLayer: host data only, so the device may be absent.
struct DraftLayerSteps {
  StepsByRows extend;
  std::optional<Step> next, head;
};
Result<DraftLayerSteps> plan_draft_layer(const DeviceInfo& device, const Catalog& catalog,
                                         const DraftLayerConfig& config, const StepBounds& bounds,
                                         const Policy& policy = {}, const MoeBackend& backend = {},
                                         bool experts_offloaded = false);

// Tensors that DraftLayer::draft() writes.
struct DraftLayerOut {
  Tensor token;    // i32[rows], as ids of the model
  Tensor logprob;  // f32[rows]; NaN if the row's scores are not finite
  Tensor hidden;   // [rows, hidden], for next()
};

class DraftLayer {
 public:
  // Drafts do not change answers, so policy.batch_invariant does not apply. `experts` may place the experts on another device; `device`
  // must then share the host's memory.
  static Result<std::unique_ptr<DraftLayer>> plan(Device& device, const DraftLayerConfig& config,
                                                  const StepBounds& bounds, const Policy& policy = {},
                                                  const MoeSite& experts = {});
  const DraftLayerConfig& config() const { return config_; }
  const StepBounds& bounds() const { return bounds_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  // Call it once with weights and caches, whose addresses must not change. kInvalidArgument names the first tensor that is missing or has
  // another shape.
  Result<DraftLayerHeld> bind(const NamedWeights& weights, const KvCache& cache) const;

  // Runs the layer over rows with the model's features: writes their keys and values, and r to `stream` [bounds.tokens, hidden].
  Status extend(const DraftLayerIn& in, const DraftLayerHeld& held, const Tensor& stream, Workspace workspace,
                Stream queue, KernelRuns* runs = nullptr) const;
  // Runs the layer over drafts, at most one row of each sequence.
  Status next(const DraftLayerIn& in, const DraftLayerHeld& held, const Tensor& stream, Workspace workspace,
              Stream queue, KernelRuns* runs = nullptr) const;
  // Drafts the token that follows each of the given rows of the stream; `rows` is i32[0 to bounds.sequences].
  Status draft(const Tensor& rows, const Tensor& stream, const DraftLayerHeld& held, const DraftLayerOut& out,
               Workspace workspace, Stream queue, KernelRuns* runs = nullptr) const;
  // Row indices 0, 1, 2, ... of a stream; for draft() after next().
  Tensor first(int64_t rows) const { return first_rows(row_numbers_.view(), rows); }
  // Estimated microseconds of draft() by the cost models of its kernels; for every draft but the first, next() is included.
  double cost_us(int64_t rows, bool first) const;
  // Estimated microseconds of extend(). verifies: some sequence has more than one row.
  double extend_cost_us(int64_t tokens, bool verifies) const;

 private:
  DraftLayer(Device& device, DraftLayerConfig config, const StepBounds& bounds)
      : device_(device), config_(std::move(config)), bounds_(bounds) {}
  Status run_layer(const Step& step, const std::vector<Tensor>& held, const DraftLayerIn& in,
                   const DraftLayerHeld& all, const Tensor& stream, Workspace workspace, Stream queue,
                   KernelRuns* runs) const;

  Device& device_;
  DraftLayerConfig config_;
  StepBounds bounds_;
  DraftLayerSteps steps_;
  std::unique_ptr<OffloadedMoe> offloaded_;  // set with offloaded experts
  OwnedTensor zeros_, row_numbers_, sampled_rows_;
  size_t workspace_bytes_ = 0;
};

}  // namespace sluice
