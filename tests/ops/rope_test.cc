#include "cases/rope.h"

#include <array>

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Rope, Conformance, Rope);

namespace {

constexpr RopeScaling kGptOss = {.theta = 150000, .factor = 32, .original_context = 4096};
constexpr int64_t kRotary = 64, kHalf = kRotary / 2;

std::vector<float> table_of(const RopeScaling& scaling, int64_t rows, int64_t rotary) {
  std::vector<float> table(static_cast<size_t>(rows * rotary));
  const Status status = rope_table(scaling, rows, rotary, table.data());
  EXPECT_TRUE(status.ok()) << status.message;
  return table;
}

// The angle by which pair i rotates from one position to the next, computed from a table.
double frequency(const std::vector<float>& table, int64_t rotary, int64_t i) {
  const auto at = static_cast<size_t>((rotary / 2 + i) * 2);
  return std::atan2(table[at + 1], table[at]);
}

}  // namespace

// Computed by hand from the formulas: the blend runs from pair 8.0928 to pair 17.3980, the gain is
// 1.34657359.
TEST(RopeTableTest, GptOssValues) {
  const auto table = table_of(kGptOss, 131072, kRotary);
  struct Known {
    int64_t pair, position;
    double cos, sin;
  };
  for (const Known& k :
       {Known{0, 0, 1.346573590, 0}, Known{0, 1, 0.727556816, 1.133102605},
        Known{0, 1000, 0.757284812, 1.113454152}, Known{8, 4095, 0.998708227, 0.903239897},
        Known{9, 4095, -0.693787331, -1.154088200}, Known{12, 131071, -0.026097674, -1.346320670},
        Known{17, 131071, -0.434854588, -1.274426114}, Known{18, 131071, 0.409225970, -1.282885240},
        Known{31, 131071, 1.345516335, 0.053350026}}) {
    const auto at = static_cast<size_t>((k.position * kHalf + k.pair) * 2);
    EXPECT_NEAR(table[at], k.cos, 1e-7) << "pair " << k.pair << " position " << k.position;
    EXPECT_NEAR(table[at + 1], k.sin, 1e-7) << "pair " << k.pair << " position " << k.position;
  }
}

TEST(RopeTableTest, FactorOneIsThePlainEmbedding) {
  RopeScaling plain = kGptOss;
  plain.factor = 1;
  const auto table = table_of(plain, 50, kRotary);
  for (int64_t position = 0; position < 50; ++position) {
    for (int64_t i = 0; i < kHalf; ++i) {
      const double angle =
          static_cast<double>(position) / std::pow(150000.0, 2.0 * static_cast<double>(i) / 64);
      const auto at = static_cast<size_t>((position * kHalf + i) * 2);
      EXPECT_NEAR(table[at], std::cos(angle), 1e-7);
      EXPECT_NEAR(table[at + 1], std::sin(angle), 1e-7);
    }
  }
}

TEST(RopeTableTest, FastPairsStayAndSlowPairsSlowDownByTheFactor) {
  RopeScaling plain = kGptOss;
  plain.factor = 1;
  const auto stretched = table_of(kGptOss, 2, kRotary), before = table_of(plain, 2, kRotary);
  for (int64_t i = 0; i < kHalf; ++i) {
    const double ratio = frequency(before, kRotary, i) / frequency(stretched, kRotary, i);
    if (i <= 8) {
      EXPECT_NEAR(ratio, 1, 1e-6) << i;
    } else if (i >= 18) {
      EXPECT_NEAR(ratio, 32, 1e-4) << i;
    } else {
      EXPECT_TRUE(ratio > 1.05 && ratio < 31) << i << ": " << ratio;
    }
  }
}

TEST(RopeTableTest, TruncationMovesTheEndsOfTheBlendToWholePairs) {
  RopeScaling whole = kGptOss, plain = kGptOss;
  whole.truncate = RopeScaling::Truncate::kYes;
  plain.factor = 1;
  const auto table = table_of(whole, 2, kRotary), before = table_of(plain, 2, kRotary);
  for (int64_t i = 0; i < kHalf; ++i) {
    const double slowed = std::clamp((static_cast<double>(i) - 8) / (18 - 8), 0.0, 1.0);
    const double want = frequency(before, kRotary, i) * (slowed / 32 + 1 - slowed);
    EXPECT_NEAR(frequency(table, kRotary, i) / want, 1, 1e-5) << i;
  }
}

TEST(RopeTableTest, AttentionFactorReplacesTheGain) {
  RopeScaling scaling = kGptOss;
  scaling.attention_factor = 0.75;
  EXPECT_EQ(table_of(scaling, 1, 8)[0], 0.75f);
}

// Computed by hand for head_dim 64, theta 10000, factor 8, 4096 positions, low_freq_factor 1,
// high_freq_factor 4. Pair 18 makes 3.66592 rotations in 4096 positions, so its frequency is 0.888641 of the
// original plus 0.111359 of an eighth of it. Pair 17 makes 4.8886 rotations and keeps its frequency; pair 23
// makes 0.8693 and has an eighth.
TEST(RopeTableTest, Llama3BlendsByRotations) {
  const RopeScaling llama3{.theta = 10000,
                           .factor = 8,
                           .original_context = 4096,
                           .beta_fast = 4,
                           .beta_slow = 1,
                           .blend = RopeScaling::Blend::kRotations,
                           .attention_factor = 1};
  const auto table = table_of(llama3, 2, kRotary);
  const auto plain = [](int64_t i) { return std::pow(10000.0, -static_cast<double>(i) / 32); };
  EXPECT_EQ(table[0], 1);
  EXPECT_NEAR(frequency(table, kRotary, 17) / plain(17), 1, 1e-6);
  EXPECT_NEAR(frequency(table, kRotary, 18) / plain(18), 0.888641 + 0.111359 / 8, 2e-5);
  EXPECT_NEAR(frequency(table, kRotary, 23) / plain(23), 0.125, 1e-6);
}

TEST(RopeTableTest, RefusesWithTheValueFound) {
  std::array<float, 8> table;
  const auto message = [&](RopeScaling s, int64_t rows, int64_t rotary) {
    const Status status = rope_table(s, rows, rotary, table.data());
    EXPECT_EQ(status.code, Code::kInvalidArgument);
    return status.message;
  };
  EXPECT_NE(message(kGptOss, 1, 3).find("found 3"), std::string::npos);
  EXPECT_NE(message(kGptOss, -2, 4).find("found -2"), std::string::npos);
  EXPECT_NE(message({.theta = 1}, 1, 4).find("theta"), std::string::npos);
  EXPECT_NE(message({.factor = 0.5}, 1, 4).find("factor"), std::string::npos);
  EXPECT_NE(message({.factor = 2, .original_context = 0}, 1, 4).find("original_context"), std::string::npos);
  EXPECT_NE(message({.factor = 2, .beta_fast = 1, .beta_slow = 2}, 1, 4).find("beta_fast"),
            std::string::npos);
  EXPECT_EQ(rope_table(kGptOss, 1, 4, nullptr).code, Code::kInvalidArgument);
}

}  // namespace sluice::test
