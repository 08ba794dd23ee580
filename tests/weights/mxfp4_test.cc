#include "weights/mxfp4.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"

namespace sluice {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Block {
  std::array<uint8_t, 16> codes{};
  uint8_t scale = 0;
  int code(int i) const { return codes[static_cast<size_t>(i / 2)] >> (i % 2 * 4) & 15; }
};

Block quantised(const std::array<float, 32>& values) {
  Block b;
  EXPECT_TRUE(quantise_mxfp4(values, b.codes, {&b.scale, 1}).ok());
  return b;
}
std::array<float, 32> dequantised(const Block& b) {
  std::array<float, 32> values{};
  EXPECT_TRUE(dequantise_mxfp4(b.codes, {&b.scale, 1}, values).ok());
  return values;
}

TEST(Mxfp4, EveryCodeTimesEveryScaleIsExact) {
  Block b;
  for (int i = 0; i < 16; ++i) b.codes[static_cast<size_t>(i)] = static_cast<uint8_t>(i | (15 - i) << 4);
  for (int scale = 0; scale < 256; ++scale) {
    b.scale = static_cast<uint8_t>(scale);
    const auto values = dequantised(b);
    for (int i = 0; i < 32; ++i) {
      const float got = values[static_cast<size_t>(i)];
      if (scale == 255) {
        EXPECT_TRUE(std::isnan(got));
        continue;
      }
      const double exact = std::ldexp(double{kE2M1Values[i % 2 ? 15 - i / 2 : i / 2]}, scale - 127);
      const bool fits = std::abs(exact) <= double{std::numeric_limits<float>::max()};
      EXPECT_EQ(double{got}, fits ? exact : std::copysign(double{kInf}, exact))
          << "scale " << scale << " at " << i;
      EXPECT_EQ(std::signbit(got), std::signbit(exact));
    }
  }
}

TEST(Mxfp4, RepresentableBlocksAreReproducedBitForBit) {
  // A block that contains a 4 or a 6 keeps its own scale under the scale rule.
  Random random(3);
  for (int scale = 0; scale <= 252; ++scale) {
    Block b;
    for (uint8_t& c : b.codes) c = static_cast<uint8_t>(random.bits());
    b.codes[5] = static_cast<uint8_t>((b.codes[5] & 0xF0) | 6);
    b.scale = static_cast<uint8_t>(scale);
    const Block again = quantised(dequantised(b));
    EXPECT_EQ(again.scale, b.scale);
    EXPECT_EQ(again.codes, b.codes) << "scale " << scale;
  }
}

TEST(Mxfp4, TiesGoToTheEvenCode) {
  std::array<float, 32> v{};
  v[0] = 4;  // fixes the scale at 127
  const float middles[] = {.25f, .75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.f};
  const int even[] = {0, 2, 2, 4, 4, 6, 6};
  for (int i = 0; i < 7; ++i) {
    v[static_cast<size_t>(1 + i)] = middles[i];
    v[static_cast<size_t>(9 + i)] = -std::nextafter(middles[i], kInf);
    v[static_cast<size_t>(17 + i)] = std::nextafter(middles[i], 0.f);
  }
  const Block b = quantised(v);
  EXPECT_EQ(b.scale, 127);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(b.code(1 + i), even[i]) << middles[i];
    EXPECT_EQ(b.code(9 + i), (i + 1) | 8) << middles[i];
    EXPECT_EQ(b.code(17 + i), i) << middles[i];
  }
}

TEST(Mxfp4, ScaleFollowsTheLargestMagnitude) {
  const auto scale_of = [](float largest) {
    std::array<float, 32> v{};
    v[7] = largest;
    return int{quantised(v).scale};
  };
  EXPECT_EQ(scale_of(1.f), 125);
  EXPECT_EQ(scale_of(-7.99f), 127);
  EXPECT_EQ(scale_of(8.f), 128);
  EXPECT_EQ(scale_of(0.f), 127);
  EXPECT_EQ(scale_of(-0.f), 127);
  EXPECT_EQ(scale_of(std::numeric_limits<float>::max()), 252);
  EXPECT_EQ(scale_of(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(scale_of(0x1p-125f), 0);
  EXPECT_EQ(scale_of(0x1p-124f), 1);
  std::array<float, 32> v{};
  v[0] = -0.f, v[1] = 7.9f, v[2] = -7.9f, v[3] = -.1f;
  const Block b = quantised(v);
  EXPECT_EQ(b.code(0), 8) << "the sign of zero is kept";
  EXPECT_EQ(b.code(1), 7) << "values above 6 become 6";
  EXPECT_EQ(b.code(2), 15);
  EXPECT_EQ(b.code(3), 8);
}

TEST(Mxfp4, NanSpreadsInItsBlockAndInfinityStaysInfinite) {
  std::vector<float> v(96, 1.f);
  v[40] = kNan;
  v[70] = -kInf;
  std::vector<uint8_t> codes(48), scales(3);
  ASSERT_TRUE(quantise_mxfp4(v, codes, scales).ok());
  EXPECT_EQ(scales, (std::vector<uint8_t>{125, 255, 254}));
  ASSERT_TRUE(dequantise_mxfp4(codes, scales, v).ok());
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(v[i], 1.f);
    EXPECT_TRUE(std::isnan(v[32 + i]));
    EXPECT_EQ(v[64 + i], i == 6 ? -kInf : 0.f);
  }
}

TEST(Mxfp4, ErrorIsAtMostHalfAStepOfTheBlock) {
  Random random(5);
  std::array<float, 32> v{};
  for (int round = 0; round < 200; ++round) {
    for (float& x : v) x = static_cast<float>(random.normal() * std::exp2(random.integer(-20, 20)));
    const Block b = quantised(v);
    const auto back = dequantised(b);
    const double unit = e8m0_value(b.scale);
    for (size_t i = 0; i < 32; ++i) {
      const double m = std::abs(double{v[i]}) / unit;
      const double step = m < 2 ? .5 : m < 4 ? 1 : m < 6 ? 2 : 4;  // beyond 6 the clamp loses up to 2
      EXPECT_LE(std::abs(double{v[i]} - back[i]), unit * step / 2) << v[i];
    }
  }
}

TEST(Mxfp4, WrongSizesAreNamed) {
  std::vector<float> v(33);
  std::vector<uint8_t> codes(16), scales(1);
  const Status odd = quantise_mxfp4(v, codes, scales);
  EXPECT_EQ(odd.code, Code::kInvalidArgument);
  EXPECT_NE(odd.message.find("found 33 values"), std::string::npos) << odd.message;
  v.resize(64);
  EXPECT_NE(dequantise_mxfp4(codes, scales, v).message.find("1 scales"), std::string::npos);
}

}  // namespace
}  // namespace sluice
