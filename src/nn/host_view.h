// Lets the host read a caller's tensors in device memory: copies them to page-locked host memory on demand.
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
  // Returns the tensor itself if the host can read it; otherwise a copy, which is valid until the next call.
  Result<CheckpointTensor> tensor(const CheckpointTensor& t);
  // Does the same for a matrix, and copies only the bytes that its spans cover. So the buffer is never larger
  // than the largest matrix in its stored form.
  Result<MatrixSource> matrix(const PackedMatrix& matrix, const MatrixSource& source);
  // Does the same for several matrices, with a single wait.
  struct Wanted {
    const PackedMatrix* matrix;
    const MatrixSource* source;
  };
  Result<std::vector<MatrixSource>> matrices(std::span<const Wanted> wanted);

 private:
  // Grows the buffer to this many bytes. It is page-locked, because copies to pageable memory are slower.
  Status reserve(size_t bytes);
  Device& device_;
  std::byte* buffer_ = nullptr;
  size_t capacity_ = 0;
};

// Bytes that matrix() would copy from device memory.
int64_t far_bytes(const PackedMatrix& matrix, const MatrixSource& source);

// Whether the host cannot read the tensor.
inline bool is_far(const CheckpointTensor& t) { return t.where != Backend::kCpu; }
// Whether the host cannot read a tensor of the matrix's spans.
bool is_far(const MatrixSource& source);

}  // namespace sluice
