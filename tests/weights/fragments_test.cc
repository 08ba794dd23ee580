// Layout fragments: packed bytes, read as a warpgroup reads them, compared with the checkpoint's.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "ops/fragment_layout.h"
#include "ops/op.h"
#include "weights/packing.h"

namespace sluice {
namespace {

PackedMatrix fragments(int64_t features, int64_t width, bool gated, GateOrder order = {},
                       DType w = DType::kE2M1) {
  return {.features = features,
          .width = width,
          .gated = gated,
          .gate_order = order,
          .w = w,
          .layout = WeightLayout::kFragments};
}

// A matrix of random bytes in a checkpoint's order, and buffers for its packed form.
struct Packed {
  explicit Packed(const PackedMatrix& matrix) : m(matrix), rows((m.gated ? 2 : 1) * m.features) {
    const PackedSizes sizes = packed_sizes(m);
    Random random(5);
    w.resize(static_cast<size_t>(bytes_of(m.w, rows * m.width)));
    for (uint8_t& b : w) b = static_cast<uint8_t>(random.bits());
    scales.resize(static_cast<size_t>(rows * (m.width / kMxBlock)));
    for (uint8_t& s : scales)
      s = static_cast<uint8_t>(random.integer(0, 9) ? random.integer(90, 140) : random.integer(0, 255));
    codes.assign(static_cast<size_t>(sizes.code_bytes), 0xA5);
    stored.assign(static_cast<size_t>(sizes.scale_bytes), 0xA5);
  }
  RowMajorWeights rowwise() {
    if (m.w == DType::kBF16) return {make_tensor(w.data(), m.w, {rows, m.width}), {}};
    return {make_tensor(w.data(), m.w, {rows, m.width}),
            make_tensor(scales.data(), DType::kU8, {rows, m.width / kMxBlock})};
  }
  PackedWeights packed() {
    if (m.w == DType::kBF16)
      return {make_tensor(codes.data(), DType::kU8, {static_cast<int64_t>(codes.size())}), {}};
    return {make_tensor(codes.data(), DType::kU8, {static_cast<int64_t>(codes.size())}),
            make_tensor(stored.data(), DType::kU8, {static_cast<int64_t>(stored.size())})};
  }
  int code(int64_t row, int64_t k) const {
    return w[static_cast<size_t>((row * m.width + k) / 2)] >> (k % 2 * 4) & 15;
  }
  int scale(int64_t row, int64_t k) const {
    return scales[static_cast<size_t>(row * (m.width / kMxBlock) + k / kMxBlock)];
  }
  int top(int64_t row) const {
    int out = 0;
    for (int64_t k = 0; k < m.width; k += kMxBlock)
      if (scale(row, k) != 255) out = std::max(out, scale(row, k));
    return out;
  }
  PackedMatrix m;
  int64_t rows;
  std::vector<uint8_t> w, scales, codes, stored;
};

// The checkpoint's row for row rho of block rb, as the layout's documentation defines it; -1: padding.
int64_t checkpoint_row(const PackedMatrix& m, int64_t rb, int64_t rho) {
  if (!m.gated) return 64 * rb + rho < m.features ? 64 * rb + rho : -1;
  const int64_t slab = rho / 16, feature = 32 * rb + 8 * slab + rho % 8;
  const bool up = rho % 16 >= 8;
  if (feature >= m.features) return -1;
  if (m.gate_order == GateOrder::kInterleaved) return 2 * feature + up;
  return feature + ((m.gate_order == GateOrder::kGateFirst) == up ? m.features : 0);
}

// The product of two bf16 numbers as the device rounds it: to nearest even, with subnormals.
double times(uint32_t a, uint32_t b) {
  const auto value = [](uint32_t bits) { return double{to_float(BF16{static_cast<uint16_t>(bits)})}; };
  return to_float(to_bf16(static_cast<float>(value(a) * value(b))));
}

// The registers that a kernel decodes from a word: four, with two bf16 numbers each.
std::array<uint32_t, 4> decode(uint32_t w) {
  constexpr uint32_t kMask = 0x81C081C0;
  return {w & kMask, w << 4 & kMask, (w << 10 | w >> 22) & kMask, (w << 6 ^ w >> 2) & kMask};
}

// Calls f(checkpoint row or -1, k, weight, top) for every element that a warpgroup decodes.
template <class F>
void for_each_decoded(const Packed& p, F f) {
  const int64_t row_blocks = (p.rows + 63) / 64, k_blocks = (p.m.width + 63) / 64;
  for (int64_t block = 0; block < row_blocks * k_blocks; ++block) {
    const uint8_t* scales = p.stored.data() + block * 128;
    for (int64_t i = 0; i < 128 * 4 * 4 * 2; ++i) {
      const int64_t t = i / 32, j = i / 8 % 4, half = i % 2, s = t / 32, l = t % 32;
      const auto pair = static_cast<size_t>(i / 2 % 4);
      const int64_t h = pair % 2, r = 16 * s + l / 4 + 8 * h;
      const int64_t c = 16 * j + 2 * (l % 4) + (pair >= 2 ? 8 : 0);
      uint32_t word = 0;
      std::memcpy(&word, p.codes.data() + block * 2048 + 16 * t + 4 * j, sizeof word);
      const uint32_t operand = decode(word)[pair] >> (16 * half) & 0xFFFF;
      const uint32_t field = scales[4 * (8 * s + l / 4) + 2 * (c / 32) + h];
      const int top = p.stored[static_cast<size_t>(row_blocks * k_blocks * 128 + block / k_blocks * 64 + r)];
      f(checkpoint_row(p.m, block / k_blocks, r), block % k_blocks * 64 + c + half,
        std::ldexp(times(operand, field << 7), top - 128), top);
    }
  }
}

// Every element occurs once, and is exact if its scale is at most 2^133 below the row's largest scale.
// Otherwise the error is less than half of the smallest bf16.
void expect_decodes(const Packed& p) {
  int64_t wrong = 0, seen = 0;
  for_each_decoded(p, [&](int64_t row, int64_t k, double got, int top) {
    if (row < 0 || k >= p.m.width) {
      wrong += got != 0;
      return;
    }
    ++seen;
    const int scale = p.scale(row, k);
    wrong += top != p.top(row);
    if (scale == 255) {
      wrong += !std::isnan(got);
      return;
    }
    const double want = std::ldexp(double{kE2M1Values[static_cast<size_t>(p.code(row, k))]}, scale - 127);
    if (scale - top >= -133) {
      wrong += got != want || std::signbit(got) != std::signbit(want);
    } else {
      wrong += !(std::abs(got - want) <= std::ldexp(1.0, -134 + top - 128));
    }
  });
  EXPECT_EQ(seen, p.rows * p.m.width);
  EXPECT_EQ(wrong, 0) << p.m.features << " x " << p.m.width;
}

std::vector<PackedMatrix> matrices(DType w, std::initializer_list<int64_t> widths) {
  std::vector<PackedMatrix> out;
  for (int64_t features : {1, 48, 96, 65})
    for (int64_t width : widths) {
      out.push_back(fragments(features, width, false, {}, w));
      for (GateOrder order : {GateOrder::kInterleaved, GateOrder::kGateFirst, GateOrder::kUpFirst})
        out.push_back(fragments(features, width, true, order, w));
    }
  return out;
}

TEST(Fragments, AWarpgroupDecodesTheCheckpointsWeights) {
  std::vector<PackedMatrix> all = matrices(DType::kE2M1, {32, 96, 192});
  all.push_back(fragments(1440, 96, true));
  all.push_back(fragments(70, 2880, true, GateOrder::kGateFirst));
  all.push_back(fragments(96, 1440, false));
  for (const PackedMatrix& m : all) {
    Packed p(m);
    ASSERT_TRUE(pack_matrix(m, p.rowwise(), p.packed()).ok());
    expect_decodes(p);
  }
}

TEST(Fragments, EveryCodeUnderEveryScale) {
  // One scale per row, so that every weight is exact; and all scales in one row.
  Packed alone(fragments(256, 32, false)), together(fragments(64, 8192, false));
  for (int64_t row = 0; row < 256; ++row) alone.scales[static_cast<size_t>(row)] = static_cast<uint8_t>(row);
  for (size_t i = 0; i < together.scales.size(); ++i) together.scales[i] = static_cast<uint8_t>(i % 256);
  for (Packed* p : {&alone, &together}) {
    for (size_t i = 0; i < p->w.size(); ++i)
      p->w[i] = static_cast<uint8_t>(2 * i % 16 | (2 * i + 1) % 16 << 4);
    ASSERT_TRUE(pack_matrix(p->m, p->rowwise(), p->packed()).ok());
    expect_decodes(*p);
  }
}

TEST(Fragments, EachByteLiesWhereTheLayoutSays) {
  for (const PackedMatrix& m : matrices(DType::kE2M1, {32, 96, 192})) {
    Packed p(m);
    ASSERT_TRUE(pack_matrix(m, p.rowwise(), p.packed()).ok());
    const FragmentShape s = fragment_shape(m.features, m.gated, m.width);
    int64_t wrong = 0;
    for (int64_t i = 0; i < s.row_blocks * 64; ++i) {
      const FragmentRow at{i / 64, i % 64};
      const int64_t row = checkpoint_row(m, at.block, at.row);
      const int top = row < 0 ? 0 : p.top(row);
      wrong += p.stored[static_cast<size_t>(fragment_top_index(s, at))] != top;
      if (row >= 0) {
        const FragmentFeature f = fragment_feature(m.gated, at);
        const FragmentRow back = fragment_row(m.gated, f.feature, f.up);
        wrong += back.block != at.block || back.row != at.row;
      }
      for (int64_t k = 0; k < s.k_blocks * 64; ++k) {
        const bool padding = row < 0 || k >= m.width;
        const int scale = padding ? 0 : p.scale(row, k);
        const FragmentCode c = fragment_code(s, at, k);
        uint32_t word = 0;
        std::memcpy(&word, p.codes.data() + 4 * c.word, sizeof word);
        const int code = static_cast<int>(fragment_code_of(fragment_pair(word, c.pair), c.half));
        wrong += code != (padding || scale == 255 ? 0 : p.code(row, k));
        const int stored = p.stored[static_cast<size_t>(fragment_scale_index(s, at, k))];
        wrong += stored != (padding ? 0 : scale == 255 ? 255 : 254 + scale - top);
      }
    }
    for (int64_t i = s.top_begin(m.format()) + s.row_blocks * 64; i < s.scale_bytes(m.format()); ++i)
      wrong += p.stored[static_cast<size_t>(i)] != 0;
    EXPECT_EQ(s.scale_bytes(m.format()) % 128, 0);
    EXPECT_EQ(wrong, 0) << m.features << " x " << m.width;
  }
}

TEST(Fragments, Bf16BlocksAreSwizzledTiles) {
  for (const PackedMatrix& m : matrices(DType::kBF16, {1, 40, 64, 77, 130})) {
    Packed p(m);
    ASSERT_TRUE(pack_matrix(m, p.rowwise(), p.packed()).ok());
    const int64_t k_blocks = (m.width + 63) / 64;
    const FragmentShape s = fragment_shape(m.features, m.gated, m.width);
    ASSERT_EQ(static_cast<int64_t>(p.codes.size()), (p.rows + 63) / 64 * k_blocks * 8192);
    int64_t wrong = 0;
    for (int64_t block = 0; block < s.blocks(); ++block) {
      for (int64_t i = 0; i < 64 * 64; ++i) {
        const int64_t rho = i / 64, k = i % 64, row = checkpoint_row(m, block / k_blocks, rho);
        const int64_t column = block % k_blocks * 64 + k;
        const int64_t byte = block * 8192 + 128 * rho + 16 * (k / 8 ^ rho % 8) + 2 * (k % 8);
        uint16_t got = 0, want = 0;
        std::memcpy(&got, p.codes.data() + byte, sizeof got);
        if (row >= 0 && column < m.width)
          std::memcpy(&want, p.w.data() + 2 * (row * m.width + column), sizeof want);
        wrong += got != want;
        wrong += fragment_bf16_index(s, {block / k_blocks, rho}, column) != byte / 2;
      }
    }
    EXPECT_EQ(wrong, 0) << m.features << " x " << m.width;
  }
}

TEST(Fragments, ANanScaleIsKeptAndItsCodesAreZero) {
  const PackedMatrix m = fragments(40, 96, true);
  Packed p(m);
  for (uint8_t& s : p.scales) s = static_cast<uint8_t>(s == 255 ? 254 : s);
  p.scales[7] = 255;  // row 2, block 1
  ASSERT_TRUE(pack_matrix(m, p.rowwise(), p.packed()).ok());
  std::vector<uint8_t> want = p.w;
  for (size_t byte = 0; byte < 16; ++byte) want[2 * 48 + 16 + byte] = 0;
  const std::vector<uint8_t> scales = p.scales;
  p.w.assign(p.w.size(), 0x77), p.scales.assign(p.scales.size(), 0x77);
  ASSERT_TRUE(unpack_matrix(m, p.packed(), p.rowwise()).ok());
  EXPECT_EQ(p.w, want);
  EXPECT_EQ(p.scales, scales);
}

}  // namespace
}  // namespace sluice
