// Qwen3-MoE on a GPU, with dense layers between the layers with experts.
#include <gtest/gtest.h>

#include "backends/cpu/device.h"
#include "gpu/gpu.h"
#include "harness/qwen3_parity.h"

namespace sluice::test {
namespace {

class Qwen3MoeGpu : public OnGpu {};

// tests/models/parity_test.cc explains the bounds.
TEST_F(Qwen3MoeGpu, LogitsAreWithinTheNoiseOfTheirRoundings) {
  for (const bool batch_invariant : {false, true}) {
    SCOPED_TRACE(batch_invariant ? "batch invariant" : "the cheapest kernels");
    expect_within(Qwen3Parity(gpu(), "dense", DType::kBF16, {.batch_invariant = batch_invariant}), "dense", 1,
                  4, 2);
  }
}

TEST_F(Qwen3MoeGpu, ExpertsAloneOnTheGpuAreWithinTheSameNoise) {
  const auto host = cpu::open_device({.threads = 4});
  ASSERT_TRUE(host.ok()) << host.status().message;
  expect_within(Qwen3Parity(*host.value(), "dense", DType::kBF16, {}, &gpu()), "dense", 1, 4, 2);
}

}  // namespace
}  // namespace sluice::test
