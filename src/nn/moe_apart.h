// The MoE layer on a device of its own, beside a model whose other parts the host can read.
#pragma once
#include <memory>

#include "nn/moe.h"
#include "nn/owned_tensor.h"

namespace sluice {

class MoeApart {
 public:
  // As Moe::plan, on `device`, and memory there for what a call takes and gives.
  static Result<std::unique_ptr<MoeApart>> plan(Device& device, const MoeConfig& config, int64_t tokens_max,
                                                const Policy& policy = {});
  const Moe& moe() const { return *moe_; }
  // Moe::forward with io in host memory and weights on the device: copies io there and y back, and waits for it. So it can be
  // part of no recording, and of one call at a time.
  Status forward(const MoeIo& io, const MoeWeights& weights);

 private:
  explicit MoeApart(Device& device) : device_(device) {}

  Device& device_;
  std::unique_ptr<Moe> moe_;
  OwnedTensor x_, residual_, token_ids_, y_,
      scratch_;  // of tokens_max tokens; empty where the layer has none
};

}  // namespace sluice
