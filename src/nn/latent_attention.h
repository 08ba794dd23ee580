// The attention of a DeepSeek V3 layer: low-rank queries, one latent for keys and values, rotary embedding, paged cache, latent
// attention, projection back, each a plan made once.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nn/attention.h"

namespace sluice {

struct LatentAttentionConfig {
  int64_t hidden = 7168, heads = 128;
  int64_t q_rank = 1536, rank = 512;           // of queries, of the latent
  int64_t nope = 128, rope = 64, v_dim = 128;  // elements of a head: without and with the position, of values
  double eps = 1e-6;                           // of the norms of both latents
  DType x = DType::kBF16;                      // activations and cache; weights are bf16
  WeightLayout layout = WeightLayout::kPanels16;
  double scale = 0.0721687836487032;  // of the scores: (nope + rope)^-0.5, times what YaRN asks for
};

struct LatentAttentionWeights {
  Tensor q_a;      // bf16 [q_rank, hidden], in config.layout
  Tensor q_norm;   // bf16 [q_rank]
  Tensor q_b;      // bf16 [heads * (nope + rope), q_rank], in config.layout
  Tensor kv_a;     // bf16 [rank + rope, hidden], in config.layout
  Tensor kv_norm;  // bf16 [rank]
  Tensor kv_b;     // bf16 [heads, nope + v_dim, rank], row-major
  Tensor o;        // bf16 [hidden, heads * v_dim], in config.layout
};

struct LatentAttentionIo {
  Tensor x;      // [tokens, hidden]
  Tensor cache;  // [pages, 1, page_size, rank + rope]
  Tensor y;      // [tokens, hidden]: the residual stream; the block adds to it
};

// The problems of the block's stages for `tokens` tokens, in the order in which they run.
std::vector<StageProblem> latent_attention_problems(const LatentAttentionConfig& config,
                                                    const StepBounds& bounds, int64_t tokens);

class LatentAttentionBlock {
 public:
  static Result<std::unique_ptr<LatentAttentionBlock>> plan(Device& device,
                                                            const LatentAttentionConfig& config,
                                                            const StepBounds& bounds,
                                                            const Policy& policy = {});
  const LatentAttentionConfig& config() const { return config_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  // Bytes of one layer's cache.
  int64_t cache_bytes() const;
  // Enqueues y += attention(x); tables.rope is [positions, rope / 2, 2]. Recordable: no allocation, no synchronisation.
  Status forward(const LatentAttentionIo& io, const LatentAttentionWeights& weights, const StepTables& tables,
                 Workspace workspace, Stream stream) const;
  // (stage, kernel) in the order in which they run for `tokens` tokens.
  std::vector<std::pair<std::string, std::string>> kernels(int64_t tokens) const;

 private:
  LatentAttentionBlock(const LatentAttentionConfig& config, const StepBounds& bounds)
      : config_(config), bounds_(bounds) {}
  void lay_out();

  LatentAttentionConfig config_;
  StepBounds bounds_;
  std::optional<PlanTable<Linear>> q_a_, q_b_, kv_a_, o_;
  std::optional<PlanTable<RmsNorm>> q_norm_, kv_norm_;
  std::optional<PlanTable<Rope>> q_rope_, k_rope_;
  std::optional<PlanTable<KvWrite>> kv_write_;
  std::optional<PlanTable<LatentAttention>> attention_;
  // Offsets of the intermediates in the workspace.
  size_t q_latent_at_ = 0, q_at_ = 0, latent_at_ = 0, heads_at_ = 0, scratch_at_ = 0, workspace_bytes_ = 0;
};

}  // namespace sluice
