#include "cases/route_topk.h"

#include <cmath>

#include "harness/conformance.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(RouteTopk, Conformance, RouteTopk);

// Answers computed by hand, because an error in the reference would hide the same error in every kernel.
class RouteByHand : public ::testing::Test {
 protected:
  using M = RoutingMethod;
  void make(const RouteTopk::Problem& problem) {
    problem_ = problem;
    host_ = std::make_unique<HostArgs<RouteTopk>>(problem, Spread::kContiguous);
  }
  template <class T>
  void set(const Tensor& tensor, std::initializer_list<T> values) {
    std::copy(values.begin(), values.end(), tensor.as<T>());
  }
  RouteTopk::Args& args() { return host_->args(); }
  void run() {
    const auto device = cpu::open_device({.threads = 1}).value();
    const auto plan = make_plan<RouteTopk>(*device, problem_);
    ASSERT_TRUE(plan.ok()) << plan.status().message;
    const Status status = plan.value().run(args(), {}, device->stream());
    ASSERT_TRUE(status.ok()) << status.message;
  }
  std::vector<int32_t> ids() { return row<int32_t>(args().ids); }
  std::vector<int32_t> captured() { return row<int32_t>(args().captured); }
  void expect_weights(std::initializer_list<double> want) {
    const auto got = row<float>(args().weights);
    ASSERT_EQ(got.size(), want.size());
    size_t slot = 0;
    for (double w : want) {
      EXPECT_NEAR(got[slot], w, 1e-6 * std::abs(w)) << "slot " << slot;
      ++slot;
    }
  }

 private:
  template <class T>
  static std::vector<T> row(const Tensor& t) {
    return {t.as<T>(), t.as<T>() + elements_of(t)};
  }
  RouteTopk::Problem problem_;
  std::unique_ptr<HostArgs<RouteTopk>> host_;
};
using Ids = std::vector<int32_t>;
const float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST_F(RouteByHand, TiesGoToTheLowerExpertAndNanComesLast) {
  make({.tokens = 1, .experts = 6, .top_k = 6, .method = M::kTopK});
  set(args().logits, {kNan, 0.f, 3.f, -0.f, -kInf, 3.f});
  run();
  EXPECT_EQ(ids(), (Ids{2, 5, 1, 3, 4, 0}));
}

TEST_F(RouteByHand, SoftmaxOverTheChosenOnly) {
  make({.tokens = 1, .experts = 4, .top_k = 2});
  set(args().logits, {0.f, std::log(3.f), 100.f - 100.f, std::log(9.f)});
  run();
  EXPECT_EQ(ids(), (Ids{3, 1}));
  expect_weights({0.75, 0.25});
}

TEST_F(RouteByHand, SoftmaxOverAllKeepsItsShare) {
  make({.tokens = 1, .experts = 4, .top_k = 2, .method = M::kDefault});
  set(args().logits, {0.f, std::log(3.f), 0.f, std::log(5.f)});
  run();
  expect_weights({0.5, 0.3});
}

TEST_F(RouteByHand, BiasChoosesButDoesNotWeigh) {
  make({.tokens = 1, .experts = 4, .top_k = 2, .method = M::kSqrtSoftplus, .bias = true});
  // sqrt(log(1 + e^x)) is 1, 2, 3 for x = log(e - 1), log(e^4 - 1), log(e^9 - 1).
  const auto logit = [](double root) { return static_cast<float>(std::log(std::expm1(root * root))); };
  set(args().logits, {logit(1), logit(2), logit(3), logit(1)});
  set(args().bias, {8.f, 0.f, 0.f, 8.f});
  run();
  EXPECT_EQ(ids(), (Ids{0, 3}));
  expect_weights({0.5, 0.5});
}

TEST_F(RouteByHand, GroupsRankByTheSumOfTheirTwoBest) {
  make({.tokens = 1, .experts = 6, .top_k = 2, .method = M::kDeepSeekV3, .groups = 3, .topk_groups = 1});
  // Expert 0 has the best score, but the second score of its group is low: 0.9 + 0.1 < 0.6 + 0.6.
  const auto logit = [](double s) { return static_cast<float>(std::log(s / (1 - s))); };
  set(args().logits, {logit(.9), logit(.1), logit(.2), logit(.2), logit(.6), logit(.6)});
  run();
  EXPECT_EQ(ids(), (Ids{4, 5}));
  expect_weights({0.5, 0.5});
}

TEST_F(RouteByHand, GroupsOfSoftmaxRankByTheirBest) {
  make({.tokens = 1, .experts = 4, .top_k = 2, .method = M::kGroupedSoftmax, .groups = 2, .topk_groups = 1});
  set(args().logits, {std::log(5.f), 0.f, std::log(2.f), std::log(2.f)});
  run();
  EXPECT_EQ(ids(), (Ids{0, 1}));
  expect_weights({0.5, 0.1});
}

