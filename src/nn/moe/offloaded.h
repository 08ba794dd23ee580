// Offloading: the MoE layers run on one device, the rest of the model on another device whose memory the host
// can read.
#pragma once
#include <memory>
#include <vector>

#include "nn/moe/layer.h"
#include "nn/owned_tensor.h"

namespace sluice {

// Where a model's MoE layers run, and which kernels their experts use.
struct MoeSite {
  Device* device = nullptr;  // holds the experts' weights; null: the model's own device
  MoeBackend backend = {};
};

class OffloadedMoe {
 public:
  // Plans as Moe::plan on `device`, and allocates memory there for the inputs and outputs of a call.
  static Result<std::unique_ptr<OffloadedMoe>> plan(Device& device, const MoeConfig& config,
                                                    int64_t tokens_max, const Policy& policy = {},
                                                    const MoeBackend& backend = {});
  const Moe& moe() const { return *moe_; }
  // Moe::forward with io in host memory (contiguous rows) and weights on the device: copies the inputs to the
  // device, runs the layer, copies the outputs back and waits. So it cannot be captured in a graph, and only
  // one call may run at a time.
  Status forward(const MoeIo& io, const MoeWeights& weights, KernelRuns* runs = nullptr);

 private:
  explicit OffloadedMoe(Device& device) : device_(device) {}

  Device& device_;
  std::unique_ptr<Moe> moe_;
  // device tensors for tokens_max tokens, in the order of io_slots(); empty if the layer does not use the
  // tensor
  std::vector<OwnedTensor> io_;
  OwnedTensor scratch_;
};

}  // namespace sluice
