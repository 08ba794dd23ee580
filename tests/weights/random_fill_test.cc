// Random words by index: the same for any division into parts, and of the promised magnitude.
#include "weights/random_fill.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "weights/mxfp4.h"

namespace sluice::test {
namespace {

constexpr sluice::Fill kAll[] = {
    sluice::Fill::kMxfp4Codes, sluice::Fill::kMxfp4Scales, sluice::Fill::kWeight,   sluice::Fill::kBias,
    sluice::Fill::kNorm,       sluice::Fill::kUnit,        sluice::Fill::kSmallF32, sluice::Fill::kTinyF32,
    sluice::Fill::kEmbedding,  sluice::Fill::kF8Codes,     sluice::Fill::kF8Scales, sluice::Fill::kExpertIds};

std::vector<std::byte> filled(uint64_t seed, RandomContents contents, uint64_t first, size_t bytes,
                              int threads = 1) {
  std::vector<std::byte> out(bytes);
  Workers workers(threads);
  RandomFill(seed).fill(contents, first, out, workers);
  return out;
}

std::vector<double> numbers(const std::vector<std::byte>& bytes) {
  std::vector<double> out(bytes.size() / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    BF16 v;
    std::memcpy(&v, bytes.data() + 2 * i, 2);
    out[i] = to_float(v);
  }
  return out;
}

struct Moments {
  double mean = 0, deviation = 0;
};
Moments moments(const std::vector<double>& v) {
  double sum = 0, squares = 0;
  for (double x : v) sum += x, squares += x * x;
  const auto n = static_cast<double>(v.size());
  return {sum / n, std::sqrt(squares / n - sum * sum / n / n)};
}

}  // namespace

TEST(RandomFill, AnyPartEqualsThatPartOfTheWhole) {
  constexpr size_t kBytes = (size_t{3} << 20) + 4;  // several pieces, and half a word
  for (const sluice::Fill fill : kAll) {
    const RandomContents contents{fill, 480};
    const auto whole = filled(7, contents, 100, kBytes, 3);
    EXPECT_EQ(filled(7, contents, 100, kBytes), whole) << static_cast<int>(fill);
    for (const size_t begin : {size_t{0}, size_t{8}, size_t{1048576 - 8}, size_t{2000000}}) {
      const auto part = filled(7, contents, 100 + begin / 8, 1001);
      EXPECT_EQ(std::memcmp(part.data(), whole.data() + begin, part.size()), 0) << static_cast<int>(fill);
    }
    if (fill == sluice::Fill::kF8Scales) continue;  // scales are all one
    EXPECT_NE(filled(8, contents, 100, kBytes), whole) << static_cast<int>(fill);
  }
}

// Old checkpoints must remain reproducible: word 0 of seed 0 is SplitMix64 of 1, whose value is published.
TEST(RandomFill, WordsAreThoseOfSplitMix64) {
  const auto bytes = filled(0, {sluice::Fill::kMxfp4Codes, 1}, 0, 16);
  uint64_t words[2];
  std::memcpy(words, bytes.data(), 16);
  EXPECT_EQ(words[0], 0x910A2DEC89025CC1u);
  EXPECT_EQ(words[1], 0xBEEB8DA1658EEC67u);
}

TEST(RandomFill, SumsOfWeightsHaveMagnitudeOne) {
  for (const int64_t width : {64, 2880}) {
    const Moments w = moments(numbers(filled(3, {sluice::Fill::kWeight, width}, 0, 1 << 20)));
    EXPECT_NEAR(w.mean, 0, 0.01 / std::sqrt(static_cast<double>(width)));
    EXPECT_NEAR(w.deviation * std::sqrt(static_cast<double>(width)), 1, 0.02);
    constexpr size_t kBlocks = 4096;
    const auto codes = filled(3, {sluice::Fill::kMxfp4Codes, 1}, 0, kBlocks * 16),
               scales = filled(3, {sluice::Fill::kMxfp4Scales, width}, 9999, kBlocks);
    std::vector<float> values(kBlocks * 32);
    const auto bytes = [](const std::vector<std::byte>& v) {
      return std::span(reinterpret_cast<const uint8_t*>(v.data()), v.size());
    };
    ASSERT_TRUE(dequantise_mxfp4(bytes(codes), bytes(scales), values).ok());
    const Moments experts = moments({values.begin(), values.end()});
    EXPECT_NEAR(experts.deviation * std::sqrt(static_cast<double>(width)), 1, 0.15) << width;
  }
  EXPECT_NEAR(moments(numbers(filled(3, {sluice::Fill::kNorm, 1}, 0, 1 << 16))).mean, 1, 0.01);
  EXPECT_NEAR(moments(numbers(filled(3, {sluice::Fill::kBias, 1}, 0, 1 << 16))).deviation, 1.0 / 32, 0.001);
  EXPECT_NEAR(moments(numbers(filled(3, {sluice::Fill::kEmbedding, 72}, 0, 1 << 16))).deviation,
              std::sqrt(72.0), 0.2);
}

}  // namespace sluice::test