TEST_F(RouteByHand, MaskedGroupsLoseEvenToNegativeScores) {
  make({.tokens = 1,
        .experts = 4,
        .top_k = 2,
        .method = M::kDeepSeekV3,
        .bias = true,
        .groups = 2,
        .topk_groups = 1});
  set(args().logits, {0.f, 0.f, 0.f, 0.f});
  // If the mask were 0 instead of -inf, experts of both groups would be chosen.
  set(args().bias, {-5.f, -6.f, -4.f, -8.f});
  run();
  EXPECT_EQ(ids(), (Ids{0, 1}));
}

TEST_F(RouteByHand, HashTableChoosesAndTheScoresWeigh) {
  make({.tokens = 1, .experts = 4, .top_k = 3, .method = M::kHash, .vocab = 2});
  const auto logit = [](double root) { return static_cast<float>(std::log(std::expm1(root * root))); };
  set(args().logits, {logit(1), logit(2), logit(3), logit(2)});
  set(args().hash_table, {0, 0, 0, 2, 4, 0});
  set(args().token_ids, {1});
  run();
  EXPECT_EQ(ids(), (Ids{2, -1, 0}));
  expect_weights({0.75, 0, 0.25});
}

TEST_F(RouteByHand, HashOfATokenOutOfRangeIsEmpty) {
  make({.tokens = 1, .experts = 4, .top_k = 2, .method = M::kHash, .vocab = 2});
  set(args().logits, {1.f, 1.f, 1.f, 1.f});
  set(args().hash_table, {0, 1, 2, 3});
  set(args().token_ids, {2});
  run();
  EXPECT_EQ(ids(), (Ids{-1, -1}));
  expect_weights({0, 0});
}

TEST_F(RouteByHand, ATokenWithoutAChoiceHasItsSharedSlots) {
  make({.tokens = 1,
        .experts = 4,
        .top_k = 2,
        .method = M::kHash,
        .scale = 1.5,
        .shared_slots = 2,
        .vocab = 2});
  set(args().logits, {1.f, 1.f, 1.f, 1.f});
  set(args().hash_table, {0, 1, 2, 3});
  set(args().token_ids, {-1});
  run();
  EXPECT_EQ(ids(), (Ids{-1, -1, 4, 5}));
  expect_weights({0, 0, 1, 1});
}

TEST_F(RouteByHand, NanLogitsLeaveTheSharedSlotAlone) {
  make({.tokens = 1, .experts = 4, .top_k = 2, .method = M::kDeepSeekV3, .scale = 2.5, .shared_slots = 1});
  set(args().logits, {kNan, kNan, kNan, kNan});
  run();
  EXPECT_EQ(ids(), (Ids{0, 1, 4}));
  EXPECT_TRUE(std::isnan(args().weights.as<float>()[0]));
  EXPECT_EQ(args().weights.as<float>()[2], 1);
}

TEST_F(RouteByHand, SharedSlotsWeighOneAfterTheScale) {
  RouteTopk::Problem problem{.tokens = 1, .experts = 4, .top_k = 1, .scale = 2.5, .shared_slots = 1};
  make(problem);
  set(args().logits, {0.f, 0.f, 1.f, 0.f});
  run();
  EXPECT_EQ(ids(), (Ids{2, 4}));
  expect_weights({2.5, 1});
  problem.scale_here = false;
  make(problem);
  set(args().logits, {0.f, 0.f, 1.f, 0.f});
  run();
  expect_weights({1, 0.4});
}

TEST_F(RouteByHand, AForeignExpertKeepsItsWeightAndIsCapturedByItsGlobalId) {
  make({.tokens = 1,
        .experts = 8,
        .top_k = 2,
        .shared_slots = 1,
        .scope = ExpertScope::kRange,
        .expert_begin = 4,
        .expert_count = 2,
        .capture = true});
  set(args().logits, {0.f, 7.f, 0.f, 0.f, 0.f, 7.f, 0.f, 0.f});
  run();
  EXPECT_EQ(ids(), (Ids{-1, 1, 2}));
  EXPECT_EQ(captured(), (Ids{1, 5}));
  expect_weights({0.5, 0.5, 1});
}

TEST_F(RouteByHand, PackedChoicesUnpack) {
  make({.tokens = 1, .experts = 300, .top_k = 3, .input = RoutingInput::kPacked, .scale = 2});
  // In bf16, 0x3f40 is 0.75 and 0xbf00 is -0.5; the third id is -1.
  set(args().packed_in,
      {int32_t{258} << 16 | 0x3f40, int32_t{7} << 16 | 0xbf00, static_cast<int32_t>(0xffff3f80u)});
  run();
  EXPECT_EQ(ids(), (Ids{258, 7, -1}));
  expect_weights({1.5, -1, 0});
}

TEST_F(RouteByHand, OneNanSpoilsEveryWeightOfASoftmaxOverAll) {
  make({.tokens = 1, .experts = 3, .top_k = 1, .method = M::kDefault});
  set(args().logits, {1.f, kNan, 0.f});
  run();
  EXPECT_EQ(ids(), (Ids{0}));
  EXPECT_TRUE(std::isnan(args().weights.as<float>()[0]));
}

}  // namespace
}  // namespace sluice::test
