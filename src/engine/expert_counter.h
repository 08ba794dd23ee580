// Counts the tokens per expert and MoE layer on the device, and copies the counts to the host on request,
// after a step.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "dispatch/plan.h"
#include "engine/upload_block.h"
#include "nn/moe/layer.h"

namespace sluice {

struct ExpertCounts {
  std::vector<int32_t> layers = {};  // the MoE layers, as layer numbers of the model
  int64_t experts = 0;
  std::vector<int64_t> tokens = {};  // [layers, experts]
};

// The experts that the tokens of one step chose in each MoE layer.
struct ChosenExperts {
  int64_t layers = 0, tokens = 0, top_k = 0;
  std::vector<int32_t> ids = {};  // [layers, tokens, top_k]
  // Number of different experts that the tokens chose in a layer.
  int64_t distinct(int64_t layer) const;
};

class ExpertCounter {
 public:
  // `tokens`: upper bound of the tokens of a step. Allocates memory on `device`; all counts begin at zero.
  static Result<std::unique_ptr<ExpertCounter>> make(Device& device, const MoeConfig& moe,
                                                     std::vector<int32_t> layers, int64_t tokens,
                                                     const Policy& policy);

  size_t workspace_bytes() const { return plans_->workspace_bytes(); }
  // The tensor to which a step writes the experts that its tokens choose (StepIn::captured); all steps use
  // the same address.
  Tensor captured(int64_t tokens) const;
  // Waits for all enqueued work, and returns the experts that the last step wrote to captured(). `tokens`: that step's number of tokens.
  Result<ChosenExperts> chosen(int64_t tokens) const;
  // Enqueues the kernel that counts a step's tokens. May be captured in a graph.
  Status count(int64_t tokens, Workspace workspace, Stream stream, KernelRuns* runs) const;

  // Requests a copy: the next fetch() enqueues it, unless an earlier copy is still in flight.
  void request_copy() { copy_requested_ = true; }
  // Enqueues the copy if request_copy() requested one. Call it after all other work of step `step` is enqueued, before
  // the step's mark.
  Status fetch(int64_t step);
  // Call it when step `step` has finished. Reads the counts if that step copied them.
  void finish(int64_t step);
  // Call it when the steps in flight are discarded and the device is idle. If one of them was to copy the
  // counts, the next fetch() copies them instead.
  void take_back();
  // Enqueues a copy, waits for the whole stream and reads the counts.
  Status read_now();
  // The counts of the last read.
  std::shared_ptr<const ExpertCounts> counts() const { return counts_; }

 private:
  ExpertCounter(Device& device, const CountExperts::Problem& largest, std::vector<int32_t> layers);
  size_t count_bytes() const {
    return static_cast<size_t>(bytes_of(DType::kI64, largest_.layers * largest_.experts));
  }
  Status enqueue_copy() const;
  void read();

  Device& device_;
  CountExperts::Problem largest_;  // of the largest step
  std::vector<int32_t> layers_;    // layer numbers of the MoE layers
  int64_t layer_stride_ = 0;       // elements from one layer's ids to the next layer's
  std::optional<PlanTable<CountExperts>> plans_;
  UploadBlock memory_;  // counts on host and device; on the device, captured ids follow
  bool copy_requested_ = false;
  std::optional<int64_t> under_way_;  // the step in flight that copies the counts
  std::shared_ptr<const ExpertCounts> counts_;
};

}  // namespace sluice
