// The rows or columns of a rank in tensors that are divided among devices.
#pragma once
#include <memory>
#include <vector>

#include "models/family.h"
#include "nn/decoder_slice.h"

namespace sluice {

class TensorSlicer {
 public:
  // Copies the parts of the tensors `specs`, which form one weight in this order, to host memory, as BF16, and changes the specs to
  // the shapes of the copies. The result is valid until the next call. kCorrupt names a tensor of another shape.
  Result<const Checkpoint*> hold(const Checkpoint& from, const WeightParts& parts,
                                 std::vector<TensorSpec>* specs);

 private:
  std::vector<std::byte> memory_;
  std::unique_ptr<Checkpoint> held_;  // views of memory_
};

}  // namespace sluice
