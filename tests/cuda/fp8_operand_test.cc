// The operands of FP8 products, made from packed weights (backends/cuda/tile/fp8_operand.cuh): each code must be where the tensor core
// multiplies it by its own column of x.
#include "backends/cuda/tile/fp8_operand.cuh"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"

namespace sluice {
namespace {

using cuda::tile::e5m2_bytes;

double e5m2_value(uint32_t byte) {
  const int exponent = static_cast<int>(byte >> 2 & 31);
  if (exponent == 31) return byte & 3 ? std::nan("") : INFINITY;
  const double size = exponent == 0 ? std::ldexp(byte & 3, -16) : std::ldexp(4 + (byte & 3), exponent - 17);
  return byte & 0x80 ? -size : size;
}
uint32_t bf16_bits(double value) { return std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16; }

TEST(Fp8Operand, ColumnsOfSixteenAreAPermutation) {
  std::vector<int> seen(64);
  for (int64_t k = 0; k < 64; ++k) {
    EXPECT_EQ(fragment_column8(k) / 16, k / 16);
    ++seen[static_cast<size_t>(fragment_column8(k))];
  }
  EXPECT_EQ(seen, std::vector<int>(64, 1));
}

// Thread t's byte b of register u + 2 h belongs to row 16 (t / 32) + t % 32 / 4 + 8 u and column 16 h + 4 (t % 4) + b (PTX ISA, wgmma).
TEST(Fp8Operand, E4m3CodesMeetTheirColumns) {
  const FragmentShape shape{1, 1};
  Random random(7);
  std::vector<uint8_t> packed(static_cast<size_t>(kFragmentCode8Bytes)), codes(64 * 64);
  for (int64_t row = 0; row < 64; ++row)
    for (int64_t k = 0; k < 64; ++k)
      packed[static_cast<size_t>(fragment_code8_index(shape, {0, row}, k))] =
          codes[static_cast<size_t>(row * 64 + k)] = static_cast<uint8_t>(random.bits());
  for (int64_t t = 0; t < kFragmentThreads; ++t)
    for (int64_t product = 0; product < 2; ++product)
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t u = 0; u < 2; ++u)
          for (int64_t b = 0; b < 4; ++b) {
            const int64_t row = 16 * (t / 32) + t % 32 / 4 + 8 * u,
                          column = 32 * product + 16 * h + 4 * (t % 4) + b;
            const uint8_t operand =
                packed[static_cast<size_t>((product * kFragmentThreads + t) * 16 + (u + 2 * h) * 4 + b)];
            for (int64_t k = 0; k < 64; ++k) {
              if (fragment_column8(k) != column) continue;
              ASSERT_EQ(operand, codes[static_cast<size_t>(row * 64 + k)]) << "row " << row << ", k " << k;
            }
          }
}

// Register u + 2 h of thread t in a bf16 product has row 16 (t / 32) + t % 32 / 4 + 8 u at columns 8 h + 2 (t % 4) and the next one.
TEST(Fp8Operand, PairsOfE4m3AreOperandsInBf16) {
  const FragmentShape shape{1, 1};
  for (int64_t t = 0; t < kFragmentThreads; ++t)
    for (int64_t step = 0; step < 4; ++step)
      for (int64_t u = 0; u < 2; ++u)
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t i = 0; i < 2; ++i) {
            const int64_t row = 16 * (t / 32) + t % 32 / 4 + 8 * u, k = 16 * step + 8 * h + 2 * (t % 4) + i;
            const int64_t at = fragment_code8_index(shape, {0, row}, k),
                          word = (step / 2 * kFragmentThreads + t) * 4 + step % 2 * 2 + u;
            ASSERT_EQ(at / 4, word) << "row " << row << ", k " << k;
            const uint32_t code = 0x53, bits = fragment_pair8(code << (8 * (at % 4)), static_cast<int>(h));
            ASSERT_EQ(bits, code << 4 << (16 * i)) << "row " << row << ", k " << k;
          }
}

TEST(Fp8Operand, Mxfp4CodesMeetTheirColumns) {
  const FragmentShape shape{1, 1};
  Random random(8);
  std::vector<uint32_t> words(static_cast<size_t>(kFragmentCodeBytes / 4));
  std::vector<uint8_t> codes(64 * 64);
  for (int64_t row = 0; row < 64; ++row)
    for (int64_t k = 0; k < 64; ++k) {
      uint8_t& code = codes[static_cast<size_t>(row * 64 + k)];
      code = random.bits() & 15;
      const FragmentCode at = fragment_code(shape, {0, row}, k);
      const uint32_t pair = at.half == 0 ? fragment_pair_of(code, 0) : fragment_pair_of(0, code);
      words[static_cast<size_t>(at.word)] ^= fragment_word(pair, at.pair);
    }
  // The pair of bf16 that a kernel makes of bits, multiplied by 2^27 (scale equal to the row's largest).
  const auto decoded = [](uint32_t bits) {
    const auto one = [](uint32_t half) {
      const auto value = static_cast<double>(kE2M1Values[(half >> 12 & 8) | (half >> 6 & 7)]);
      return bf16_bits(value * std::ldexp(1.0, 13 - 112)) | (half & 0x8000);
    };
    return one(bits & 0xffff) | one(bits >> 16) << 16;
  };
  for (int64_t t = 0; t < kFragmentThreads; ++t)
    for (int64_t step = 0; step < 4; ++step) {
      const uint32_t word = words[static_cast<size_t>(t * 4 + step)];
      for (int64_t u = 0; u < 2; ++u) {
        const uint32_t bytes = e5m2_bytes(decoded(fragment_pair(word, static_cast<int>(u))),
                                          decoded(fragment_pair(word, static_cast<int>(u) + 2)));
        for (int64_t b = 0; b < 4; ++b) {
          const int64_t row = 16 * (t / 32) + t % 32 / 4 + 8 * u, column = 16 * step + 4 * (t % 4) + b;
          for (int64_t k = 0; k < 64; ++k) {
            if (fragment_column8(k) != column) continue;
            ASSERT_EQ(e5m2_value(bytes >> (8 * b) & 0xff),
                      std::ldexp(kE2M1Values[codes[static_cast<size_t>(row * 64 + k)]], 13))
                << "row " << row << ", k " << k;
          }
        }
      }
    }
}

// Every code at every scale down to 2^-28 of the row's largest is exact; NaN stays NaN.
TEST(Fp8Operand, E5m2HoldsEveryScaledCode) {
  for (int down = 0; down <= 28; ++down)
    for (int code = 0; code < 16; ++code) {
      const double value = std::ldexp(kE2M1Values[code], 13 - down);
      const uint32_t bits = bf16_bits(std::ldexp(value, -112)) | (code >= 8 ? 0x8000u : 0u);
      EXPECT_EQ(e5m2_value(e5m2_bytes(bits, 0) & 0xff), value) << code << " at 2^-" << down;
    }
  EXPECT_TRUE(std::isnan(e5m2_value(e5m2_bytes(0x7fff, 0) & 0xff)));
}

}  // namespace
}  // namespace sluice
