// Loads a checkpoint's dense tensors into device memory. Projections are packed; norms, sinks, embeddings and
// biases keep their layout.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/owned_tensor.h"
#include "weights/checkpoint.h"

namespace sluice {

// The values that weights may contain.
enum class Numbers : uint8_t {
  kFinite,
  kNoNan,  // infinities are meaningful, as in a sink without effect or an expert that is never chosen
};
// Number of host threads for loading: for a CPU device, its `cores`; for other devices 0, which means one
// thread per processor.
inline int host_threads(const Device& device) {
  return device.shares_host_memory() ? device.info().cores : 0;
}

// One tensor of a checkpoint, with the shape and type that the model needs.
struct DenseTensor {
  std::string name;
  std::vector<int64_t> shape = {};
  DType dtype = DType::kBF16;
  Numbers allowed = Numbers::kFinite;
};
// Finds a tensor of this shape that can be loaded as `dtype`; errors as in load_dense.
Result<const CheckpointTensor*> find_dense(const Checkpoint& checkpoint, const std::string& name,
                                           const std::vector<int64_t>& shape, DType dtype);
// Loads a tensor on `threads` threads (0: one per processor), copied or converted from another number type
// (weights/numbers.h). A caller's tensor is never converted, except from BF16 to f32. kUnsupported: the type
// cannot be converted. kCorrupt: the tensor is missing, has another shape or contains a value that is not
// allowed; nothing stays allocated. Messages name the file and tensor, what was wanted and what was found.
// Large tensors for a device with its own memory are uploaded through page-locked memory (nn/upload_ring.h).
Result<OwnedTensor> load_dense(Device& device, const Checkpoint& checkpoint, const DenseTensor& wanted,
                               int threads);

// One of the tensors that are stacked into one matrix [sum of features, width] or one bias [sum of features].
// Values must be finite.
struct DensePart {
  std::string name;
  int64_t features = 0;
};
// Stacks biases into one bias [sum of features] of `dtype`.
Result<OwnedTensor> load_stacked(Device& device, const Checkpoint& checkpoint,
                                 std::span<const DensePart> parts, DType dtype);
// Stacks matrices [features, width] into one bf16 matrix, for example {q, k, v} into one QKV projection. The
// result is the `w` of ops/linear.h in the layout of the device's dense kernels (DeviceInfo::layout).
// panels16: u8[bytes], packed directly from the mapped file. Row-major: bf16 [sum of features, width], copied
// as by load_dense. kUnsupported: a layout that the host cannot pack.
Result<OwnedTensor> pack_dense(Device& device, const Checkpoint& checkpoint, std::span<const DensePart> parts,
                               int64_t width, int threads);

// Checks the values of a bf16, f16 or f32 tensor; tensors of other types pass. kCorrupt names the file, the
// tensor and the first element that is not allowed.
Status check_numbers(const CheckpointTensor& tensor, Numbers allowed);

// Copies a tensor to `to`, which has equally many elements and may have another number type. Waits for the
// copy.
Status copy_converted(Device& device, const CheckpointTensor& from, const Tensor& to);

}  // namespace sluice
