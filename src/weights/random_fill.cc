#include "weights/random_fill.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/random.h"

namespace sluice {
namespace {

constexpr size_t kTable = 1 << 16;
constexpr double kCodeRms = 2.926;  // root mean square of the sixteen e2m1 values, equally likely
constexpr double kF8Rms = 0.57;     // root mean square of the e4m3 values below 2, equally likely
constexpr uint64_t kStep = 0x9E3779B97F4A7C15u;

// Bytes per work item: small enough for one thread's cache, large enough that the cost of claiming an item
// does not matter.
constexpr int64_t kPart = int64_t{1} << 20;

double root_of(int64_t width) { return std::sqrt(static_cast<double>(std::max<int64_t>(width, 1))); }

// Word `number` of the stream that begins at `state`: SplitMix64 (Steele, Lea, Flood 2014), a hash of a
// counter.
uint64_t word(uint64_t state, uint64_t number) {
  uint64_t z = state + (number + 1) * kStep;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Writes make(word) for each word from `first` on. Whole words have a loop of their own, which the compiler
// optimizes better.
template <class Make>
void each_word(uint64_t state, uint64_t first, std::span<std::byte> out, Make make) {
  const size_t whole = out.size() / 8;
  for (size_t i = 0; i < whole; ++i) {
    const uint64_t bytes = make(word(state, first + i));
    std::memcpy(out.data() + 8 * i, &bytes, 8);
  }
  if (out.size() == 8 * whole) return;
  const uint64_t bytes = make(word(state, first + whole));
  std::memcpy(out.data() + 8 * whole, &bytes, out.size() - 8 * whole);
}

// Mean and standard deviation of the normally distributed bf16 contents.
struct Normal {
  float mean, deviation;
};
Normal normal_of(const RandomContents& c) {
  switch (c.fill) {
    case Fill::kWeight:
      return {0, static_cast<float>(1 / root_of(c.width))};
    case Fill::kBias:
      return {0, 1.0f / 32};
    case Fill::kEmbedding:
      return {0, static_cast<float>(root_of(c.width))};
    case Fill::kNorm:
      return {1, 0.1f};
    default:
      return {0, 1};
  }
}
bool is_normal(Fill fill) {
  switch (fill) {
    case Fill::kWeight:
    case Fill::kBias:
    case Fill::kEmbedding:
    case Fill::kNorm:
    case Fill::kUnit:
      return true;
    default:
      return false;
  }
}

}  // namespace

RandomFill::RandomFill(uint64_t seed) : normals_(kTable), state_(seed * kStep + 1) {
  Random random(seed);
  for (float& v : normals_) v = static_cast<float>(random.normal());
}

const std::vector<uint16_t>& RandomFill::table_of(const RandomContents& c) {
  std::vector<uint16_t>& table = tables_[{c.fill, c.width}];
  if (!table.empty()) return table;
  table.resize(kTable);
  if (is_normal(c.fill)) {
    const auto [mean, deviation] = normal_of(c);
    for (size_t i = 0; i < kTable; ++i) table[i] = to_bf16(mean + deviation * normals_[i]).bits;
  }
  if (c.fill == Fill::kMxfp4Scales || c.fill == Fill::kMxfp8Scales) {
    const double rms = c.fill == Fill::kMxfp4Scales ? kCodeRms : kF8Rms;
    // -0.3: the spread below raises the rms
    const double center = 127 - std::log2(rms * root_of(c.width)) - 0.3;
    for (size_t i = 0; i < kTable; ++i) {
      const double z = normals_[i];
      table[i] = static_cast<uint16_t>(std::clamp(std::lround(center + 0.7 * z), 1L, 254L));
    }
  }
  if (c.fill == Fill::kNvScales) {
    constexpr double kCodeOf16 = 88;  // eight codes per power of two
    for (size_t i = 0; i < kTable; ++i)
      table[i] =
          static_cast<uint16_t>(std::clamp(std::lround(kCodeOf16 + 4 * double{normals_[i]}), 1L, 126L));
  }
  return table;
}

void RandomFill::fill_part(const RandomContents& c, const uint16_t* table, uint64_t first,
                           std::span<std::byte> out) const {
  if (is_normal(c.fill))
    return each_word(state_, first, out, [table](uint64_t bits) {
      uint64_t packed = 0;
      for (int i = 0; i < 4; ++i)
        packed |= static_cast<uint64_t>(table[(bits >> (16 * i)) & (kTable - 1)]) << (16 * i);
      return packed;
    });
  switch (c.fill) {
    case Fill::kMxfp4Scales:
    case Fill::kMxfp8Scales:
    case Fill::kNvScales:
      return each_word(state_, first, out, [table](uint64_t bits) {
        uint64_t packed = 0;
        for (int i = 0; i < 8; ++i)
          packed |= static_cast<uint64_t>(table[((bits >> (8 * i)) ^ (bits << (8 * (7 - i)))) & (kTable - 1)])
                    << (8 * i);
        return packed;
      });
    case Fill::kF8Codes:  // clears the top bit of the exponent
      return each_word(state_, first, out, [](uint64_t bits) { return bits & 0xBFBFBFBFBFBFBFBFu; });
    case Fill::kF8Scales: {
      const auto scale = static_cast<uint64_t>(std::lround(127 - std::log2(kF8Rms * root_of(c.width))));
      return each_word(state_, first, out, [scale](uint64_t) { return scale * 0x0101010101010101u; });
    }
    case Fill::kExpertIds:
      return each_word(state_, first, out, [](uint64_t bits) { return bits & 15; });
    case Fill::kSmallF32:
    case Fill::kTinyF32: {
      const float size = c.fill == Fill::kSmallF32 ? 0.125f : 1.0f / 256;
      return each_word(state_, first, out, [this, size](uint64_t bits) {
        const float pair[2] = {size * normals_[bits & (kTable - 1)],
                               size * normals_[(bits >> 16) & (kTable - 1)]};
        uint64_t packed;
        std::memcpy(&packed, pair, 8);
        return packed;
      });
    }
    case Fill::kF8ScalesF32:
    case Fill::kNvRowScales: {
      const double rms = c.fill == Fill::kF8ScalesF32 ? kF8Rms : kCodeRms * 18;  // 18 is the rms of kNvScales
      const auto size = static_cast<float>(1 / (rms * root_of(c.width)));
      return each_word(state_, first, out, [this, size](uint64_t bits) {
        const float pair[2] = {size * std::exp2(normals_[bits & (kTable - 1)] / 4),
                               size * std::exp2(normals_[(bits >> 16) & (kTable - 1)] / 4)};
        uint64_t packed;
        std::memcpy(&packed, pair, 8);
        return packed;
      });
    }
    default:  // kMxfp4Codes
      return each_word(state_, first, out, [](uint64_t bits) { return bits; });
  }
}

void RandomFill::fill(const RandomContents& c, uint64_t first, std::span<std::byte> out, Workers& workers) {
  const bool tabled = is_normal(c.fill) || c.fill == Fill::kMxfp4Scales || c.fill == Fill::kMxfp8Scales ||
                      c.fill == Fill::kNvScales;
  const uint16_t* table = tabled ? table_of(c).data() : nullptr;
  const auto bytes = static_cast<int64_t>(out.size());
  const auto part = [&](int64_t i) {
    const int64_t begin = i * kPart, end = std::min(bytes, begin + kPart);
    fill_part(c, table, first + static_cast<uint64_t>(begin / 8),
              out.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  };
  const int64_t parts = (bytes + kPart - 1) / kPart;
  if (parts == 1) return part(0);  // too small to share
  workers.run(parts, part);
}

}  // namespace sluice
