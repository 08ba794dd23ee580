// Runs the draft layer of an engine's model: after each step over that step's rows, then over the drafts one after the other.
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
  MoeSite experts = {};  // of a layer with experts
};

class DraftRunner {
 public:
  // For steps within `bounds`. `group`: of the layers whose pages hold the head's keys and values (CacheLayout).
  static Result<std::unique_ptr<DraftRunner>> plan(Device& device, const DraftHead& head,
                                                   const StepBounds& bounds, size_t group,
                                                   const Policy& policy);
  ~DraftRunner();
  DraftRunner(const DraftRunner&) = delete;
  DraftRunner& operator=(const DraftRunner&) = delete;

  size_t workspace_bytes() const { return head_->workspace_bytes(); }
  int64_t bytes() const {
    return static_cast<int64_t>(device_bytes_);
  }  // besides weights, cache and workspace
  // Allocates bytes(). `cache`: of the head's layer.
  Status take_memory(const KvCache& cache);
  // Where a step of `tokens` tokens leaves the model's features (StepIn::taps); the address is the same for all steps.
  Tensor taps(int64_t tokens) const;
  size_t group() const { return group_; }
  // Microseconds of one draft for each of `rows` sequences. first: behind rows whose features are known.
  double cost_us(int64_t rows, bool first) const { return head_->cost_us(rows, first); }
  // Of the rows of a step, whether or not anything is drafted behind them.
  double extend_cost_us(int64_t tokens, bool verifies) const {
    return head_->extend_cost_us(tokens, verifies);
  }

  // Continues from a step that the scheduler has accepted and whose `tables` are still in device memory: computes the keys and values of
  // all its rows, then replaces the drafts of its sequences (Sequence::drafts_now), whose number and pages the scheduler has chosen.
  // Waits for these drafts. An error leaves no drafts.
  Status run(const std::vector<Chunk>& chunks, const StepTables& tables, Workspace workspace,
             KernelRuns* runs);
  // DraftCounts::not_finite.
  int64_t not_finite() const { return not_finite_; }

 private:
  struct Drafting {
    Sequence* sequence;
    int32_t row;  // of the token before its last one, among the rows of the step
  };
  // Offsets in the block that the host writes.
  struct Pass {
    size_t positions, slot_of, kv_len, q_begin;
    int64_t rows;
  };
  struct Layout {
    size_t token_ids, rows, page_table, end;
    std::vector<Pass> passes;  // behind the first draft
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
            *host_ = nullptr;  // on the device behind what the host writes: the values below
  int32_t* host_drafts_ = nullptr;
  size_t drafted_at_ = 0, taps_at_ = 0, stream_at_ = 0, hidden_at_ = 0, rope_at_ = 0;
};

}  // namespace sluice
