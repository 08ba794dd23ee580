// An MoE layer's weights and a call's tensors on a device, at random, of a size that neither vanishes nor overflows.
#pragma once
#include <memory>
#include <vector>

#include "base/random.h"
#include "nn/moe/layer.h"
#include "nn/owned_tensor.h"

namespace sluice::apps {

// Bytes of what weight_slots() or io_slots() list.
double bytes_of_slots(const std::vector<std::pair<SlotSpec, Tensor*>>& slots);

class RandomLayer {
 public:
  // kUnsupported: fragments of a matrix that has padding, which would be random, too. kOutOfMemory names the tensor.
  static Result<std::unique_ptr<RandomLayer>> make(Device& device, const MoeConfig& config, uint64_t seed);
  const MoeWeights& weights() const { return weights_; }
  double bytes() const { return bytes_; }

 private:
  MoeWeights weights_;
  std::vector<OwnedTensor> memory_;
  double bytes_ = 0;
};

// Everything that one call touches besides the weights.
struct RandomCall {
  MoeIo io;
  Workspace workspace;
  std::vector<OwnedTensor> memory;
};
Result<RandomCall> random_call(Device& device, const Moe& moe, int64_t tokens, Random& random);

// A contiguous tensor's bytes, wherever it is.
Result<std::vector<std::byte>> bytes_at(Device& device, const Tensor& tensor);

}  // namespace sluice::apps
