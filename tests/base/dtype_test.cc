#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace sluice {
namespace {

// Decoded as the specification describes e4m3: a sign, four exponent bits with a bias of 7, three mantissa
// bits.
double value_of(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double sign = code & 0x80 ? -1 : 1;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  return sign * (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
}

// The nearest value, found by comparing with all values; of two equally near, the value with the even code
// (its mantissa is even).
int nearest_code(double x) {
  int best = 0;
  for (int code = 0; code < 0x7f; ++code) {
    const double off = std::abs(value_of(code) - std::abs(x)), least = std::abs(value_of(best) - std::abs(x));
    if (off < least || (off == least && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

int code_of(float x) { return to_e4m3(x).bits; }

}  // namespace

TEST(DType, EveryCodeOfE4m3HasItsValueAndReadsBack) {
  for (int code = 0; code < 256; ++code) {
    const float value = to_float(E4M3{static_cast<uint8_t>(code)});
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, value_of(code)) << code;
    }
    EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
    EXPECT_EQ(code_of(value), code);
  }
  EXPECT_EQ(to_float(E4M3{0x7e}), kE4M3Max);
}

// Every value and every tie, each with its f32 neighbours.
TEST(DType, E4m3RoundsToTheNearestAndTiesToEven) {
  std::vector<float> numbers = {0, 0x1p-11f, 0x1p-126f, 0x1p-149f, 463, 464, 465, 480, 1e30f};
  for (int code = 0; code < 0x7e; ++code) {
    const double low = value_of(code), high = value_of(code + 1);
    for (const double x : {low, (low + high) / 2, (3 * low + high) / 4}) {
      numbers.push_back(static_cast<float>(x));
      EXPECT_EQ(numbers.back(), x) << "no f32 number, so the tie is not tested";
    }
  }
  for (const float x : numbers)
    for (const float near : {std::nextafter(x, 0.f), x, std::nextafter(x, 1e38f)})
      for (const float signed_x : {near, -near})
        EXPECT_EQ(code_of(signed_x), nearest_code(signed_x)) << std::hexfloat << signed_x;
}

TEST(DType, E4m3SaturatesAndKeepsNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(code_of(infinity), 0x7e);
  EXPECT_EQ(code_of(-infinity), 0xfe);
  EXPECT_EQ(code_of(std::numeric_limits<float>::max()), 0x7e);
  EXPECT_EQ(code_of(-0.f), 0x80);
  EXPECT_EQ(code_of(std::numeric_limits<float>::quiet_NaN()) & 0x7f, 0x7f);
}

}  // namespace sluice
