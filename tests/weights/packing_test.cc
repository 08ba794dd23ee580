#include "weights/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/random.h"
#include "ops/op.h"

namespace sluice {
namespace {

// One matrix in both layouts; bytes after each buffer must not be written.
struct Buffers {
  explicit Buffers(const PackedMatrix& m) : matrix(m) {
    const bool fp4 = m.w == DType::kE2M1;
    const int64_t rows = m.gated ? 2 * m.features : m.features;
    const PackedSizes s = packed_sizes(m);
    Random random(11);
    const auto fresh = [&](std::vector<uint8_t>& v, int64_t bytes) {
      v.resize(static_cast<size_t>(bytes) + 8);
      for (uint8_t& b : v) b = static_cast<uint8_t>(random.bits());
    };
    fresh(w, bytes_of(m.w, rows * m.width));
    fresh(scales, rows * (m.width / kMxBlock));
    // Codes under a NaN scale cannot be unpacked from fragments (tests/weights/fragments_test.cc), so there
    // are no NaN scales.
    if (m.layout == WeightLayout::kFragments)
      for (uint8_t& scale : scales) scale = static_cast<uint8_t>(std::min<int>(scale, 254));
    fresh(panel_w, s.code_bytes);
    fresh(panel_scales, s.scale_bytes);
    rowwise = {make_tensor(w.data(), m.w, {rows, m.width}), {}};
    panels = {make_tensor(panel_w.data(), DType::kU8, {s.code_bytes}), {}};
    if (!fp4) return;
    rowwise.scales = make_tensor(scales.data(), DType::kU8, {rows, m.width / kMxBlock});
    panels.scales = make_tensor(panel_scales.data(), DType::kU8, {s.scale_bytes});
  }
  PackedMatrix matrix;
  std::vector<uint8_t> w, scales, panel_w, panel_scales;
  RowMajorWeights rowwise;
  PackedWeights panels;
};

std::vector<PackedMatrix> matrices(WeightLayout layout) {
  std::vector<PackedMatrix> out;
  for (DType w : {DType::kBF16, DType::kE2M1}) {
    for (int64_t features : {1, 16, 17, 50}) {
      for (int64_t width :
           w == DType::kE2M1 ? std::vector<int64_t>{32, 96} : std::vector<int64_t>{1, 31, 64, 67}) {
        out.push_back({.features = features, .width = width, .w = w, .layout = layout});
        for (GateOrder order : {GateOrder::kInterleaved, GateOrder::kGateFirst, GateOrder::kUpFirst})
          out.push_back({.features = features,
                         .width = width,
                         .gated = true,
                         .gate_order = order,
                         .w = w,
                         .layout = layout});
      }
    }
  }
  return out;
}

std::string describe(const PackedMatrix& m) {
  return std::string(word(m.layout)) + " " + text(m.w) + " " + std::to_string(m.features) + " x " +
         std::to_string(m.width) + (m.gated ? " gated " + std::string(word(m.gate_order)) : "");
}

TEST(Panels, EachWeightLiesWhereTheLayoutSays) {
  for (const PackedMatrix& m : matrices(WeightLayout::kPanels16)) {
    Buffers b(m);
    ASSERT_TRUE(pack_matrix(m, b.rowwise, b.panels).ok()) << describe(m);
    const PanelShape s = panel_shape(m.features, m.gated, m.width);
    const bool fp4 = m.w == DType::kE2M1;
    int64_t wrong = 0;
    for (int64_t i = 0; i < round_up(m.features, kPanelRows); ++i) {
      for (int up = 0; up <= (m.gated ? 1 : 0); ++up) {
        const PanelRow at = panel_row(m.gated, i, up != 0);
        const int64_t row = m.gated ? gated_row(m.gate_order, m.features, i, up != 0) : i;
        for (int64_t k = 0; k < s.width; ++k) {
          const bool padding = i >= m.features || k >= m.width;
          if (fp4) {
            const NibbleAt n = panel_mxfp4_nibble(s, at, k);
            const int64_t flat = row * m.width + k;
            const int want = padding ? 0 : b.w[static_cast<size_t>(flat / 2)] >> (flat % 2 * 4) & 15;
            wrong += (b.panel_w[static_cast<size_t>(n.byte)] >> n.shift & 15) != want;
            const int want_scale = padding ? 127 : b.scales[static_cast<size_t>(flat / kMxBlock)];
            wrong +=
                b.panel_scales[static_cast<size_t>(panel_scale_index(s, m.format(), at, k))] != want_scale;
          } else {
            const int want = padding ? 0 : b.rowwise.w.as<BF16>()[row * m.width + k].bits;
            wrong += b.panels.w.as<BF16>()[panel_bf16_index(s, at, k)].bits != want;
          }
        }
      }
    }
    EXPECT_EQ(wrong, 0) << describe(m);
  }
}

TEST(Packing, UnpackInvertsPackAndNothingElseIsWritten) {
  std::vector<PackedMatrix> all = matrices(WeightLayout::kPanels16);
  for (const PackedMatrix& m : matrices(WeightLayout::kFragments)) all.push_back(m);
  for (const PackedMatrix& m : all) {
    Buffers b(m), again(m);
    const auto tail = [](const std::vector<uint8_t>& v) {
      return std::vector<uint8_t>(v.end() - 8, v.end());
    };
    const auto panel_tail = tail(b.panel_w), scale_tail = tail(b.panel_scales);
    ASSERT_TRUE(pack_matrix(m, b.rowwise, b.panels).ok()) << describe(m);
    EXPECT_EQ(tail(b.panel_w), panel_tail);
    EXPECT_EQ(tail(b.panel_scales), scale_tail);
    const auto w = b.w, scales = b.scales;
    for (size_t i = 0; i + 8 < b.w.size(); ++i) b.w[i] ^= 0xFF;
    if (m.w == DType::kE2M1)
      for (size_t i = 0; i + 8 < b.scales.size(); ++i) b.scales[i] ^= 0xFF;
    ASSERT_TRUE(unpack_matrix(m, b.panels, b.rowwise).ok());
    EXPECT_EQ(b.w, w) << describe(m);
    EXPECT_EQ(b.scales, scales) << describe(m);
  }
}

TEST(Panels, GateOrdersGiveTheSamePanels) {
  // The gate of feature i is row 2i, i or features + i; packed panels are the same for every order.
  constexpr int64_t kFeatures = 18, kWidth = 32;
  std::vector<std::vector<uint8_t>> images;
  for (GateOrder order : {GateOrder::kInterleaved, GateOrder::kGateFirst, GateOrder::kUpFirst}) {
    const PackedMatrix m{.features = kFeatures, .width = kWidth, .gated = true, .gate_order = order};
    Buffers b(m);
    for (int64_t i = 0; i < kFeatures; ++i) {
      const int64_t gate = order == GateOrder::kInterleaved ? 2 * i
                           : order == GateOrder::kGateFirst ? i
                                                            : kFeatures + i;
      const int64_t up = order == GateOrder::kInterleaved ? 2 * i + 1
                         : order == GateOrder::kGateFirst ? kFeatures + i
                                                          : i;
      for (int64_t k = 0; k < kWidth; ++k) {
        b.rowwise.w.as<BF16>()[gate * kWidth + k] = {static_cast<uint16_t>(i * 64 + k)};
        b.rowwise.w.as<BF16>()[up * kWidth + k] = {static_cast<uint16_t>(0x8000 + i * 64 + k)};
      }
    }
    ASSERT_TRUE(pack_matrix(m, b.rowwise, b.panels).ok());
    EXPECT_EQ(b.panels.w.as<BF16>()[2 * 3].bits, 3 * 64) << "panel 0 begins with the gates";
    images.emplace_back(b.panel_w.begin(), b.panel_w.end() - 8);
  }
  EXPECT_EQ(images[0], images[1]);
  EXPECT_EQ(images[0], images[2]);
}

TEST(Packing, WrongTensorsAreNamedWithWhatWasWanted) {
  const PackedMatrix m{.features = 20, .width = 64, .gated = true, .w = DType::kE2M1};
  Buffers b(m);
  const auto refused = [&](const PackedMatrix& matrix, std::string_view words) {
    const Status status = pack_matrix(matrix, b.rowwise, b.panels);
    EXPECT_EQ(status.code, Code::kInvalidArgument);
    EXPECT_NE(status.message.find(words), std::string::npos) << status.message;
    EXPECT_EQ(unpack_matrix(matrix, b.panels, b.rowwise).message, status.message);
  };
  refused({.features = 20, .width = 48, .gated = true, .w = DType::kE2M1}, "width=48");
  refused({.features = 0, .width = 64, .w = DType::kE2M1}, "features=0");
  refused({.features = 20, .width = 64, .gated = true, .w = DType::kF32}, "w=f32");
  refused({.features = 20, .width = 64, .w = DType::kE2M1}, "e2m1[20, 64]");
  refused({.features = 20, .width = 64, .gated = true, .w = DType::kBF16}, "bf16[40, 64]");
  refused({.features = 20, .width = 64, .w = DType::kE2M1, .layout = WeightLayout::kRowMajor},
          "layout panels16 or fragments");
  b.panels.scales.shape[0] -= 1;
  refused(m, "packed scales: shape: wanted u8[128], found u8[127]");
}

}  // namespace
}  // namespace sluice
