// The shared expert as slots of every token, compared with a separate path.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "harness/devices.h"
#include "harness/moe_forward.h"
#include "harness/moe_reach.h"

namespace sluice::test {
namespace {

constexpr int64_t kFewTokens = 6;

MoeConfig with_slots(MoeNaming naming, int64_t slots) {
  MoeConfig c = small_config(naming);
  c.x = c.g = DType::kF32, c.hidden = 64, c.intermediate = 96, c.expert_w = DType::kBF16;
  c.shared_intermediate = slots * c.intermediate, c.shared_as_slots = true;
  return c;
}

class MoeShared : public testing::Test {
 protected:
  MoeShared() : device_(cpu::open_device({.threads = 2}).value()) {
    Random random(4);
    for (float& v : values_) v = static_cast<float>(random.normal());
  }
  Tensor x() { return make_tensor(values_.data(), DType::kF32, {kFewTokens, 64}); }
  // Compares the slots with the separate path: both are within `error` of the exact layer.
  std::vector<float> expect_as_apart(MoeConfig config, MoeNaming naming,
                                     std::vector<int32_t> token_ids = {}) {
    const RandomMoe moe(config, 9);
    const Written file(moe.tensors(naming, 0));
    const Tensor ids =
        token_ids.empty() ? Tensor{} : make_tensor(token_ids.data(), DType::kI32, {kFewTokens});
    const auto run = [&] {
      return forward(*device_, *file.checkpoint, config, {.naming = naming}, x(), ids);
    };
    const std::vector<Reach> reach = reach_of(moe, x());
    const std::vector<float> slots = run();
    config.shared_as_slots = false;
    const std::vector<float> apart = run();
    double largest = 0, loosest = 0;
    for (size_t i = 0; i < apart.size(); ++i) {
      EXPECT_NEAR(slots[i], apart[i], 2 * reach[i].error) << "at " << i;
      largest = std::max(largest, std::abs(double{apart[i]}));
      loosest = std::max(loosest, 2 * reach[i].error);
    }
    EXPECT_LT(loosest, largest * 1e-2) << "the bound is too loose to prove anything";
    return slots;
  }
  std::vector<float> values_ = std::vector<float>(kFewTokens * 64);
  std::unique_ptr<Device> device_;
};

// If the routed scale applied to a shared slot, the error would be 1.5 times the shared expert's output.
TEST_F(MoeShared, SlotsWeighOneWhateverTheRoutedScale) {
  for (double scale : {1., 2.5, 0.125}) {
    for (int64_t slots : {1, 2, 8}) {
      MoeConfig config = with_slots(MoeNaming::kDeepSeekV3, slots);
      config.scale = scale;
      expect_as_apart(config, MoeNaming::kDeepSeekV3);
    }
  }
}

TEST_F(MoeShared, SlotsWithoutAGate) {
  expect_as_apart(with_slots(MoeNaming::kNemotron3, 2), MoeNaming::kNemotron3);
}

TEST_F(MoeShared, ATokenWithoutExpertsHasItsSharedSlot) {
  MoeConfig config = with_slots(MoeNaming::kDeepSeekV4, 1);
  config.method = RoutingMethod::kHash, config.correction_bias = false, config.hash_vocab = 50;
  const auto y = expect_as_apart(config, MoeNaming::kDeepSeekV4, {-1, 7, 50, -1, 0, 49});
  for (int64_t token : {0, 2, 3}) {
    double most = 0;
    for (int64_t i = 0; i < 64; ++i)
      most = std::max(most, std::abs(double{y[static_cast<size_t>(token * 64 + i)]}));
    EXPECT_GT(most, 0.01) << "token " << token;
  }
}

TEST_F(MoeShared, ANanTokenSpoilsNoOther) {
  const MoeConfig config = with_slots(MoeNaming::kDeepSeekV3, 2);
  const RandomMoe moe(config, 9);
  const Written file(moe.tensors(MoeNaming::kDeepSeekV3, 0));
  const auto run = [&] {
    return forward(*device_, *file.checkpoint, config, {.naming = MoeNaming::kDeepSeekV3}, x());
  };
  const std::vector<float> before = run();
  for (int64_t i = 0; i < 64; ++i)
    values_[static_cast<size_t>(3 * 64 + i)] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> after = run();
  for (int64_t t = 0; t < kFewTokens; ++t)
    for (int64_t i = 0; i < 64; ++i) {
      const auto at = static_cast<size_t>(t * 64 + i);
      if (t == 3) {
        EXPECT_TRUE(std::isnan(after[at])) << i;
      } else {
        EXPECT_EQ(after[at], before[at]) << t << " " << i;
      }
    }
}

// Two expert-parallel ranks: the first rank has the slots, after its experts, and the ranks' sum is the
// layer.
TEST_F(MoeShared, ExpertParallelRanksHaveTheSlotsOnce) {
  MoeConfig config = with_slots(MoeNaming::kDeepSeekV3, 2);
  config.experts = 7, config.groups = config.topk_groups = 1;
  const RandomMoe moe(config, 9);
  const Written file(moe.tensors(MoeNaming::kDeepSeekV3, 0));
  const std::vector<float> whole =
      forward(*device_, *file.checkpoint, config, {.naming = MoeNaming::kDeepSeekV3}, x());
  std::vector<double> sum(whole.size());
  for (int64_t rank = 0; rank < 2; ++rank) {
    const Slice slice{.ep_rank = rank, .ep_size = 2};
    const MoeConfig part = sliced(config, slice).value();
    EXPECT_EQ(shared_slots(part), rank == 0 ? 2 : 0);
    MoeWeights weights;
    for (const auto& [spec, tensor] : weight_slots(part, &weights)) {
      if (spec.name != "experts.up") continue;
      EXPECT_EQ(spec.shape[0], rank == 0 ? 3 + 2 : 4);
    }
    const auto y =
        forward(*device_, *file.checkpoint, config, {.naming = MoeNaming::kDeepSeekV3, .slice = slice}, x());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += y[i];
  }
  const std::vector<Reach> reach = reach_of(moe, x());
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], whole[i], 2 * reach[i].error) << i;
}

