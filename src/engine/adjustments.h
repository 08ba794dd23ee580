// Penalties and biases of one step: copies the token lists to the device, and launches the operations that
// adjust the logits before sampling and restore them afterwards.
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
  // Lists the adjusted tokens of the rows that `chunks` sample, and enqueues the copy to the device. The
  // previous step must have finished, because this call overwrites the memory that the previous step reads,
  // or reallocates it if the lists do not fit. kOutOfMemory gives the bytes needed.
  Status fill(const std::vector<Chunk>& chunks);
  // Call apply() before sampling and restore() after it, in the step for which fill() was last called.
  // `logits`: f32 [bounds.logit_rows(), vocab].
  Status apply(const Tensor& logits, Workspace workspace, Stream stream, KernelRuns* runs) const;
  Status restore(const Tensor& logits, Workspace workspace, Stream stream, KernelRuns* runs) const;

 private:
  // Byte offsets in the block. `raw` exists only on the device.
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
  size_t bytes_ = 0;  // size of the host block; the device block is as large
  int64_t entries_ = 0;
};

}  // namespace sluice
