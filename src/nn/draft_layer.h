// A draft layer for speculative decoding: an EAGLE3 head or the multi-token prediction (MTP) layer of
// DeepSeek V3. From hidden states of the target model at position t and the token at t + 1, it predicts the
// token at t + 2.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nn/constants.h"
#include "nn/decoder.h"

namespace sluice {

// For position t whose next token is known, with f = concat(the model's hidden states `taps`)[t] and
// e = embedding[token t + 1]:
//
//   kEagle3   g  = fc norm(f)                 feature_norm: no norm, one norm of f, or one norm per tap;
//                                             without fc, g = f
//             h  = norm(g)
//             r  = (norm_before_residual ? h : g) + attention(concat(norm(e), h))
//   kMtp      r  = eh_proj concat(norm(e), norm(f))
//             r += attention(norm(r))
//   both      r += mlp(norm(r))               the attention has its own cache
//             y  = norm(r);  logits = head y  logits of the token at t + 2
//
// To draft one more token, the layer runs at the next position with r (with norm_output, y) in place of g
// (kEagle3) or f (kMtp).
//
// Source: Li, Wei, Zhang, Zhang, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
// Training-Time Test" (2025); vLLM model_executor/models/llama_eagle3.py. DeepSeek-AI, "DeepSeek-V3 Technical
// Report" (2024), section 2.2; vLLM model_executor/models/deepseek_mtp.py.
struct DraftLayerConfig {
  enum class Kind : uint8_t { kEagle3, kMtp };
  enum class FeatureNorm : uint8_t { kNone, kAll, kEach };
  Kind kind = Kind::kEagle3;
  int64_t vocab = 201088;        // rows of the embedding: the model's vocabulary
  int64_t draft_vocab = 201088;  // number of tokens that can be drafted
  // true: "token_of" maps draft tokens to the model's ids; false: they are ids 0 .. draft_vocab - 1
  bool maps_tokens = false;
  int64_t hidden = 2880, model_hidden = 2880;
  // Hidden states of the model, numbered as in DecoderConfig::taps, in the order of the columns of fc.
  std::vector<int32_t> taps;
  // Used by kEagle3 only.
  bool fc = true;
  FeatureNorm feature_norm = FeatureNorm::kNone;
  bool norm_before_residual = false;
  bool norm_output = false;   // next() reads y instead of r; true for kMtp
  double eps = 1e-5;          // epsilon of every norm
  DType x = DType::kBF16;     // activations and residual stream; logits are f32
  AttentionConfig attention;  // kEagle3: input = 2 hidden
  MoeConfig mlp;              // kEagle3: dense; also adds its output to the stream
  RopeScaling rope;
  int64_t features() const { return std::ssize(taps) * model_hidden; }
  // Returns this config with the weight layouts of a device: DeviceInfo::layout for dense weights,
  // layout_for() for the MLP.
  DraftLayerConfig with_layouts_of(const DeviceInfo& device) const;
  // Returns this config with activations of type `x`.
  DraftLayerConfig with_activations(DType x) const;
};
constexpr std::string_view text(DraftLayerConfig::Kind kind) {
  return kind == DraftLayerConfig::Kind::kMtp ? "mtp" : "eagle3";
}

// The weights of a draft layer, without its cache. All have layer -1 (outside the layers). Matrices except
// the embedding are in the layouts of the config.
//
//   both      "embedding" bf16 [vocab, hidden]; "embedding_norm", "hidden_norm", "mlp.norm" and "final_norm"
//             bf16 [hidden]; the weights of append_attention() and weight_slots(); "lm_head" bf16
//             [draft_vocab, hidden]; with maps_tokens, "token_of" i32[draft_vocab]
//   kEagle3   with fc, "fc" bf16 [hidden, features()]; with kAll, "feature_norm" bf16 [features()]; with
//             kEach, "feature_norm.0", "feature_norm.1", ... bf16 [model_hidden]
//   kMtp      "eh_proj" bf16 [hidden, 2 hidden]; "attention.norm" bf16 [hidden]
std::vector<HeldSlot> draft_layer_weights(const DraftLayerConfig& config);

// Weights and caches, in the order of the held slots of the steps' graphs.
struct DraftLayerHeld {
  std::vector<Tensor> extend, next, head;
  // With offloaded experts: the MoE weights and the norm before the experts.
  MoeWeights offloaded = {};
  Tensor offloaded_norm = {};
};

// The inputs of extend() and next(), in device memory.
struct DraftLayerIn {
  Tensor token_ids;  // i32[tokens]: for each row, the token at position t + 1
  // extend(): [tokens, features()], hidden states of the model. next(): [tokens, hidden], written by draft().
  Tensor source;
  StepTables tables;
};

// The planned steps of a DraftLayer. Contains host data only, so planning works without the device.
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
  Tensor token;    // i32[rows], ids in the model's vocabulary
  Tensor logprob;  // f32[rows]; NaN if the row's scores are not finite
  Tensor hidden;   // [rows, hidden], for next()
};

class DraftLayer {
 public:
  // Ignores policy.batch_invariant, because drafts do not change outputs. `experts` may place the experts on
  // another device; `device` must then share the host's memory.
  static Result<std::unique_ptr<DraftLayer>> plan(Device& device, const DraftLayerConfig& config,
                                                  const StepBounds& bounds, const Policy& policy = {},
                                                  const MoeSite& experts = {});
  const DraftLayerConfig& config() const { return config_; }
  const StepBounds& bounds() const { return bounds_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  // Collects the tensors that steps read. The addresses of weights and caches must not change afterwards.
  // kInvalidArgument names the first tensor that is missing or has another shape.
  Result<DraftLayerHeld> bind(const NamedWeights& weights, const KvCache& cache) const;

  // Runs the layer on hidden states of the model. Writes the rows' keys and values to the cache, and r to
  // `stream` [bounds.tokens, hidden].
  Status extend(const DraftLayerIn& in, const DraftLayerHeld& held, const Tensor& stream, Workspace workspace,
                Stream queue, KernelRuns* runs = nullptr) const;
  // Runs the layer on drafted tokens, at most one row per sequence. Writes the same outputs as extend().
  Status next(const DraftLayerIn& in, const DraftLayerHeld& held, const Tensor& stream, Workspace workspace,
              Stream queue, KernelRuns* runs = nullptr) const;
  // Drafts the next token for each of the given rows of the stream; `rows` is i32[0 to bounds.sequences].
  Status draft(const Tensor& rows, const Tensor& stream, const DraftLayerHeld& held, const DraftLayerOut& out,
               Workspace workspace, Stream queue, KernelRuns* runs = nullptr) const;
  // Row indices 0 .. rows - 1, which draft() takes after next().
  Tensor first(int64_t rows) const { return first_rows(row_numbers_.view(), rows); }
  // Estimated microseconds of one draft, from the kernels' cost models: draft(), and unless `first` also
  // next().
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
