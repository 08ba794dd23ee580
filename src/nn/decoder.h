// A decoder-only language model of attention and MoE or dense layers, from token ids to logits.
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

namespace sluice {

// stream += attention(norm(stream)), then stream += mlp(norm(stream)).
struct LayerConfig {
  AttentionConfig attention;
  MoeConfig mlp;  // experts, or a dense MLP (MoeConfig::dense); adds the residual stream
};

struct DecoderConfig {
  int64_t vocab = 201088, hidden = 2880;
  double eps = 1e-5;       // of every norm around attention and experts
  DType x = DType::kBF16;  // activations and residual stream; logits are f32
  std::vector<LayerConfig> layers;
  RopeScaling rope;
  // The same with weights as a device wants them: dense ones in DeviceInfo::layout, experts by layout_for.
  DecoderConfig with_layouts_of(const DeviceInfo& device) const;
  // The same with activations of type `x`, and caches too where they are CacheType::kSame.
  DecoderConfig with_activations(DType x) const;
  // The same with the caches of all layers in that type.
  DecoderConfig with_caches(CacheType cache) const;
  // Layers that have experts, ascending: at least one. All have equally many, and tokens choose equally many of them.
  std::vector<int32_t> moe_layers() const;
  // Of the first of these layers.
  const MoeConfig& moe() const;
  std::vector<AttentionConfig> attention() const;  // of each layer
};

// A layer's MLP as a step runs it: with the norm before it.
MoeConfig mlp_with_norm(const DecoderConfig& config, int32_t layer);

// The weights of a decoder, by layer and name: "embedding" bf16 [vocab, hidden] and "final_norm" bf16 [hidden] around the layers; in each
// "attention.norm" and "mlp.norm" bf16 [hidden], those of append_attention(), and those of weight_slots(); "lm_head" bf16 [vocab,
// hidden] in the attention's layout. Caches are not among them.
std::vector<HeldSlot> decoder_weights(const DecoderConfig& config);

// What one step computes; device memory. rows = 0 to bounds.logit_rows(), logit_rows i32[rows]: the tokens of this step whose
// logits are wanted.
struct StepIn {
  Tensor token_ids;  // i32[tokens]
  // Of each group of layers (CacheLayout); they differ in slot_of and page_table.
  std::vector<StepTables> tables;
  Tensor logit_rows;
  bool every_row = false;  // logit_rows are all tokens, in order; nothing reads them then
  Tensor captured =
      {};  // i32[layers with experts, tokens, top_k], layers may lie apart; with mlp.capture: gets what each token chose
};
// Of one layer: [pages, kv_heads, page_size, head_dim]. Layers of different groups may have the same.
struct KvCache {
  Tensor k, v;
};

// What a decoder's steps hold: weights and caches as their graphs list them.
struct DecoderHeld {
  std::vector<Tensor> layers, head;
  // Experts apart: of each layer with experts, the norm before them, and the norm of what follows.
  struct Apart {
    MoeWeights weights;
    Tensor norm, next_norm;
  };
  std::vector<Apart> apart = {};
};

// What a Decoder runs: data alone, for a device that need not be here.
struct DecoderSteps {
  // Of any tokens, up to bounds.tokens; and of one token of each sequence, where that has steps of its own.
  std::optional<Step> any, decode;
  // From the last norm to logits, or to the token of the largest one: of rows by number, and of all tokens in order.
  std::optional<Step> logits, all_logits, greedy, all_greedy;
  const Step& layers(int64_t tokens, int64_t rows_max) const {
    return decode && rows_max == 1 && tokens <= decode->tokens_max() ? *decode : *any;
  }
};
// experts_apart: MoE layers run elsewhere, behind the cuts of the graph.
Result<DecoderSteps> plan_decoder(const DeviceInfo& device, const Catalog& catalog,
                                  const DecoderConfig& config, const StepBounds& bounds,
                                  const Policy& policy = {}, const MoeBackend& backend = {},
                                  bool experts_apart = false, Gaps gaps = Gaps::kRefused);

class Decoder {
 public:
  // MoE layers on a device of their own: the rest is on one that shares the host's memory.
  static Result<std::unique_ptr<Decoder>> plan(Device& device, const DecoderConfig& config,
                                               const StepBounds& bounds, const Policy& policy = {},
                                               const MoeSite& experts = {});
  const DecoderConfig& config() const { return config_; }
  const StepBounds& bounds() const { return bounds_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  // From now on for a cache of so many pages. Before the first step.
  Status set_pages(int64_t pages);
  const CacheLayout& cache_layout() const { return layout_; }
  int64_t cache_bytes() const;  // of all layers, keys and values
  // Views of `memory`, cache_bytes() long, one for each layer.
  std::vector<KvCache> caches(void* memory) const;
  // Made once for weights and caches, which stay where they are. kInvalidArgument names the first that is missing or has another shape.
  Result<DecoderHeld> bind(const NamedWeights& weights, const std::vector<KvCache>& caches) const;

  // Enqueues one step: logits f32 [rows, vocab] of logit_rows. `held` is what bind() gave. Recordable, but not with experts apart. These
  // three count what runs, if anybody counts.
  Status forward(const StepIn& in, const DecoderHeld& held, const Tensor& logits, Workspace workspace,
                 Stream stream, KernelRuns* runs = nullptr) const;
  // The same of other tokens of the step that forward() enqueued last, logit_rows i32[0 to bounds.logit_rows()]. Only this, and what
  // stays behind the first workspace_bytes(), has written to the workspace since. every_row: as in StepIn.
  Status logits_of(const Tensor& logit_rows, const DecoderHeld& held, const Tensor& logits,
                   Workspace workspace, Stream stream, bool every_row = false,
                   KernelRuns* runs = nullptr) const;
  // In place of the logits of a step: forward() had `in` without logit_rows, and token i32[rows] and logprob f32[rows] are those of
  // the largest logits, which nobody sees (ops/linear_argmax.h). `scratch`: greedy_workspace_bytes(), beside the workspace.
  Status draw_greedy(const StepIn& in, const DecoderHeld& held, const Tensor& token, const Tensor& logprob,
                     Workspace scratch, Workspace workspace, Stream stream, KernelRuns* runs = nullptr) const;
  size_t greedy_workspace_bytes() const;
  // (stage, kernel) of one layer of each kind, and of what stands around the layers, for `tokens` tokens that decode and `rows` rows of
  // logits.
  std::vector<std::pair<std::string, std::string>> kernels(int64_t tokens, int64_t rows) const;
  const DecoderSteps& steps() const { return steps_; }
  // Microseconds of a step by the cost models of its kernels, without its attention's context: `tokens` tokens, 1 to
  // bounds.logit_rows(), and logits of all of them. verifies: more than one token of some sequence. Experts apart are not among them.
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
  Status plan_apart();
  Status run_apart(const Step& step, const StepIn& in, const Given& given, const DecoderHeld& held,
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
  std::unique_ptr<MoeApart> apart_;  // with experts on another device
  ValueId apart_stream_ = kNoValue, apart_normed_ = kNoValue;
  OwnedTensor zeros_;  // i32[bounds.tokens, 1], for products of all tokens
  int64_t captured_layers_ = 0;
  size_t head_at_ = 0, workspace_bytes_ = 0;
};

}  // namespace sluice
