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
  MoeConfig mlp;  // experts, or a dense MLP (MoeConfig::dense); also adds its output to the stream
};

struct DecoderConfig {
  int64_t vocab = 201088, hidden = 2880;
  double eps = 1e-5;       // epsilon of every norm of the residual stream
  DType x = DType::kBF16;  // activations and residual stream; logits are f32
  std::vector<LayerConfig> layers;
  RopeScaling rope;
  // For a draft layer (nn/draft_layer.h): steps copy these hidden states to StepIn::taps. Entry i <
  // layers.size() is the residual stream before layer i; layers.size() is the stream after the last layer;
  // layers.size() + 1 is the output of the final norm.
  std::vector<int32_t> taps = {};
  // Tensor-parallel ranks: the number of devices that each compute a slice of every layer
  // (nn/decoder_slice.h).
  int64_t ranks = 1;
  // The attention of the draft layer. Its cache allocates from the same page pool as the layers' caches, as
  // part of the group without a window.
  std::optional<AttentionConfig> draft_attention = {};
  // Returns this config with the weight layouts of a device: DeviceInfo::layout for dense weights,
  // layout_for() for experts.
  DecoderConfig with_layouts_of(const DeviceInfo& device) const;
  // Returns this config with activations of type `x`. Caches of CacheType::kSame get the same type.
  DecoderConfig with_activations(DType x) const;
  // Returns this config with all caches of the given type.
  DecoderConfig with_caches(CacheType cache) const;
  // The same with MoeConfig::fp8_activations in every MoE layer.
  DecoderConfig with_fp8_activations(bool fp8) const;
  // The MoE layers, ascending; at least one. All have the same number of experts and the same top_k.
  std::vector<int32_t> moe_layers() const;
  // The config of the first MoE layer.
  const MoeConfig& moe() const;
  std::vector<AttentionConfig> attention() const;  // one per layer, then draft_attention if set
};

// The MLP config of a layer, with the preceding norm, which a step runs as part of the MLP.
MoeConfig mlp_with_norm(const DecoderConfig& config, int32_t layer);

// The weights of a decoder by layer and name. Outside the layers: "embedding" bf16 [vocab, hidden],
// "final_norm" bf16 [hidden], and "lm_head" bf16 [vocab, hidden] in the layout of the attention weights. In
// each layer: "attention.norm" and "mlp.norm" bf16 [hidden], the weights of append_attention() and the
// weights of weight_slots(). Caches are not included.
std::vector<HeldSlot> decoder_weights(const DecoderConfig& config);

// The arguments of one step, in device memory: inputs, and tensors that the step fills.
struct StepIn {
  Tensor token_ids;  // i32[tokens]
  // One entry per group of layers (CacheLayout); entries differ in slot_of and page_table.
  std::vector<StepTables> tables;
  // i32[rows], rows <= bounds.logit_rows(): the tokens of this step whose logits are computed
  Tensor logit_rows;
  bool every_row = false;  // logit_rows lists all tokens in order; the step then uses only its length
  // i32[MoE layers, tokens, top_k], layers may be strided. With mlp.capture, receives the experts that each
  // token chose.
  Tensor captured = {};
  Tensor taps = {};  // [tokens, taps * hidden]; receives the hidden states of DecoderConfig::taps
};
// The cache of one layer: k and v [pages, kv_heads, page_size, head_dim]. v is absent for latent attention.
// Layers of different groups may share a cache (nn/cache_layout.h).
struct KvCache {
  Tensor k = {}, v = {};
};

// Weights and caches, in the order of the held slots of the steps' graphs.
struct DecoderHeld {
  std::vector<Tensor> layers, head;
  // One per MoE layer if experts are offloaded: the layer's weights, the norm before the layer and the norm after it.
  struct Offloaded {
    MoeWeights weights;
    Tensor norm, next_norm;
  };
  std::vector<Offloaded> offloaded = {};
};

// The planned steps of a Decoder. Contains host data only, so planning works without the device.
struct DecoderSteps {
  StepsByRows layers;
  // The head: computes logits, or only the token with the largest logit (greedy), for the rows of logit_rows
  // or for all tokens in order (all_).
  std::optional<Step> logits, all_logits, greedy, all_greedy;
};
// experts_offloaded: MoE layers run on another device; cuts divide the graph into the parts that run between them.
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
  // Sets the number of pages of the cache and plans the steps again. Call it before the first step.
  Status set_pages(int64_t pages);
  const CacheLayout& cache_layout() const { return layout_; }
  int64_t cache_bytes() const;  // bytes of the keys and values of all layers
  // Divides `memory`, which has cache_bytes() bytes, into caches. Returns one view for each entry of
  // DecoderConfig::attention().
  std::vector<KvCache> caches(void* memory) const;
  // Collects the tensors that steps read. The addresses of weights and caches must not change afterwards.
  // kInvalidArgument names the first tensor that is missing or has another shape.
  Result<DecoderHeld> bind(const NamedWeights& weights, const std::vector<KvCache>& caches) const;

  // Enqueues one step, which writes the logits f32 [rows, vocab] of in.logit_rows. `held` is the result of
  // bind(). May be captured in a graph, except with offloaded experts. This function and the next two add the
  // kernels that they run to *runs, unless it is null.
  Status forward(const StepIn& in, const DecoderHeld& held, const Tensor& logits, Workspace workspace,
                 Stream stream, KernelRuns* runs = nullptr) const;
  // Enqueues the computation of logits for other tokens of the last step. logit_rows: i32[0 to
  // bounds.logit_rows()]; every_row: as in StepIn. Since forward(), only this function may have written to
  // the first workspace_bytes() of the workspace.
  Status logits_of(const Tensor& logit_rows, const DecoderHeld& held, const Tensor& logits,
                   Workspace workspace, Stream stream, bool every_row = false,
                   KernelRuns* runs = nullptr) const;
  // Greedy sampling without stored logits (ops/fused/linear_argmax.h): writes the token i32[rows] with the largest
  // logit of each row, and its logprob f32[rows]. Call it after a forward() with the same `in` except that
  // logit_rows was empty. `scratch` has greedy_workspace_bytes() and does not overlap the workspace.
  Status sample_greedy(const StepIn& in, const DecoderHeld& held, const Tensor& token, const Tensor& logprob,
                       Workspace scratch, Workspace workspace, Stream stream,
                       KernelRuns* runs = nullptr) const;
  size_t greedy_workspace_bytes() const;
  // Returns the distinct (stage, kernel) pairs of a decode step with `tokens` tokens and `rows` rows of
  // logits.
  std::vector<std::pair<std::string, std::string>> kernels(int64_t tokens, int64_t rows) const;
  const DecoderSteps& steps() const { return steps_; }
  // Estimated microseconds of a step with `tokens` tokens (1 to bounds.logit_rows()) and logits for every
  // token: the sum of its kernels' cost models. Excludes the cost of attending to earlier positions
  // and of offloaded experts. verifies: some sequence has more than one token.
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
  OwnedTensor zeros_;  // i32[bounds.tokens, 1], expert ids of dense layers
  OwnedTensor rows_;   // i32[bounds.tokens]: 0, 1, 2, ...; used to copy taps
  int64_t captured_layers_ = 0;
  size_t head_at_ = 0, workspace_bytes_ = 0;
};

}  // namespace sluice
