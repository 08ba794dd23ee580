#include "nn/moe/slice.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "harness/devices.h"
#include "harness/moe_forward.h"
#include "harness/moe_reach.h"

namespace sluice::test {
namespace {

constexpr int64_t kSliceTokens = 4;

TEST(MoeSlice, WidthsAreWholeBlocksWithAnUnevenTail) {
  const auto widths = [](int64_t width, int64_t ranks) {
    std::vector<int64_t> out;
    int64_t next = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      const Part part = part_of_width(width, {.tp_rank = r, .tp_size = ranks});
      EXPECT_TRUE(part.begin == next || part.count == 0);
      next += part.count;
      out.push_back(part.count);
    }
    EXPECT_EQ(next, width);
    return out;
  };
  using List = std::vector<int64_t>;
  EXPECT_EQ(widths(2880, 1), (List{2880}));
  EXPECT_EQ(widths(2880, 2), (List{1440, 1440}));
  EXPECT_EQ(widths(2880, 4), (List{736, 736, 736, 672}));
  EXPECT_EQ(widths(2880, 8), (List{384, 384, 384, 384, 384, 384, 384, 192}));
  EXPECT_EQ(widths(3072, 8), (List(8, 384)));
  EXPECT_EQ(widths(1856, 4), (List{480, 480, 480, 416}));
  EXPECT_EQ(widths(70, 2), (List{64, 6}));
  EXPECT_EQ(widths(64, 4), (List{32, 32, 0, 0}));
}

TEST(MoeSlice, ExpertsAreContiguousAndAsEvenAsCanBe) {
  for (int64_t experts : {1, 8, 13, 256})
    for (int64_t ranks : {1, 2, 4, 5, 8}) {
      int64_t next = 0, most = 0, least = experts;
      for (int64_t r = 0; r < ranks; ++r) {
        const Part part = part_of_experts(experts, {.ep_rank = r, .ep_size = ranks});
        EXPECT_EQ(part.begin, next);
        next += part.count, most = std::max(most, part.count), least = std::min(least, part.count);
      }
      EXPECT_EQ(next, experts);
      EXPECT_LE(most - least, 1);
    }
}

TEST(MoeSlice, CostsCountOnlyTheRowsOfThisRank) {
  const MoeConfig whole = known_moe("deepseek-v3").value();
  const auto part = sliced(whole, {.ep_rank = 3, .ep_size = 8});
  ASSERT_TRUE(part.ok()) << part.status().message;
  for (const ExpertGemm::Problem& p :
       {expert_problems(part.value()).up, expert_problems(part.value()).down}) {
    EXPECT_EQ(p.experts, 32);
    EXPECT_EQ(p.experts_routed, 256);
  }
}

TEST(MoeSlice, TermsAddedOnceAreOnOneRank) {
  MoeConfig whole = known_moe("gpt-oss-20b").value();
  whole.residual = true;
  whole.shared_intermediate = 128;
  int64_t biases = 0, residuals = 0, shared = 0;
  for (int64_t tp = 0; tp < 4; ++tp)
    for (int64_t ep = 0; ep < 2; ++ep) {
      const auto c = sliced(whole, {.tp_rank = tp, .tp_size = 4, .ep_rank = ep, .ep_size = 2});
      ASSERT_TRUE(c.ok()) << c.status().message;
      biases += c.value().down_bias, residuals += c.value().residual, shared += c.value().shared_intermediate;
      EXPECT_TRUE(c.value().up_bias);
      EXPECT_EQ(c.value().scope, ExpertScope::kRange);
      EXPECT_EQ(c.value().expert_begin, 16 * ep);
      EXPECT_EQ(c.value().expert_count, 16);
    }
  EXPECT_EQ(biases, 2) << "tp_rank 0 in both halves of the experts";
  EXPECT_EQ(residuals, 1);
  EXPECT_EQ(shared, 128);
}

TEST(MoeSlice, SharedSlotsAreCutLikeTheExperts) {
  MoeConfig whole = small_config(MoeNaming::kDeepSeekV3);
  whole.shared_intermediate = 3 * whole.intermediate;
  for (int64_t tp = 0; tp < 3; ++tp) {
    const auto c = sliced(whole, {.tp_rank = tp, .tp_size = 3, .ep_rank = 0, .ep_size = 2});
    ASSERT_TRUE(c.ok()) << c.status().message;
    EXPECT_EQ(c.value().intermediate, tp < 2 ? 64 : 32) << tp;
    EXPECT_EQ(c.value().shared_intermediate, 3 * c.value().intermediate);
    EXPECT_EQ(shared_slots(c.value()), 3);
  }
}

TEST(MoeSlice, ImpossibleRanksAreRefused) {
  const MoeConfig c = known_moe("gpt-oss-20b").value();
  const auto refused = [&](const Slice& s, const std::string& words) {
    const Status status = sliced(c, s).status();
    EXPECT_EQ(status.code, Code::kInvalidArgument);
    EXPECT_NE(status.message.find(words), std::string::npos) << status.message;
  };
  refused({.tp_rank = 2, .tp_size = 2}, "tp: wanted a rank from 0 to size - 1, found rank 2 of size 2");
  refused({.tp_size = 0}, "found rank 0 of size 0");
  refused({.ep_rank = -1, .ep_size = 2}, "ep: wanted a rank");
  refused({.tp_rank = 91, .tp_size = 100},
          "tp rank 91 of 100: wanted at least one block of 32, found none: intermediate 2880 has 90");
  refused({.ep_rank = 0, .ep_size = 64}, "ep rank 0 of 64: wanted at least one expert, found none of 32");
  MoeConfig range = c;
  range.scope = ExpertScope::kRange, range.expert_count = 4;
  EXPECT_EQ(sliced(range, {.ep_size = 2}).status().code, Code::kInvalidArgument);
}

// --- The outputs of all ranks add up to the whole layer ---

void expect_ranks_add_up(MoeNaming naming, int64_t intermediate,
                         const std::vector<std::pair<int64_t, int64_t>>& sizes) {
  const auto device = cpu::open_device({.threads = 2}).value();
  MoeConfig config = small_config(naming);
  config.x = config.g = DType::kF32, config.hidden = 64, config.intermediate = intermediate;
  if (config.shared_as_slots) config.shared_intermediate = 2 * intermediate;
  const RandomMoe moe(config, 9);
  const Written file(moe.tensors(naming, 0));
  Random random(4);
  std::vector<float> x_values(static_cast<size_t>(kSliceTokens * config.hidden));
  for (float& v : x_values) v = static_cast<float>(random.normal());
  const Tensor x = make_tensor(x_values.data(), DType::kF32, {kSliceTokens, config.hidden});
  const std::vector<Reach> reach = reach_of(moe, x);
  const std::vector<float> whole =
      forward(*device, *file.checkpoint, config, {.naming = naming, .threads = 2}, x);
  for (const auto& [tp, ep] : sizes) {
    std::vector<double> sum(whole.size());
    for (int64_t t = 0; t < tp; ++t)
      for (int64_t e = 0; e < ep; ++e) {
        const auto part = forward(*device, *file.checkpoint, config,
                                  {.naming = naming, .slice = {t, tp, e, ep}, .threads = 2}, x);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      }
    double largest = 0, loosest = 0;
    for (size_t i = 0; i < sum.size(); ++i) {
      // The whole layer and the ranks' sum are each within `error` of the exact layer.
      EXPECT_NEAR(sum[i], whole[i], 2 * reach[i].error)
          << word(naming) << " tp " << tp << " ep " << ep << " at " << i;
      largest = std::max(largest, std::abs(double{whole[i]})),
      loosest = std::max(loosest, 2 * reach[i].error);
    }
    EXPECT_LT(loosest, largest * 2e-2) << "the bound is too loose to prove anything";
  }
}

const std::vector<std::pair<int64_t, int64_t>> kSizes = {{2, 1}, {3, 1}, {4, 1}, {8, 1},
                                                         {1, 2}, {1, 4}, {2, 2}, {3, 4}};

TEST(MoeSlice, RanksAddUpGptOss) { expect_ranks_add_up(MoeNaming::kGptOss, 480, kSizes); }
TEST(MoeSlice, RanksAddUpGptOssBf16) { expect_ranks_add_up(MoeNaming::kGptOssBf16, 480, kSizes); }
TEST(MoeSlice, RanksAddUpDeepSeekV4) { expect_ranks_add_up(MoeNaming::kDeepSeekV4, 480, kSizes); }
TEST(MoeSlice, RanksAddUpDeepSeekV3) { expect_ranks_add_up(MoeNaming::kDeepSeekV3, 470, kSizes); }
TEST(MoeSlice, RanksAddUpQwen3Moe) { expect_ranks_add_up(MoeNaming::kQwen3Moe, 448, {{3, 1}, {2, 4}}); }
TEST(MoeSlice, RanksAddUpNemotron3) { expect_ranks_add_up(MoeNaming::kNemotron3, 470, kSizes); }

}  // namespace
}  // namespace sluice::test
