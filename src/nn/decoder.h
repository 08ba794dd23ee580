// A decoder-only language model of attention and MoE layers, from token ids to logits.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nn/attention.h"
#include "nn/cache_layout.h"
#include "nn/moe_apart.h"

namespace sluice {

struct DecoderConfig {
  int64_t vocab = 201088, hidden = 2880;
  double eps = 1e-5;                       // of every norm
  DType x = DType::kBF16;                  // activations and residual stream; logits are f32
  std::vector<AttentionConfig> attention;  // the kinds of attention there are
  std::vector<int32_t> kind;               // of each layer: index into `attention`
  MoeConfig moe;                           // of every layer; adds the residual stream
  RopeScaling rope;
  // The same with weights as a device wants them: dense ones in DeviceInfo::layout, experts by layout_for.
  DecoderConfig with_layouts_of(const DeviceInfo& device) const;
  // The same with activations of type `x`, and caches too where they are CacheType::kSame.
  DecoderConfig with_activations(DType x) const;
  // The same with the caches of all layers in that type.
  DecoderConfig with_caches(CacheType cache) const;
  int64_t layers() const { return static_cast<int64_t>(kind.size()); }
};

// The MoE layer as a step runs it: with the norm before it.
MoeConfig layer_moe(const DecoderConfig& config);

struct DecoderLayerWeights {
  Tensor attention_norm, moe_norm;  // bf16 [hidden]
  AttentionWeights attention;
  MoeWeights moe;
};
struct DecoderWeights {
  Tensor embedding;   // bf16 [vocab, hidden], row-major
  Tensor final_norm;  // bf16 [hidden]
  Tensor lm_head;     // bf16 [vocab, hidden] in the attention's layout
  std::vector<DecoderLayerWeights> layers;
};

// What one step computes; device memory. rows = 0 to bounds.sequences, logit_rows i32[rows]: the tokens of this step whose
// logits are wanted.
struct StepIn {
  Tensor token_ids;  // i32[tokens]
  // Of each group of layers (CacheLayout); they differ in slot_of and page_table.
  std::vector<StepTables> tables;
  Tensor logit_rows;
  bool every_row = false;  // logit_rows are all tokens, in order; nothing reads them then
  Tensor captured =
      {};  // i32[layers, tokens, top_k], layers may lie apart; with moe.capture: gets what each token chose
};
// Of one layer: [pages, kv_heads, page_size, head_dim]. Layers of different groups may have the same.
struct KvCache {
  Tensor k, v;
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
  // Weights and caches in the order in which steps read them; made once. kInvalidArgument: of another number of layers.
  Result<std::vector<Tensor>> bind(const DecoderWeights& weights, const std::vector<KvCache>& caches) const;

  // Enqueues one step: logits f32 [rows, vocab] of logit_rows. `held` is what bind() gave. Recordable, but not with experts apart. These
  // three count what runs, if anybody counts.
  Status forward(const StepIn& in, std::span<const Tensor> held, const Tensor& logits, Workspace workspace,
                 Stream stream, KernelRuns* runs = nullptr) const;
  // The same of other tokens of the step that forward() enqueued last, logit_rows i32[0 to bounds.sequences]. Only this, and what
  // stays behind the first workspace_bytes(), has written to the workspace since. every_row: as in StepIn.
  Status logits_of(const Tensor& logit_rows, std::span<const Tensor> held, const Tensor& logits,
                   Workspace workspace, Stream stream, bool every_row = false,
                   KernelRuns* runs = nullptr) const;
  // In place of the logits of a step: forward() had `in` without logit_rows, and token i32[rows] and logprob f32[rows] are those of
  // the largest logits, which nobody sees (ops/linear_argmax.h). `scratch`: greedy_workspace_bytes(), beside the workspace.
  Status draw_greedy(const StepIn& in, std::span<const Tensor> held, const Tensor& token,
                     const Tensor& logprob, Workspace scratch, Workspace workspace, Stream stream,
                     KernelRuns* runs = nullptr) const;
  size_t greedy_workspace_bytes() const;
  // (stage, kernel) of one layer of each kind, and of what stands around the layers, for `tokens` tokens that decode and `rows` rows of
  // logits.
  std::vector<std::pair<std::string, std::string>> kernels(int64_t tokens, int64_t rows) const;
  const DecoderSteps& steps() const { return steps_; }

 private:
  Decoder(Device& device, DecoderConfig config, const StepBounds& bounds, Policy policy, MoeSite experts)
      : device_(device),
        config_(std::move(config)),
        bounds_(bounds),
        policy_(std::move(policy)),
        experts_(std::move(experts)),
        layout_(sluice::cache_layout(config_.attention, config_.kind, bounds.page_size)) {}
  Status plan_steps();
  Status plan_apart();
  Status run_apart(const Step& step, const StepIn& in, const Given& given, std::span<const Tensor> held,
                   Workspace workspace, Stream stream, KernelRuns* runs) const;
  Tensor last_normed(Workspace workspace, int64_t rows) const;
  Status check_call(const StepIn& in, std::span<const Tensor> held, Workspace workspace) const;

  Device& device_;
  DecoderConfig config_;
  StepBounds bounds_;
  Policy policy_;
  MoeSite experts_;
  CacheLayout layout_;
  DecoderSteps steps_;
  std::unique_ptr<MoeApart> apart_;  // with experts on another device
  ValueId apart_stream_ = kNoValue, apart_normed_ = kNoValue;
  OwnedTensor zeros_;  // i32[bounds.tokens, 1], where dense layers are experts
  size_t head_at_ = 0, workspace_bytes_ = 0;
};

}  // namespace sluice
