// Problems that the GPU fuzzer samples from known layers: legal, varied, and small enough for a host's
// reference.
#include "harness/model_problems.h"

#include <gtest/gtest.h>

#include <set>

namespace sluice::test {
namespace {

template <class Op>
std::set<std::string> draw(int count) {
  Random random(7);
  std::set<std::string> out;
  for (int i = 0; i < count; ++i) {
    const auto p = model_problem<Op>(random);
    EXPECT_TRUE(p.has_value()) << Op::kName;
    if (!p) continue;
    EXPECT_TRUE(Op::validate(*p).accepted()) << fields_text(*p) << ": " << Op::validate(*p).line();
    out.insert(fields_text(*p));
  }
  return out;
}

}  // namespace

TEST(ModelProblems, AreLegalAndMany) {
  EXPECT_GT(draw<RouterGemm>(100).size(), 60u);
  EXPECT_GT(draw<RouteGroup>(100).size(), 60u);
  EXPECT_GT(draw<RouterRoute>(100).size(), 60u);
  EXPECT_GT(draw<ExpertGemm>(100).size(), 60u);
  EXPECT_GT(draw<ExpertMlp>(100).size(), 60u);
  EXPECT_GT(draw<Combine>(100).size(), 60u);
  EXPECT_GT(draw<GroupRows>(100).size(), 8u);
}

TEST(ModelProblems, StayWithinTheirBounds) {
  Random random(8);
  std::set<int64_t> widths;
  for (int i = 0; i < 300; ++i) {
    const ExpertGemm::Problem p = *model_problem<ExpertGemm>(random);
    const int64_t elements = ExpertGemm::weight_rows(p) * p.width;
    EXPECT_LE(p.experts * elements, model_weights(p.w)) << fields_text(p);
    EXPECT_LE(p.rows * elements, std::max(kModelProducts, 24 * model_weights(p.w))) << fields_text(p);
    EXPECT_GE(p.rows, 1) << fields_text(p);
    EXPECT_EQ(p.layout, WeightLayout::kFragments);
    widths.insert(p.width);
  }
  // Some problems have a model's full width.
  for (const int64_t hidden : {2880, 4096, 7168, 2688, 6144}) EXPECT_TRUE(widths.count(hidden)) << hidden;
}

TEST(ModelProblems, NoLayerHasALoraStage) {
  Random random(9);
  EXPECT_FALSE(model_problem<LoraDelta>(random).has_value());
}

}  // namespace sluice::test
