// Penalties and biases of one step: lists of tokens on the way to the device, and the two launches around the draw.
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

class LogitAdjustments {
 public:
  static Result<std::unique_ptr<LogitAdjustments>> make(Device& device, const StepBounds& bounds,
                                                        int64_t vocab, const Policy& policy);

  size_t workspace_bytes() const;
  // Lists the tokens of the rows that `chunks` draw and enqueues their copy. The step before must be done: this writes what it reads,
  // and takes more memory where a list has outgrown it. kOutOfMemory says how much.
  Status fill(const std::vector<Chunk>& chunks);
  // Around the draw of the step that was filled last; `logits` f32 [bounds.logit_rows(), vocab].
  Status apply(const Tensor& logits, Workspace workspace, Stream stream, KernelRuns* runs) const;
  Status restore(const Tensor& logits, Workspace workspace, Stream stream, KernelRuns* runs) const;

 private:
  // Where things lie in the block; raw is the device's alone.
  struct Layout {
    size_t repetition, frequency, presence, row, id, count, logit_bias, in_prompt, raw, end;
  };
  LogitAdjustments(Device& device, const StepBounds& bounds)
      : bounds_(bounds), memory_(device, "penalties and biases") {}
  Layout layout(int64_t entries) const;
  Status reserve(size_t bytes);
  void write(const Layout& at, const std::vector<Chunk>& chunks) const;
  Status run(const PlanTable<AdjustLogits>& plans, const Tensor& logits, Workspace workspace, Stream stream,
             KernelRuns* runs) const;

  StepBounds bounds_;
  std::optional<PlanTable<AdjustLogits>> apply_, restore_;
  UploadBlock memory_;
  size_t bytes_ = 0;  // of each
  int64_t entries_ = 0;
};

}  // namespace sluice
