#include "apps/random_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/random.h"

namespace sluice::apps {
namespace {

constexpr size_t kTable = 1 << 16;
constexpr double kCodeRms = 2.926;  // of the sixteen e2m1 values, equally likely
constexpr double kF8Rms = 0.57;     // of the e4m3 values below 2, equally likely

}  // namespace

RandomFill::RandomFill(uint64_t seed) : normals_(kTable), state_(seed * 0x9E3779B97F4A7C15u + 1) {
  Random random(seed);
  for (float& v : normals_) v = static_cast<float>(random.normal());
}

// SplitMix64 (Steele, Lea, Flood 2014).
uint64_t RandomFill::next() {
  uint64_t z = state_ += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

void RandomFill::fill(Fill what, int64_t width, std::span<std::byte> out) {
  const double root = std::sqrt(static_cast<double>(std::max<int64_t>(width, 1)));
  const auto each8 = [&](auto make) {
    for (size_t at = 0; at < out.size(); at += 8) {
      const uint64_t bytes = make(next());
      std::memcpy(out.data() + at, &bytes, std::min<size_t>(8, out.size() - at));
    }
  };
  const auto bf16 = [&](float mean, float deviation) {
    each8([&](uint64_t bits) {
      uint64_t packed = 0;
      for (int i = 0; i < 4; ++i) {
        const float v = mean + deviation * normals_[(bits >> (16 * i)) & (kTable - 1)];
        packed |= static_cast<uint64_t>(to_bf16(v).bits) << (16 * i);
      }
      return packed;
    });
  };
  switch (what) {
    case Fill::kMxfp4Codes:
      return each8([](uint64_t bits) { return bits; });
    case Fill::kMxfp4Scales: {
      const double center = 127 - std::log2(kCodeRms * root) - 0.3;  // the spread below makes rms larger
      return each8([&](uint64_t bits) {
        uint64_t packed = 0;
        for (int i = 0; i < 8; ++i) {
          const double z = normals_[((bits >> (8 * i)) ^ (bits << (8 * (7 - i)))) & (kTable - 1)];
          const auto scale = static_cast<uint64_t>(std::clamp(std::lround(center + 0.7 * z), 1L, 254L));
          packed |= scale << (8 * i);
        }
        return packed;
      });
    }
    case Fill::kWeight:
      return bf16(0, static_cast<float>(1 / root));
    case Fill::kBias:
      return bf16(0, 0.125f);
    case Fill::kNorm:
      return bf16(1, 0.1f);
    case Fill::kUnit:
      return bf16(0, 1);
    case Fill::kF8Codes:  // the top bit of the exponent stays clear
      return each8([](uint64_t bits) { return bits & 0xBFBFBFBFBFBFBFBFu; });
    case Fill::kF8Scales: {
      const auto scale = static_cast<uint64_t>(std::lround(127 - std::log2(kF8Rms * root)));
      return each8([&](uint64_t) { return scale * 0x0101010101010101u; });
    }
    case Fill::kExpertIds:
      return each8([](uint64_t bits) { return bits & 15; });
    case Fill::kSmallF32:
      return each8([&](uint64_t bits) {
        const float pair[2] = {0.125f * normals_[bits & (kTable - 1)],
                               0.125f * normals_[(bits >> 16) & (kTable - 1)]};
        uint64_t packed;
        std::memcpy(&packed, pair, 8);
        return packed;
      });
  }
}

}  // namespace sluice::apps
