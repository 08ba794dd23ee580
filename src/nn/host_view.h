// A caller's tensors in a device's memory as the host sees them: copied when they are wanted.
#pragma once
#include <span>
#include <vector>

#include "dispatch/device.h"
#include "weights/packing.h"

namespace sluice {

class HostView {
 public:
  explicit HostView(Device& device) : device_(device) {}
  ~HostView() { device_.release_host(buffer_); }
  HostView(const HostView&) = delete;
  HostView& operator=(const HostView&) = delete;
  // The tensor itself where the host can read it; else a copy, which lasts until the next call.
  Result<CheckpointTensor> tensor(const CheckpointTensor& t);
  // The matrix with the parts of tensors that its spans cover, likewise: no more is copied, so the memory that this takes is that of
  // the largest matrix as it stands in its tensors.
  Result<MatrixSource> matrix(const PackedMatrix& matrix, const MatrixSource& source);
  // The same for several at once, in one wait.
  struct Wanted {
    const PackedMatrix* matrix;
    const MatrixSource* source;
  };
  Result<std::vector<MatrixSource>> matrices(std::span<const Wanted> wanted);

 private:
  // At least so much page-locked memory, to which copies run at the device's full speed.
  Status reserve(size_t bytes);
  Device& device_;
  std::byte* buffer_ = nullptr;
  size_t capacity_ = 0;
};

// Bytes of the device's memory that matrix() would copy.
int64_t far_bytes(const PackedMatrix& matrix, const MatrixSource& source);

// Whether it lies where the host cannot read it.
inline bool is_far(const CheckpointTensor& t) { return t.where != Backend::kCpu; }
// The same of a matrix: of any tensor that its spans lie in.
bool is_far(const MatrixSource& source);

}  // namespace sluice
