#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/dtype.h"
#include "base/random.h"

namespace sluice::test {

TEST(BF16, RoundsToNearestTiesToEven) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3F80);
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f).bits, 0x3F80);             // a tie rounds to even
  EXPECT_EQ(to_bf16(1.0f + 3 * 0x1p-8f).bits, 0x3F82);         // a tie rounds to even, upwards
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f + 0x1p-20f).bits, 0x3F81);  // just above a tie
  EXPECT_EQ(to_bf16(3.4028235e38f).bits, 0x7F80);              // overflows to infinity
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::nanf("")))));
}

TEST(BF16, EveryValueSurvivesF32) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const BF16 value{static_cast<uint16_t>(bits)};
    if (std::isnan(to_float(value))) continue;
    EXPECT_EQ(to_bf16(to_float(value)).bits, value.bits);
  }
}

TEST(E8M0, IsAPowerOfTwoForEveryByteButTheLast) {
  for (int scale = 0; scale < 255; ++scale)
    EXPECT_EQ(e8m0_value(static_cast<uint8_t>(scale)), std::ldexp(1.0, scale - 127));
  EXPECT_TRUE(std::isnan(e8m0_value(255)));
}

TEST(DType, WordsReadBack) {
  for (int i = 0; i <= static_cast<int>(DType::kU8); ++i) {
    DType read{};
    EXPECT_TRUE(parse(text(static_cast<DType>(i)), &read));
    EXPECT_EQ(read, static_cast<DType>(i));
  }
  DType unused{};
  EXPECT_FALSE(parse("f16", &unused));
}

// Published with the code of Salmon et al. (Random123, kat_vectors).
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox(0, 0), (std::array<uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
}

TEST(Random, CoversItsRangeAndHasTheMomentsOfANormal) {
  Random random(1);
  std::set<int64_t> seen;
  double sum = 0, squares = 0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    seen.insert(random.integer(-2, 3));
    const double x = random.normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_EQ(seen, (std::set<int64_t>{-2, -1, 0, 1, 2, 3}));
  EXPECT_NEAR(sum / kDraws, 0, 4 / std::sqrt(kDraws));  // four standard errors
  EXPECT_NEAR(squares / kDraws, 1, 4 * std::sqrt(2.0 / kDraws));
}

}  // namespace sluice::test
