// The tokens that filters leave in one step: bits on the way to the device, and the two launches around the draw.
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
  // Enqueues the copy of the bits of the rows that `chunks` draw, whose masks are made. The step before must be done: this writes
  // what it reads, and takes more memory for more masks than ever, of which each keeps a row of logits. kOutOfMemory says how much.
  Status fill(const std::vector<Chunk>& chunks);
  // Around the draw of the step that was filled last; `logits` f32 [bounds.logit_rows(), vocab].
  Status apply(const Tensor& logits, Workspace workspace, Stream stream, KernelRuns* runs) const;
  Status restore(const Tensor& logits, Workspace workspace, Stream stream, KernelRuns* runs) const;

 private:
  // Where things lie in the block; raw is the device's alone.
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
  int64_t masks_max_ = 0, masks_ = 0;  // that fit; of the last step
};

}  // namespace sluice
