// The attention of a decoder layer: projection, rotary embedding, paged cache, attention, projection back, each a plan made once.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/any_op.h"
#include "dispatch/plan.h"
#include "nn/kernel_runs.h"

namespace sluice {

struct AttentionConfig {
  int64_t hidden = 2880, heads = 64, kv_heads = 8, head_dim = 64;
  DType x = DType::kBF16;              // activations; weights, biases and sinks are bf16
  CacheType cache = CacheType::kSame;  // keys and values; kSame: as activations
  WeightLayout layout = WeightLayout::kPanels16;
  bool qkv_bias = false, o_bias = false, sinks = false;
  int64_t window = 0;  // positions that a query sees; 0: all
  double scale = 0.125;
  int64_t rotary = 64;  // leading elements of a head that turn
  RopePairs pairs = RopePairs::kHalves;
  DType cache_type() const { return cache_dtype(cache, x); }
};

// What a step may hold at most; sizes launches, caches and page tables.
struct StepBounds {
  int64_t tokens = 512;      // of all sequences together
  int64_t sequences = 8;     // rows of the page table
  int64_t positions = 4096;  // of one sequence: rows of the rotary table
  int64_t page_size = 16;    // tokens of a page
  int64_t pages = 2048;      // of the cache, for all sequences together
  int64_t pages_per_seq() const { return (positions + page_size - 1) / page_size; }
};

struct AttentionWeights {
  Tensor qkv;       // bf16 [(heads + 2 kv_heads) * head_dim, hidden], queries, keys, values; in config.layout
  Tensor qkv_bias;  // bf16 [(heads + 2 kv_heads) * head_dim]
  Tensor o;         // bf16 [hidden, heads * head_dim], in config.layout
  Tensor o_bias;    // bf16 [hidden]
  Tensor sinks;     // bf16 [heads]
};

// What a step's sequences are; one for all layers. Shapes and meaning: ops/attention.h, ops/kv_write.h, ops/rope.h.
// They come with a copy before the step's launches, and of the caches the step writes its own positions alone ("settled" there).
struct StepTables {
  Tensor positions, slot_of;           // i32[tokens]
  Tensor q_begin, kv_len, page_table;  // i32[sequences + 1], i32[sequences], i32[sequences, pages_per_seq]
  Tensor rope;                         // f32[positions, rotary / 2, 2]
  int64_t rows_max = 0;  // rows of one sequence at most; 0: unknown. 1 where every sequence decodes
};

struct AttentionIo {
  Tensor x;                 // [tokens, hidden]
  Tensor k_cache, v_cache;  // [pages, kv_heads, page_size, head_dim]
  Tensor y;                 // [tokens, hidden]: the residual stream; the block adds to it
};

// The problems of the block's stages for `tokens` tokens, in the order in which they run: of a step that decodes, where there
// are no more tokens than sequences.
std::vector<StageProblem> attention_problems(const AttentionConfig& config, const StepBounds& bounds,
                                             int64_t tokens);

class AttentionBlock {
 public:
  static Result<std::unique_ptr<AttentionBlock>> plan(Device& device, const AttentionConfig& config,
                                                      const StepBounds& bounds, const Policy& policy = {});
  const AttentionConfig& config() const { return config_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  // Enqueues y += attention(x). Recordable: no allocation, no synchronisation.
  Status forward(const AttentionIo& io, const AttentionWeights& weights, const StepTables& tables,
                 Workspace workspace, Stream stream) const;
  // (stage, kernel) in the order in which they run for `tokens` tokens; problems as attention_problems() has them.
  std::vector<std::pair<std::string, std::string>> kernels(int64_t tokens) const;
  // What `blocks` calls of forward() run for `tokens` tokens, at most `rows_max` of one sequence (StepTables).
  void count_kernels(int64_t tokens, int64_t rows_max, int64_t blocks, KernelRuns* runs) const;

 private:
  const PlanTable<Attention>& attention_for(int64_t tokens, int64_t rows_max) const;
  AttentionBlock(const AttentionConfig& config, const StepBounds& bounds)
      : config_(config), bounds_(bounds) {}

  AttentionConfig config_;
  StepBounds bounds_;
  std::optional<PlanTable<QkvRopeKvWrite>> qkv_;
  std::optional<PlanTable<Linear>> o_;
  // decode_: every sequence owns one row at most. Not under Policy::batch_invariant, where one kernel serves all steps.
  std::optional<PlanTable<Attention>> attention_, decode_;
  // Offsets of the intermediates in the workspace.
  size_t qkv_at_ = 0, heads_at_ = 0, scratch_at_ = 0, workspace_bytes_ = 0;
};

}  // namespace sluice
