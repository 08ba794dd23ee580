// Small models of each family on a GPU.
#include <gtest/gtest.h>

#include "backends/cpu/device.h"
#include "gpu/gpu.h"
#include "harness/family_parity.h"

namespace sluice::test {
namespace {

constexpr const char* kModels[] = {"qwen3_moe/dense", "deepseek_v3/gpu", "deepseek_v3/fp8"};

class FamilyParityGpu : public OnGpu {};

// tests/models/parity_test.cc explains the bounds.
TEST_F(FamilyParityGpu, LogitsAreWithinTheNoiseOfTheirRoundings) {
  for (const char* model : kModels)
    for (const bool batch_invariant : {false, true}) {
      SCOPED_TRACE(std::string(model) + (batch_invariant ? " batch invariant" : " cheapest kernels"));
      expect_within(FamilyParity(gpu(), model, DType::kBF16, {.batch_invariant = batch_invariant}), model, 1,
                    4, 2);
    }
}

TEST_F(FamilyParityGpu, OnlyTheExpertsOnTheGpuAreWithinTheSameNoise) {
  const auto host = cpu::open_device({.threads = 4});
  ASSERT_TRUE(host.ok()) << host.status().message;
  for (const char* model : kModels)
    expect_within(FamilyParity(*host.value(), model, DType::kBF16, {}, &gpu()), model, 1, 4, 2);
}

}  // namespace
}  // namespace sluice::test
