// How many tokens each expert of each layer got, counted on the device, and the counts' way to the host behind a step.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "dispatch/plan.h"
#include "engine/upload_block.h"
#include "nn/moe/layer.h"

namespace sluice {

struct ExpertCounts {
  std::vector<int32_t> layers = {};  // those with experts, by their numbers in the model
  int64_t experts = 0;
  std::vector<int64_t> tokens = {};  // [layers, experts]
};

// The experts that the tokens of one step chose, in the layers that have experts.
struct ChosenExperts {
  int64_t layers = 0, tokens = 0, top_k = 0;
  std::vector<int32_t> ids = {};  // [layers, tokens, top_k]
  // How many different ones a layer's tokens chose.
  int64_t distinct(int64_t layer) const;
};

class ExpertCounter {
 public:
  // Of steps of at most `tokens` tokens. Takes memory on `device`, with counts of zero.
  static Result<std::unique_ptr<ExpertCounter>> make(Device& device, const MoeConfig& moe,
                                                     std::vector<int32_t> layers, int64_t tokens,
                                                     const Policy& policy);

  size_t workspace_bytes() const { return plans_->workspace_bytes(); }
  // Where the layers of a step put the experts that its tokens choose (StepIn::captured); at one place for all steps.
  Tensor captured(int64_t tokens) const;
  // What a step of so many tokens left there, once all that is enqueued is done.
  Result<ChosenExperts> chosen(int64_t tokens) const;
  // Counts them. Recordable.
  Status count(int64_t tokens, Workspace workspace, Stream stream, KernelRuns* runs) const;

  // The next fetch() shall bring the counts, once those that are under way have come.
  void ask() { asked_ = true; }
  // Behind all that step `step` has enqueued, in front of its mark. Enqueues nothing unless somebody has asked.
  Status fetch(int64_t step);
  // Step `step` is done: what it brought is read.
  void finish(int64_t step);
  // Steps under way count as never made, and nothing runs any more: the next one brings what they should have.
  void take_back();
  // Enqueues the copy and waits for all that the device has to do.
  Status read_now();
  // As read last.
  std::shared_ptr<const ExpertCounts> counts() const { return counts_; }

 private:
  ExpertCounter(Device& device, const CountExperts::Problem& most, std::vector<int32_t> layers);
  size_t count_bytes() const {
    return static_cast<size_t>(bytes_of(DType::kI64, most_.layers * most_.experts));
  }
  Status enqueue_copy() const;
  void read();

  Device& device_;
  CountExperts::Problem most_;   // of a step
  std::vector<int32_t> layers_;  // their numbers
  int64_t layer_stride_ = 0;     // ids from one layer's to the next one's
  std::optional<PlanTable<CountExperts>> plans_;
  UploadBlock memory_;  // counts on both sides; behind them, on the device, what the layers captured
  bool asked_ = false;
  std::optional<int64_t> under_way_;  // the step that brings the counts
  std::shared_ptr<const ExpertCounts> counts_;
};

}  // namespace sluice
