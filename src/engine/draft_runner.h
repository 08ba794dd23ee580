// Runs the draft layer of an engine's model after each step: on the rows of the step, then on one draft
// position after another.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "engine/scheduler.h"
#include "nn/draft_layer.h"

namespace sluice {

// A draft layer in device memory; the weights must outlive the engine.
struct DraftHead {
  DraftLayerConfig config;
  const NamedWeights* weights = nullptr;
  MoeSite experts = {};  // where the experts of an MoE draft layer run
};

class DraftRunner {
 public:
  // `bounds`: of the engine's steps. `group`: the group of layers (CacheLayout) whose pages hold the draft
  // layer's keys and values.
  static Result<std::unique_ptr<DraftRunner>> plan(Device& device, const DraftHead& head,
                                                   const StepBounds& bounds, size_t group,
                                                   const Policy& policy);
  ~DraftRunner();
  DraftRunner(const DraftRunner&) = delete;
  DraftRunner& operator=(const DraftRunner&) = delete;

  size_t workspace_bytes() const { return head_->workspace_bytes(); }
  int64_t bytes() const {
    return static_cast<int64_t>(device_bytes_);
  }  // device memory besides weights, cache and workspace
  // Allocates bytes() of device memory. `cache`: the keys and values of the draft layer.
  Status take_memory(const KvCache& cache);
  // The tensor to which a step of `tokens` tokens writes its hidden states (StepIn::taps); all steps use the
  // same address.
  Tensor taps(int64_t tokens) const;
  size_t group() const { return group_; }
  // Estimated microseconds of one draft for each of `rows` sequences. first: the first draft position, which
  // follows extend().
  double cost_us(int64_t rows, bool first) const { return head_->cost_us(rows, first); }
  // Estimated microseconds of running the draft layer on all rows of a step, which is necessary even if no
  // token is drafted. verifies: some sequence has more than one token.
  double extend_cost_us(int64_t tokens, bool verifies) const {
    return head_->extend_cost_us(tokens, verifies);
  }

  // Call it after the scheduler has accepted a step; the step's `tables` must still be in device memory.
  // Computes the draft layer's keys and values for all rows of the step. Then computes the drafts of its
  // sequences and waits for them; the scheduler has already chosen their number and allocated their pages
  // (Sequence::drafts_now). After an error, the sequences have no drafts.
  Status run(const std::vector<Chunk>& chunks, const StepTables& tables, Workspace workspace,
             KernelRuns* runs);
  int64_t not_finite() const { return not_finite_; }

 private:
  struct Drafting {
    Sequence* sequence;
    int32_t row;  // the step's row of the sequence's last token but one
  };
  // The tables of one pass over drafts, as byte offsets in the block that the host writes.
  struct Pass {
    size_t positions, slot_of, kv_len, q_begin;
    int64_t rows;
  };
  struct Layout {
    size_t token_ids, rows, page_table, end;
    std::vector<Pass> passes;  // one per draft position after the first
  };
  DraftRunner(Device& device, const DraftHead& source, const StepBounds& bounds, size_t group)
      : device_(device), weights_(*source.weights), bounds_(bounds), group_(group) {}
  static std::vector<Drafting> drafting(const std::vector<Chunk>& chunks);
  Layout layout(int64_t tokens, std::span<const int64_t> rows) const;
  void write(const Layout& at, const std::vector<Chunk>& chunks, std::span<const Drafting> drafting);
  Status enqueue(const Layout& at, int64_t tokens, std::span<const int64_t> rows, const StepTables& tables,
                 Workspace workspace, KernelRuns* runs);
  Tensor view(size_t at, DType dtype, std::initializer_list<int64_t> shape) const;
  int64_t pitch() const;
  DraftLayerOut drafted(int64_t place, int64_t rows) const;

  Device& device_;
  const NamedWeights& weights_;
  StepBounds bounds_;
  size_t group_;
  int64_t not_finite_ = 0;
  std::unique_ptr<DraftLayer> head_;
  DraftLayerHeld held_;
  size_t device_bytes_ = 0, written_bytes_ = 0;
  std::byte *block_ = nullptr,
            *host_ = nullptr;  // page-locked; uploaded to the first written_bytes_ of block_
  int32_t* host_drafts_ = nullptr;
  size_t drafted_at_ = 0, taps_at_ = 0, stream_at_ = 0, hidden_at_ = 0, rope_at_ = 0;
};

}  // namespace sluice
