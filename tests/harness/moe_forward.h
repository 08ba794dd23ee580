// Computes one rank's output of an MoE layer from a checkpoint, on the host.
#pragma once
#include <gtest/gtest.h>

#include <vector>

#include "nn/moe/load.h"

namespace sluice::test {

// y and x: f32 [tokens, hidden]. token_ids: required for method kHash.
inline std::vector<float> forward(Device& device, const Checkpoint& checkpoint, const MoeConfig& whole,
                                  const MoeLoadOptions& options, const Tensor& x,
                                  const Tensor& token_ids = {}) {
  const auto loaded = load_moe(device, checkpoint, whole, options);
  EXPECT_TRUE(loaded.ok()) << loaded.status().message;
  const int64_t tokens = x.shape[0];
  const auto moe = Moe::plan(device, loaded.value()->config(), tokens);
  EXPECT_TRUE(moe.ok()) << moe.status().message;
  std::vector<std::byte> scratch(moe.value()->workspace_bytes() + 256);
  auto* aligned = scratch.data() + (256 - reinterpret_cast<uintptr_t>(scratch.data()) % 256) % 256;
  std::vector<float> y(static_cast<size_t>(tokens * whole.hidden));
  const MoeIo io{.x = x,
                 .residual = {},
                 .token_ids = token_ids,
                 .y = make_tensor(y.data(), DType::kF32, {tokens, whole.hidden})};
  const Status status = moe.value()->forward(io, loaded.value()->weights(),
                                             {aligned, moe.value()->workspace_bytes()}, device.stream());
  EXPECT_TRUE(status.ok()) << status.message;
  return y;
}

}  // namespace sluice::test
