// A decoder-only language model of attention and MoE layers, from token ids to logits.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/attention.h"
#include "nn/cache_layout.h"
#include "nn/moe_apart.h"
#include "ops/linear_argmax.h"

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

// The MoE layer as a step runs it: with the norms before and after it.
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

// Every stage of one step, layer by layer ("layer 3 experts.up"): tokens rows through the layers, `rows` of them to logits, and
// the experts as `path` says.
std::vector<StageProblem> decoder_problems(const DecoderConfig& config, const StepBounds& bounds,
                                           int64_t tokens, int64_t rows, MoePath path);

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
  const Moe& moe() const { return apart_ ? apart_->moe() : *moe_; }

  // Enqueues one step: logits f32 [rows, vocab] of logit_rows. Recordable, but not with experts apart.
  Status forward(const StepIn& in, const DecoderWeights& weights, const std::vector<KvCache>& caches,
                 const Tensor& logits, Workspace workspace, Stream stream) const;
  // The same of other tokens of the step that forward() enqueued last, logit_rows i32[0 to bounds.sequences]. Only this, and what
  // stays behind the first workspace_bytes(), has written to the workspace since. every_row: as in StepIn.
  Status logits_of(const Tensor& logit_rows, const DecoderWeights& weights, const Tensor& logits,
                   Workspace workspace, Stream stream, bool every_row = false) const;
  // In place of the logits of a step: forward() had `in` without logit_rows, and token i32[rows] and logprob f32[rows] are those of
  // the largest logits, which nobody sees (ops/linear_argmax.h). `scratch`: greedy_workspace_bytes(), beside the workspace.
  Status draw_greedy(const StepIn& in, const DecoderWeights& weights, const Tensor& token,
                     const Tensor& logprob, Workspace scratch, Workspace workspace, Stream stream) const;
  size_t greedy_workspace_bytes() const { return greedy_->workspace_bytes(); }
  // (stage, kernel) of one layer, then of what stands around the layers, for `tokens` tokens and `rows` rows of logits.
  std::vector<std::pair<std::string, std::string>> kernels(int64_t tokens, int64_t rows) const;
  // What forward() of `in` runs, in all layers.
  void count_kernels(const StepIn& in, KernelRuns* runs) const;
  // Likewise, of logits_of() and of draw_greedy().
  void count_logits_kernels(int64_t rows, KernelRuns* runs, bool every_row = false) const;
  void count_greedy_kernels(const StepIn& in, KernelRuns* runs) const;

 private:
  Decoder(Device& device, DecoderConfig config, const StepBounds& bounds, Policy policy)
      : device_(device),
        config_(std::move(config)),
        bounds_(bounds),
        policy_(std::move(policy)),
        layout_(sluice::cache_layout(config_.attention, config_.kind, bounds.page_size)) {}
  Status plan_attention();
  Status plan_moe(const MoeSite& experts);
  void lay_out();
  Result<Tensor> wanted_rows(const Tensor& logit_rows, bool every_row, Workspace workspace,
                             Stream stream) const;
  Status check_workspace(Workspace workspace) const;

  Device& device_;
  DecoderConfig config_;
  StepBounds bounds_;
  Policy policy_;
  CacheLayout layout_;
  std::optional<PlanTable<Embedding>> embed_, gather_;
  std::optional<PlanTable<RmsNorm>> norm_;
  std::optional<PlanTable<Linear>> lm_head_;
  std::optional<PlanTable<LinearArgmax>> greedy_;
  std::vector<std::unique_ptr<AttentionBlock>> attention_;
  std::unique_ptr<Moe> moe_;         // or
  std::unique_ptr<MoeApart> apart_;  // on another device
  // Offsets of the intermediates in the workspace.
  size_t stream_at_ = 0, normed_at_ = 0, rows_at_ = 0, scratch_at_ = 0, workspace_bytes_ = 0;
};

}  // namespace sluice
