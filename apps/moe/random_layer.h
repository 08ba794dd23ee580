// Random weights of an MoE layer and random inputs of a run, on a device, scaled so that results neither vanish nor overflow.
#pragma once
#include <memory>
#include <vector>

#include "base/random.h"
#include "nn/moe/layer.h"
#include "nn/owned_tensor.h"

namespace sluice::apps {

// The total bytes of the tensors that weight_slots() or io_slots() returned.
double bytes_of_slots(const std::vector<std::pair<SlotSpec, Tensor*>>& slots);

class RandomLayer {
 public:
  // kUnsupported: a matrix is stored as fragments with padding, which would become random, too. The message of kOutOfMemory names the tensor.
  static Result<std::unique_ptr<RandomLayer>> make(Device& device, const MoeConfig& config, uint64_t seed);
  const MoeWeights& weights() const { return weights_; }
  double bytes() const { return bytes_; }

 private:
  MoeWeights weights_;
  std::vector<OwnedTensor> memory_;
  double bytes_ = 0;
};

// All tensors of a run except the weights.
struct RandomCall {
  MoeIo io;
  Workspace workspace;
  std::vector<OwnedTensor> memory;
};
Result<RandomCall> random_call(Device& device, const Moe& moe, int64_t tokens, Random& random);

// Copies the bytes of a contiguous tensor from the device to the host.
Result<std::vector<std::byte>> bytes_at(Device& device, const Tensor& tensor);

}  // namespace sluice::apps