// The row count for which a rank's kernels are chosen: its share of the routed rows, and all rows of the
// shared slot.
TEST_F(MoeShared, CostsCountOnlyTheRowsOfThisRank) {
  const MoeConfig whole = known_moe("deepseek-v3").value();
  const MoeConfig first = sliced(whole, {.ep_rank = 0, .ep_size = 8}).value();
  const ExpertGemm::Problem up = ExpertGemm::at_tokens(expert_problems(first).up, 128);
  EXPECT_EQ(up.experts, 33);
  EXPECT_EQ(up.slots, 9);
  EXPECT_NEAR(ExpertGemm::expected_rows(up), 2 * 128, 1);
  EXPECT_EQ(ExpertGemm::expected_rows(ExpertGemm::at_tokens(expert_problems(whole).up, 128)), 9 * 128);
}

TEST_F(MoeShared, TheSlotsNeedNoLaunchOfTheirOwn) {
  MoeConfig config = with_slots(MoeNaming::kDeepSeekV3, 1);
  const auto stages = [&] {
    std::vector<std::string> out;
    const auto moe = Moe::plan(*device_, config, 4);
    EXPECT_TRUE(moe.ok()) << moe.status().message;
    for (const auto& [stage, kernel] : moe.value()->kernels(2)) out.push_back(stage);
    std::vector<std::string> planned;
    for (const PieceProblem& p : moe.value()->step().problems(2)) planned.push_back(p.stage);
    EXPECT_EQ(planned, out);
    return out;
  };
  EXPECT_EQ(stages(),
            (std::vector<std::string>{"router", "route", "group", "experts.up", "experts.down", "combine"}));
  config.shared_as_slots = false;
  EXPECT_EQ(stages().size(), 9u);
  config.shared_as_slots = true, config.shared_intermediate = 0;
  EXPECT_EQ(stages().size(), 6u);
}

TEST_F(MoeShared, SharedExpertsThatFitNoSlotAreRefusedByName) {
  MoeConfig config = with_slots(MoeNaming::kDeepSeekV3, 1);
  const auto message = [&] {
    EXPECT_FALSE(shared_fits_slots(config));
    const Status planned = Moe::plan(*device_, config, 4).status(), cut = sliced(config, {}).status();
    EXPECT_EQ(planned.code, Code::kInvalidArgument);
    EXPECT_EQ(cut.message, planned.message);
    return planned.message;
  };
  EXPECT_TRUE(shared_fits_slots(config));
  config.shared_intermediate = 95;
  EXPECT_EQ(
      message(),
      "shared_as_slots: wanted a shared expert 1 to 8 times as wide as a routed one, 96, with weights in "
      "bf16, found 95 in bf16");
  config.shared_intermediate = 9 * 96;
  EXPECT_NE(message().find("found 864 in bf16"), std::string::npos);
  config.shared_intermediate = 96, config.expert_w = DType::kE2M1;
  EXPECT_NE(message().find("weights in e2m1, found 96 in bf16"), std::string::npos);
}

}  // namespace
}  // namespace sluice::test
