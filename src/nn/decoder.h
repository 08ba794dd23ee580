// A decoder-only language model with attention and MoE or dense layers, from token ids to logits.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nn/attention.h"
#include "nn/cache_layout.h"
#include "nn/moe/offloaded.h"
#include "nn/named_weights.h"
#include "nn/steps_by_rows.h"

namespace sluice {

// stream += attention(norm(stream)), then stream += mlp(norm(stream)).
struct LayerConfig {
  AttentionConfig attention;
  MoeConfig mlp;  // experts, or a dense MLP (MoeConfig::dense); also adds the residual stream
};

struct DecoderConfig {
  int64_t vocab = 201088, hidden = 2880;
  double eps = 1e-5;       // of every norm around attention and experts
  DType x = DType::kBF16;  // activations and residual stream; logits are f32
  std::vector<LayerConfig> layers;
  RopeScaling rope;
  // For a draft layer (nn/draft_layer.h): the layers before which steps copy the residual stream to StepIn::taps. The number of layers: the
  // stream after the last; one more: the output of the last norm.
  std::vector<int32_t> taps = {};
  // Devices that compute the decoder together, each with its slice of the layers (nn/decoder_slice.h).
  int64_t ranks = 1;
  // The attention of the draft head, whose cache lies beside those of the layers, in pages of the group that sees all positions.
  std::optional<AttentionConfig> draft_attention = {};
  // Returns this config with the weight layouts of a device: DeviceInfo::layout for dense weights, layout_for for experts.
  DecoderConfig with_layouts_of(const DeviceInfo& device) const;
  // Returns this config with activations of type `x`; caches of CacheType::kSame change with them.
  DecoderConfig with_activations(DType x) const;
  // Returns this config with all caches in the given type.
  DecoderConfig with_caches(CacheType cache) const;
  // The layers with experts, ascending; at least one. All have the same number of experts and the same top_k.
  std::vector<int32_t> moe_layers() const;
  // The config of the first layer with experts.
  const MoeConfig& moe() const;
  std::vector<AttentionConfig> attention() const;  // of each layer, then draft_attention
};

// The MLP of a layer as a step runs it: with the preceding norm.
MoeConfig mlp_with_norm(const DecoderConfig& config, int32_t layer);

// The weights of a decoder by layer and name. Outside the layers: "embedding" bf16 [vocab, hidden],
// "final_norm" bf16 [hidden] and "lm_head" bf16 [vocab, hidden] in the attention's layout. In each layer:
// "attention.norm" and "mlp.norm" bf16 [hidden], the weights of append_attention() and the weights of
// weight_slots(). Caches are not included.
std::vector<HeldSlot> decoder_weights(const DecoderConfig& config);

// What one step computes; device memory. rows = 0 to bounds.logit_rows(), logit_rows i32[rows]: the tokens of this step whose
// logits are wanted.
struct StepIn {
  Tensor token_ids;  // i32[tokens]
  // One entry per group of layers (CacheLayout); entries differ in slot_of and page_table.
  std::vector<StepTables> tables;
  Tensor logit_rows;
  bool every_row = false;  // logit_rows are all tokens in order; the step does not read them then
  // i32[layers with experts, tokens, top_k], layers may be strided; with mlp.capture: receives the experts that each token chose
  Tensor captured = {};
  Tensor taps = {};  // [tokens, taps * hidden]; with DecoderConfig::taps
};
// The cache of one layer: [pages, kv_heads, page_size, head_dim]. Layers of different groups may share a cache. Without v for latent
// attention.
struct KvCache {
  Tensor k = {}, v = {};
};

// The values that a decoder's steps hold: weights and caches in the order of their graphs' held slots.
struct DecoderHeld {
  std::vector<Tensor> layers, head;
  // With offloaded experts, of each layer with experts: its MoE weights, the norm before it, and the norm after it.
  struct Offloaded {
    MoeWeights weights;
    Tensor norm, next_norm;
  };
  std::vector<Offloaded> offloaded = {};
};

// The steps of a Decoder: host data only, so the device may be absent.
struct DecoderSteps {
  StepsByRows layers;
  // From the last norm to logits, or to the token of the largest logit; for rows by number, or for all tokens in order.
  std::optional<Step> logits, all_logits, greedy, all_greedy;
};
// experts_offloaded: MoE layers run on another device, at the cuts of the graph.
Result<DecoderSteps> plan_decoder(const DeviceInfo& device, const Catalog& catalog,
                                  const DecoderConfig& config, const StepBounds& bounds,
                                  const Policy& policy = {}, const MoeBackend& backend = {},
                                  bool experts_offloaded = false, Gaps gaps = Gaps::kRefused);

class Decoder {
 public:
  // `experts` may place the MoE layers on another device; `device` must then share the host's memory.
  static Result<std::unique_ptr<Decoder>> plan(Device& device, const DecoderConfig& config,
                                               const StepBounds& bounds, const Policy& policy = {},
                                               const MoeSite& experts = {});
  const DecoderConfig& config() const { return config_; }
  const StepBounds& bounds() const { return bounds_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  // Sets the number of pages of the cache. Call it before the first step.
  Status set_pages(int64_t pages);
  const CacheLayout& cache_layout() const { return layout_; }
  int64_t cache_bytes() const;  // keys and values of all layers
  // Returns views of `memory`, which has cache_bytes() bytes, one for each entry of DecoderConfig::attention().
  std::vector<KvCache> caches(void* memory) const;
  // Call it once for weights and caches, whose addresses must not change. kInvalidArgument names the first
  // tensor that is missing or has another shape.
  Result<DecoderHeld> bind(const NamedWeights& weights, const std::vector<KvCache>& caches) const;

  // Enqueues one step and writes logits f32 [rows, vocab] of logit_rows. `held` is the result of bind().
  // May be captured, except with offloaded experts. This function and the next two count the kernels that
  // they run in `runs`, unless that is null.
  Status forward(const StepIn& in, const DecoderHeld& held, const Tensor& logits, Workspace workspace,
                 Stream stream, KernelRuns* runs = nullptr) const;
  // The same of other tokens of the step that forward() enqueued last, logit_rows i32[0 to bounds.logit_rows()]. Only this, and what
  // stays behind the first workspace_bytes(), has written to the workspace since. every_row: as in StepIn.
  Status logits_of(const Tensor& logit_rows, const DecoderHeld& held, const Tensor& logits,
                   Workspace workspace, Stream stream, bool every_row = false,
                   KernelRuns* runs = nullptr) const;
  // Replaces the logits of a step: forward() received `in` with zero logit_rows, and this writes token
  // i32[rows] and logprob f32[rows] of the largest logits, which are never stored (ops/linear_argmax.h).
  // `scratch`: greedy_workspace_bytes(), separate from the workspace.
  Status sample_greedy(const StepIn& in, const DecoderHeld& held, const Tensor& token, const Tensor& logprob,
                       Workspace scratch, Workspace workspace, Stream stream,
                       KernelRuns* runs = nullptr) const;
  size_t greedy_workspace_bytes() const;
  // Returns (stage, kernel) of one layer of each kind and of the stages around the layers, for a decode
  // step of `tokens` tokens and `rows` rows of logits.
  std::vector<std::pair<std::string, std::string>> kernels(int64_t tokens, int64_t rows) const;
  const DecoderSteps& steps() const { return steps_; }
  // Microseconds of a step by the cost models of its kernels, without its attention's context: `tokens` tokens, 1 to
  // bounds.logit_rows(), and logits of all of them. verifies: more than one token of some sequence. Offloaded experts are not counted.
  double cost_us(int64_t tokens, bool verifies) const;

 private:
  Decoder(Device& device, DecoderConfig config, const StepBounds& bounds, Policy policy, MoeSite experts)
      : device_(device),
        config_(std::move(config)),
        bounds_(bounds),
        policy_(std::move(policy)),
        experts_(std::move(experts)),
        layout_(sluice::cache_layout(config_.attention(), bounds.page_size)),
        captured_layers_(std::ssize(config_.moe_layers())) {}
  Status plan_steps();
  Status plan_offloaded();
  Status run_offloaded(const Step& step, const StepIn& in, const Given& given, const DecoderHeld& held,
                       Workspace workspace, Stream stream, KernelRuns* runs) const;
  Tensor last_normed(Workspace workspace, int64_t rows) const;
  Status check_call(const StepIn& in, const DecoderHeld& held, Workspace workspace) const;

  Device& device_;
  DecoderConfig config_;
  StepBounds bounds_;
  Policy policy_;
  MoeSite experts_;
  CacheLayout layout_;
  DecoderSteps steps_;
  std::unique_ptr<OffloadedMoe> offloaded_;  // set with offloaded experts
  ValueId offloaded_stream_ = kNoValue, offloaded_normed_ = kNoValue;
  OwnedTensor zeros_;  // i32[bounds.tokens, 1], expert ids of products of all tokens
  OwnedTensor rows_;   // i32[bounds.tokens]: 0, 1, 2, ...; with taps
  int64_t captured_layers_ = 0;
  size_t head_at_ = 0, workspace_bytes_ = 0;
};

}  // namespace sluice
