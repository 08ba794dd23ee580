#include "cases/combine_norm.h"

#include "harness/conformance.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(CombineNorm, Conformance, CombineNorm);

// Three rows of alternating 3 and 4, whose mean square is 12.5. The weight is 2, and the residual stream is added
// before the norm.
TEST(CombineNormByHand, NormsTheSumThatItWrites) {
  const CombineNorm::Problem p{
      .combine = {.tokens = 3, .slots = 1, .rows = 3, .hidden = 16, .y = DType::kF32, .residual = true},
      .eps = 0x1p-100};
  HostArgs<CombineNorm> host(p, Spread::kContiguous);
  CombineNorm::Args args = host.args();
  set_each(args.g, [](int64_t, int64_t h) { return h % 2 ? 8 : 4; });
  set_each(args.position, [](int64_t t, int64_t) { return t; });
  set_each(args.weights, [](int64_t, int64_t) { return 0.5; });
  set_each(args.residual, [](int64_t, int64_t h) { return h % 2 ? 0 : 1; });
  for (int64_t h = 0; h < p.combine.hidden; ++h) args.norm_weight.as<BF16>()[h] = to_bf16(2.f);
  args.y = args.residual;
  for (const auto& device : every_level(2)) {
    set_each(args.residual, [](int64_t, int64_t h) { return h % 2 ? 0 : 1; });
    const auto plan = plan_op<CombineNorm>(*device, p);
    ASSERT_TRUE(plan.ok()) << plan.status().message;
    ASSERT_TRUE(plan.value().run(args, {}, device->stream()).ok());
    for (int64_t t = 0; t < p.combine.tokens; ++t)
      for (int64_t h = 0; h < p.combine.hidden; ++h) {
        EXPECT_EQ(load2(args.y, t, h), h % 2 ? 4 : 3);
        EXPECT_NEAR(load2(args.normed, t, h), 2 * (h % 2 ? 4 : 3) / std::sqrt(12.5), 1e-6);
      }
  }
}

}  // namespace
}  // namespace sluice::test
