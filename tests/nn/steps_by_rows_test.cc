// The plan of a step, chosen by the number of rows per sequence.
#include "nn/steps_by_rows.h"

#include "harness/devices.h"
#include "harness/engine_runs.h"

namespace sluice::test {

TEST(StepsByRows, TheRowsOfASequenceChooseThePlan) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const StepBounds bounds{.tokens = 64,
                          .sequences = 4,
                          .positions = 64,
                          .page_size = 4,
                          .pages = 80,
                          .rows = 16,
                          .verify_rows = 4};
  const auto made = Decoder::plan(*device, small_decoder(), bounds);
  ASSERT_TRUE(made.ok()) << made.status().message;
  const StepsByRows& steps = made.value()->steps().layers;
  EXPECT_EQ(&steps.of(4, 1), &*steps.decode);
  EXPECT_EQ(&steps.of(5, 1), &*steps.verify) << "more tokens than sequences";
  EXPECT_EQ(&steps.of(16, 4), &*steps.verify);
  EXPECT_EQ(&steps.of(17, 4), &*steps.any);
  EXPECT_EQ(&steps.of(16, 5), &*steps.any);
  EXPECT_EQ(&steps.of(4, 0), &*steps.any);
  EXPECT_EQ(steps.cost_us(3, false), steps.decode->cost_us(3));
  EXPECT_EQ(steps.cost_us(3, true), steps.verify->cost_us(3));
  for (const auto* step : {&steps.any, &steps.decode, &steps.verify})
    EXPECT_GE(steps.workspace_bytes(), (*step)->workspace_bytes());
  const auto invariant = Decoder::plan(*device, small_decoder(), bounds, {.batch_invariant = true});
  ASSERT_TRUE(invariant.ok());
  EXPECT_EQ(&invariant.value()->steps().layers.of(4, 1), &*invariant.value()->steps().layers.any);
}

}  // namespace sluice::test
