// The filters' masks of one step: copies the bits of allowed tokens to the device, and launches the
// operations that mask the logits before sampling and restore them afterwards.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "dispatch/plan.h"
#include "engine/scheduler.h"
#include "engine/upload_block.h"
#include "graph/kernel_runs.h"
#include "nn/attention.h"

namespace sluice {

class LogitMasks {
 public:
  static Result<std::unique_ptr<LogitMasks>> make(Device& device, const StepBounds& bounds, int64_t vocab,
                                                  const Policy& policy);

  size_t workspace_bytes() const;
  // Enqueues the copy of the masks of the rows that `chunks` sample; the masks must be finished. The previous
  // step must have finished, because this call overwrites the memory that the previous step reads. If the
  // masks do not fit, reallocates the memory, which includes a row of logits per mask. kOutOfMemory gives the
  // bytes needed.
  Status fill(const std::vector<Chunk>& chunks);
  // Call apply() before sampling and restore() after it, in the step for which fill() was last called.
  // `logits`: f32 [bounds.logit_rows(), vocab].
  Status apply(const Tensor& logits, Workspace workspace, Stream stream, KernelRuns* runs) const;
  Status restore(const Tensor& logits, Workspace workspace, Stream stream, KernelRuns* runs) const;

 private:
  // Byte offsets in the block. `raw` exists only on the device.
  struct Layout {
    size_t row, allowed, raw, end;
  };
  LogitMasks(Device& device, const StepBounds& bounds, int64_t vocab)
      : bounds_(bounds), vocab_(vocab), memory_(device, "structured output") {}
  int64_t words() const { return (vocab_ + 31) / 32; }
  Layout layout(int64_t masks) const;
  Status reserve(int64_t masks);
  Status run(const PlanTable<MaskLogits>& plans, const Tensor& logits, Workspace workspace, Stream stream,
             KernelRuns* runs) const;

  StepBounds bounds_;
  int64_t vocab_;
  std::optional<PlanTable<MaskLogits>> apply_, restore_;
  UploadBlock memory_;
  int64_t masks_max_ = 0, masks_ = 0;  // masks that fit into the block; masks of the last step
};

}  // namespace sluice
