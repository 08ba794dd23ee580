// A caller's tensors in a device's memory as the host sees them: copied when they are wanted, one tensor or matrix at a time.
#pragma once
#include <vector>

#include "dispatch/device.h"
#include "weights/packing.h"

namespace sluice {

class HostView {
 public:
  explicit HostView(Device& device) : device_(device) {}
  // The tensor itself where the host can read it; else a copy, which lasts until the next call.
  Result<CheckpointTensor> tensor(const CheckpointTensor& t);
  // The matrix with the parts of tensors that its spans cover, likewise: no more is copied, so the memory that this takes is that of
  // the largest matrix as it stands in its tensors.
  Result<MatrixSource> matrix(const PackedMatrix& matrix, const MatrixSource& source);

 private:
  Device& device_;
  std::vector<std::byte> buffer_;
};

// Whether it lies where the host cannot read it.
inline bool is_far(const CheckpointTensor& t) { return t.where != Backend::kCpu; }
// The same of a matrix: of any tensor that its spans lie in.
bool is_far(const MatrixSource& source);

}  // namespace sluice
