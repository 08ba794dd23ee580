#include "cases/rms_norm.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(RmsNorm, Conformance, RmsNorm);

// y may be x; it then has the same bits as a separate y.
TEST(RmsNormTest, WritesOverItsInput) {
  for (const RmsNorm::Problem& problem : {RmsNorm::Problem{.tokens = 5, .hidden = 203},
                                          RmsNorm::Problem{.tokens = 5, .hidden = 203, .residual = true},
                                          RmsNorm::Problem{.tokens = 5, .hidden = 24, .heads = 6}}) {
    for (const auto& device : every_level(2)) {
      HostArgs<RmsNorm> apart(problem, Spread::kContiguous), over(problem, Spread::kContiguous);
      Random first(3), second(3);
      Suite<RmsNorm>::fill(problem, Fill::kNormal, apart, first);
      Suite<RmsNorm>::fill(problem, Fill::kNormal, over, second);
      RmsNorm::Args alias = over.args();
      alias.y = alias.x;
      const auto plan = make_plan<RmsNorm>(*device, problem);
      ASSERT_TRUE(plan.ok()) << plan.status().message;
      ASSERT_TRUE(plan.value().run(apart.args(), {}, device->stream()).ok());
      ASSERT_TRUE(plan.value().run(alias, {}, device->stream()).ok());
      const auto bytes =
          static_cast<size_t>(bytes_of(problem.y, problem.tokens * problem.heads * problem.hidden));
      EXPECT_EQ(std::memcmp(apart.args().y.data, alias.y.data, bytes), 0) << text(device->info());
    }
  }
}

}  // namespace sluice::test
