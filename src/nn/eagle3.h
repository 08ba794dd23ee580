// The draft head of EAGLE3: one decoder layer that reads hidden states of a model and drafts the tokens after its next one.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nn/constants.h"
#include "nn/decoder.h"

namespace sluice {

// For a token at position t whose successor is known:
//
//   f     = concat(the model's residual stream before the layers `taps`)[t]
//   g     = fc norm(f)                 `feature_norm`: no norm, one of all of f, or one for each tap; without `fc`: g = f
//   a     = norm(embedding[token t + 1]);  h = norm(g)
//   r     = (norm_before_residual ? h : g) + attention(concat(a, h))      over this layer's own cache
//   r    += mlp(norm(r))
//   y     = norm(r);  logits = head y  of the token at t + 2
//
// The next draft replaces g by r (norm_output: y), at the following position.
// Source: Li, Wei, Zhang, Zhang, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test" (2025);
// vLLM model_executor/models/llama_eagle3.py.
struct Eagle3Config {
  enum class FeatureNorm : uint8_t { kNone, kAll, kEach };
  int64_t vocab = 201088;        // rows of the embedding: the model's tokens
  int64_t draft_vocab = 201088;  // tokens that can be drafted
  bool maps_tokens = false;  // "token_of" tells which they are; else they are the first draft_vocab tokens
  int64_t hidden = 2880, model_hidden = 2880;
  // Layers of the model whose input is a feature, in the order of fc's columns; the number of layers: the stream after the last; one
  // more: the output of the last norm.
  std::vector<int32_t> taps;
  bool fc = true;
  FeatureNorm feature_norm = FeatureNorm::kNone;
  bool norm_before_residual = false, norm_output = false;
  double eps = 1e-5;          // of every norm
  DType x = DType::kBF16;     // activations and residual stream; logits are f32
  AttentionConfig attention;  // input = 2 hidden
  MoeConfig mlp;              // dense, with the residual stream
  RopeScaling rope;
  int64_t features() const { return std::ssize(taps) * model_hidden; }
  // Returns this config with the weight layouts of a device: DeviceInfo::layout for dense weights, layout_for for the MLP.
  Eagle3Config with_layouts_of(const DeviceInfo& device) const;
  // Returns this config with activations of type `x`.
  Eagle3Config with_activations(DType x) const;
};

// The weights of a head, all outside the layers (-1): "embedding" bf16 [vocab, hidden]; "fc" bf16 [hidden, features()], with fc;
// "feature_norm" bf16 [features()], with kAll; "feature_norm.0", "feature_norm.1", ... bf16 [model_hidden], with kEach; "embedding_norm" and
// "hidden_norm" bf16 [hidden]; "attention.qkv" [.., 2 hidden], "attention.o" and their biases (append_attention()); "mlp.norm" bf16 [hidden]; the weights of
// weight_slots(); "final_norm" bf16 [hidden]; "lm_head" bf16 [draft_vocab, hidden]; "token_of" i32[draft_vocab], with maps_tokens.
// Matrices but the embedding are in the layouts of the config. Caches are not included.
std::vector<HeldSlot> eagle3_weights(const Eagle3Config& config);

// The values that a head's steps hold: weights and cache in the order of their graphs' held slots.
struct Eagle3Held {
  std::vector<Tensor> extend, next, head;
};

// Rows of one pass, in device memory.
struct Eagle3In {
  Tensor token_ids;  // i32[tokens]: for each row the token after its own
  // extend(): [tokens, features()], from the model. next(): [tokens, hidden], which draft() wrote.
  Tensor source;
  StepTables tables;
};

// The steps of an Eagle3: host data only, so the device may be absent.
struct Eagle3Steps {
  StepsByRows extend;
  std::optional<Step> next, head;
};
Result<Eagle3Steps> plan_eagle3(const DeviceInfo& device, const Catalog& catalog, const Eagle3Config& config,
                                const StepBounds& bounds, const Policy& policy = {});

class Eagle3 {
 public:
  // Drafts do not change answers, so policy.batch_invariant does not apply.
  static Result<std::unique_ptr<Eagle3>> plan(Device& device, const Eagle3Config& config,
                                              const StepBounds& bounds, const Policy& policy = {});
  const Eagle3Config& config() const { return config_; }
  const StepBounds& bounds() const { return bounds_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  // Call it once for weights and cache, whose addresses must not change. kInvalidArgument names the first tensor that is missing or has
  // another shape.
  Result<Eagle3Held> bind(const NamedWeights& weights, const KvCache& cache) const;

  // The layer over rows with the model's features: writes their keys and values, and r to `stream` [bounds.tokens, hidden].
  Status extend(const Eagle3In& in, const Eagle3Held& held, const Tensor& stream, Workspace workspace,
                Stream queue, KernelRuns* runs = nullptr) const;
  // The layer over drafts, at most one row of each sequence.
  Status next(const Eagle3In& in, const Eagle3Held& held, const Tensor& stream, Workspace workspace,
              Stream queue, KernelRuns* runs = nullptr) const;
  // Drafts a token behind each of `rows` i32[0 to bounds.sequences] of the stream: writes token i32[rows], numbered as the model's, and
  // hidden [rows, hidden] for next().
  Status draft(const Tensor& rows, const Tensor& stream, const Eagle3Held& held, const Tensor& token,
               const Tensor& hidden, Workspace workspace, Stream queue, KernelRuns* runs = nullptr) const;
  // The first rows of a stream, in order; for draft() after next().
  Tensor first(int64_t rows) const { return first_rows(row_numbers_.view(), rows); }
  // Microseconds of draft() by the cost models of its kernels; unless it is the first one, of next() too.
  double cost_us(int64_t rows, bool first) const;
  // Of extend(). verifies: more than one row of some sequence.
  double extend_cost_us(int64_t tokens, bool verifies) const;

 private:
  Eagle3(Device& device, Eagle3Config config, const StepBounds& bounds)
      : device_(device), config_(std::move(config)), bounds_(bounds) {}
  Status run_layer(const Step& step, const std::vector<Tensor>& held, const Eagle3In& in,
                   const Tensor& stream, Workspace workspace, Stream queue, KernelRuns* runs) const;

  Device& device_;
  Eagle3Config config_;
  StepBounds bounds_;
  Eagle3Steps steps_;
  OwnedTensor zeros_, row_numbers_, drawn_rows_, logprob_;
  size_t workspace_bytes_ = 0;
};

}  // namespace sluice
