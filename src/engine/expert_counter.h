// Counts on the device how many tokens each expert of each layer gets, and copies the counts to the host after a step.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "dispatch/plan.h"
#include "engine/upload_block.h"
#include "nn/moe/layer.h"

namespace sluice {

struct ExpertCounts {
  std::vector<int32_t> layers = {};  // layers with experts, by their numbers in the model
  int64_t experts = 0;
  std::vector<int64_t> tokens = {};  // [layers, experts]
};

// The experts that the tokens of one step chose, in the layers that have experts.
struct ChosenExperts {
  int64_t layers = 0, tokens = 0, top_k = 0;
  std::vector<int32_t> ids = {};  // [layers, tokens, top_k]
  // Number of different experts that the tokens of a layer chose.
  int64_t distinct(int64_t layer) const;
};

class ExpertCounter {
 public:
  // For steps of at most `tokens` tokens. Allocates memory on `device`; all counts begin at zero.
  static Result<std::unique_ptr<ExpertCounter>> make(Device& device, const MoeConfig& moe,
                                                     std::vector<int32_t> layers, int64_t tokens,
                                                     const Policy& policy);

  size_t workspace_bytes() const { return plans_->workspace_bytes(); }
  // Where the layers of a step write the experts that its tokens choose (StepIn::captured); the address is the same for all steps.
  Tensor captured(int64_t tokens) const;
  // Returns what a step of `tokens` tokens left there. Waits for all enqueued work.
  Result<ChosenExperts> chosen(int64_t tokens) const;
  // Enqueues the counting of a step. May be captured.
  Status count(int64_t tokens, Workspace workspace, Stream stream, KernelRuns* runs) const;

  // The next fetch() copies the counts, once any copy under way has finished.
  void ask() { asked_ = true; }
  // Call it after all other work of step `step` is enqueued, before the step's mark. Enqueues nothing unless ask() was called.
  Status fetch(int64_t step);
  // Call it when step `step` has finished; reads the counts that it copied.
  void finish(int64_t step);
  // Discards the steps under way; call it when the device is idle. The next fetch() copies the counts in their place.
  void take_back();
  // Enqueues the copy and waits for the whole stream.
  Status read_now();
  // The counts read last.
  std::shared_ptr<const ExpertCounts> counts() const { return counts_; }

 private:
  ExpertCounter(Device& device, const CountExperts::Problem& most, std::vector<int32_t> layers);
  size_t count_bytes() const {
    return static_cast<size_t>(bytes_of(DType::kI64, most_.layers * most_.experts));
  }
  Status enqueue_copy() const;
  void read();

  Device& device_;
  CountExperts::Problem most_;   // of one step
  std::vector<int32_t> layers_;  // numbers of the layers in the model
  int64_t layer_stride_ = 0;     // distance between the ids of two layers
  std::optional<PlanTable<CountExperts>> plans_;
  UploadBlock memory_;  // counts on both sides; on the device the captured ids follow them
  bool asked_ = false;
  std::optional<int64_t> under_way_;  // the step that copies the counts
  std::shared_ptr<const ExpertCounts> counts_;
};

}  // namespace sluice
