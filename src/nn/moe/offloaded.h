// The MoE layer on a device of its own, beside a model whose other parts the host can read.
#pragma once
#include <memory>
#include <vector>

#include "nn/moe/layer.h"
#include "nn/owned_tensor.h"

namespace sluice {

// Where a model's MoE layers run, and the kernels of their experts.
struct MoeSite {
  Device* device = nullptr;  // that has their weights; null: the one of the rest
  MoeBackend backend = {};
};

class MoeApart {
 public:
  // As Moe::plan, on `device`, and memory there for what a call takes and gives.
  static Result<std::unique_ptr<MoeApart>> plan(Device& device, const MoeConfig& config, int64_t tokens_max,
                                                const Policy& policy = {}, const MoeBackend& backend = {});
  const Moe& moe() const { return *moe_; }
  // Moe::forward with io in host memory, its rows contiguous, and weights on the device: copies io there and y (and captured)
  // back, and waits for it. So it can be part of no recording, and of one call at a time.
  Status forward(const MoeIo& io, const MoeWeights& weights, KernelRuns* runs = nullptr);

 private:
  explicit MoeApart(Device& device) : device_(device) {}

  Device& device_;
  std::unique_ptr<Moe> moe_;
  std::vector<OwnedTensor>
      io_;  // of tokens_max tokens, in the order of io_slots(); empty where the layer has none
  OwnedTensor scratch_;
};

}  // namespace sluice
