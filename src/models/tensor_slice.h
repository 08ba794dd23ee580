// Tensor parallelism: copies a rank's rows or columns of checkpoint tensors.
#pragma once
#include <memory>
#include <vector>

#include "models/family.h"
#include "nn/decoder_slice.h"

namespace sluice {

class TensorSlicer {
 public:
  // Copies a rank's parts of the tensors `specs`, which form one weight in this order, to host memory as
  // BF16, and sets the shapes in `specs` to the shapes of the copies. The result is valid until the next call.
  // kCorrupt names a tensor whose shape is wrong.
  Result<const Checkpoint*> hold(const Checkpoint& from, const WeightParts& parts,
                                 std::vector<TensorSpec>* specs);

 private:
  std::vector<std::byte> memory_;
  std::unique_ptr<Checkpoint> held_;  // views of memory_
};

}  // namespace sluice
