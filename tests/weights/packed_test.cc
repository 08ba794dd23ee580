#include "weights/packed.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/random.h"
#include "ops/op.h"

namespace sluice::test {
namespace {

// `experts` matrices in a checkpoint's order, one after the other, and buffers for their panels.
struct Experts {
  Experts(const PackedMatrix& matrix, int64_t experts, int64_t shift = 0) : m(matrix) {
    const bool fp4 = m.w == DType::kE2M1;
    rows = (m.gated ? 2 : 1) * m.features;
    row_bytes = bytes_of(m.w, m.width), blocks = fp4 ? m.width / kMxBlock : 0;
    const PackedSizes s = packed_sizes(m);
    Random random(7);
    // With `shift`, tensors are unaligned, because checkpoints promise no alignment.
    w.resize(static_cast<size_t>(experts * rows * row_bytes + shift));
    scales.resize(static_cast<size_t>(experts * rows * blocks + shift));
    const uint64_t finite = fp4 ? 0xFF : 0xBF;  // an exponent's top bit stays clear
    for (uint8_t& b : w) b = static_cast<uint8_t>(random.bits() & finite);
    for (uint8_t& b : scales) b = static_cast<uint8_t>(random.integer(0, 254));
    first_w = w.data() + shift, first_scale = scales.data() + shift;
    panels.resize(static_cast<size_t>(experts * s.code_bytes));
    panel_scales.resize(static_cast<size_t>(experts * s.scale_bytes));
    auto made = packed_experts(
        m, experts, make_tensor(panels.data(), DType::kU8, {experts, s.code_bytes}),
        fp4 ? make_tensor(panel_scales.data(), DType::kU8, {experts, s.scale_bytes}) : Tensor{});
    EXPECT_TRUE(made.ok()) << made.status().message;
    packed = std::move(made).value();
  }
  // Gates and ups as separate spans, located according to `gate_order`.
  MatrixSource source(int64_t expert) const {
    const auto span = [&](bool up) {
      const int64_t step = m.gated && m.gate_order == GateOrder::kInterleaved ? 2 : 1;
      const int64_t first = expert * rows + (m.gated ? gated_row(m.gate_order, m.features, 0, up) : 0);
      return RowSpan{.rows = m.features,
                     .w = reinterpret_cast<const std::byte*>(first_w) + first * row_bytes,
                     .stride = step * row_bytes,
                     .scales = reinterpret_cast<const std::byte*>(first_scale) + first * blocks,
                     .scale_stride = step * blocks,
                     .first_row = first - expert * rows,
                     .row_step = step,
                     .expert = expert};
    };
    return m.gated ? MatrixSource{{span(false)}, {span(true)}} : MatrixSource{{span(false)}, {}};
  }
  Status pack_all(int threads) {
    for (int64_t e = 0; e < packed.header.experts; ++e) {
      const Status status = pack_expert(&packed, e, source(e), threads, CheckFirst::kNo);
      if (!status.ok()) return status;
    }
    return {};
  }
  PackedMatrix m;
  int64_t rows = 0, row_bytes = 0, blocks = 0;
  std::vector<uint8_t> w, scales, panels, panel_scales;
  const uint8_t *first_w = nullptr, *first_scale = nullptr;
  PackedExperts packed;
};

std::vector<PackedMatrix> matrices() {
  std::vector<PackedMatrix> out = {
      {.features = 50, .width = 96, .gated = true, .w = DType::kE2M1},
      {.features = 300, .width = 64, .gated = true, .gate_order = GateOrder::kGateFirst, .w = DType::kE2M1},
      {.features = 33, .width = 32, .w = DType::kE2M1},
      {.features = 20, .width = 67, .gated = true, .gate_order = GateOrder::kUpFirst, .w = DType::kBF16},
      {.features = 290, .width = 31, .w = DType::kBF16}};
  for (size_t i = 0, panels = out.size(); i < panels; ++i) {
    out.push_back(out[i]);
    out.back().layout = WeightLayout::kFragments;
  }
  return out;
}

TEST(Packed, UnpackGivesTheSourceBytesBackOnAnyNumberOfThreads) {
  for (const PackedMatrix& m : matrices()) {
    std::vector<uint64_t> prints;
    for (int threads : {1, 3}) {
      Experts x(m, 3, 1);
      ASSERT_TRUE(x.pack_all(threads).ok());
      prints.push_back(x.packed.header.fingerprint);
      EXPECT_TRUE(verify_bytes(x.packed, threads).ok());
      for (int64_t e = 0; e < 3; ++e) {
        std::vector<uint8_t> w(static_cast<size_t>(x.rows * x.row_bytes) + 2),
            scales(static_cast<size_t>(x.rows * x.blocks));
        const RowMajorWeights to{
            make_tensor(w.data(), m.w, {x.rows, m.width}),
            x.blocks ? make_tensor(scales.data(), DType::kU8, {x.rows, x.blocks}) : Tensor{}};
        const Status status = unpack_expert(x.packed, e, to);
        ASSERT_TRUE(status.ok()) << status.message;
        EXPECT_EQ(std::memcmp(w.data(), x.first_w + e * x.rows * x.row_bytes,
                              static_cast<size_t>(x.rows * x.row_bytes)),
                  0);
        if (!scales.empty()) {
          EXPECT_EQ(std::memcmp(scales.data(), x.first_scale + e * x.rows * x.blocks, scales.size()), 0);
        }
      }
    }
    EXPECT_EQ(prints[0], prints[1]);
  }
}

TEST(Packed, EveryChangedBitIsDetectedExceptInPadding) {
  const PackedMatrix m{.features = 20, .width = 64, .gated = true, .w = DType::kE2M1};
  Experts x(m, 2);
  ASSERT_TRUE(x.pack_all(1).ok());
  for (size_t at : {size_t{0}, size_t{333}, size_t{2048 + 1}}) {
    x.panels[at] ^= 0x10;
    const Status status = verify_bytes(x.packed, 1);
    EXPECT_EQ(status.code, Code::kCorrupt) << at;
    EXPECT_NE(status.message.find(at < 2048 ? "expert 0: fingerprint" : "expert 1: fingerprint"),
              std::string::npos)
        << status.message;
    x.panels[at] ^= 0x10;
  }
  x.panel_scales.back() ^= 1;  // a padding lane of the last panel
  EXPECT_TRUE(verify_bytes(x.packed, 1).ok());
}

TEST(Packed, AHeaderOfAnotherKindIsRefused) {
  const PackedMatrix m{.features = 20, .width = 64, .gated = true, .w = DType::kE2M1};
  Experts x(m, 2);
  ASSERT_TRUE(verify(x.packed.header, m, 2).ok());
  const auto refused = [&](auto change, const std::string& words) {
    PackedHeader h = x.packed.header;
    change(h);
    const Status status = verify(h, m, 2);
    EXPECT_EQ(status.code, Code::kCorrupt);
    EXPECT_NE(status.message.find(words), std::string::npos) << status.message;
  };
  refused([](PackedHeader& h) { h.magic ^= 1; }, "magic");
  refused([](PackedHeader& h) { h.version = 1; }, "version: wanted 2, found 1");
  refused([](PackedHeader& h) { h.matrix.layout = WeightLayout::kRowMajor; },
          "layout: wanted panels16, found row_major");
  refused([](PackedHeader& h) { h.matrix.layout = WeightLayout::kFragments; },
          "layout: wanted panels16, found fragments");
  refused([](PackedHeader& h) { h.matrix.features = 21; },
          "wanted e2m1 20 x 64 gated, found e2m1 21 x 64 gated");
  refused([](PackedHeader& h) { h.matrix.gated = false; }, "found e2m1 20 x 64");
  refused([](PackedHeader& h) { h.matrix.w = DType::kBF16; }, "found bf16");
  refused([](PackedHeader& h) { h.experts = 3; }, "experts: wanted 2, found 3");
  refused([](PackedHeader& h) { h.code_bytes += 1; }, "bytes");
  x.packed.header.version = 9;
  EXPECT_EQ(pack_expert(&x.packed, 0, x.source(0), 1, CheckFirst::kYes).code, Code::kCorrupt);
}

TEST(Packed, AScaleOf255IsRefusedByPlaceAndAReplacementChangesNothing) {
  const PackedMatrix m{.features = 300, .width = 96, .gated = true, .w = DType::kE2M1};
  Experts x(m, 2);
  ASSERT_TRUE(x.pack_all(2).ok());
  const std::vector<uint8_t> panels = x.panels, scales = x.panel_scales;
  const uint64_t print = x.packed.header.fingerprint;
  x.w[5] ^= 0xFF;
  x.scales[static_cast<size_t>((x.rows + 401) * 3 + 2)] = 255;  // expert 1, row 401: an up
  x.scales[static_cast<size_t>((x.rows + 402) * 3 + 1)] = 255;  // a gate in the panel before
  const Status status = pack_expert(&x.packed, 1, x.source(1), 2, CheckFirst::kYes);
  EXPECT_EQ(status.code, Code::kCorrupt);
  EXPECT_NE(status.message.find("expert 1, row 402, block 1: wanted a scale of 0 to 254, found 255"),
            std::string::npos)
      << status.message;
  EXPECT_EQ(x.panels, panels);
  EXPECT_EQ(x.panel_scales, scales);
  EXPECT_EQ(x.packed.header.fingerprint, print);
  EXPECT_EQ(pack_expert(&x.packed, 1, x.source(1), 1, CheckFirst::kNo).message, status.message);
  EXPECT_EQ(pack_expert(&x.packed, 2, x.source(1), 1, CheckFirst::kNo).code, Code::kInvalidArgument);
}

class PackedIn : public testing::TestWithParam<WeightLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, PackedIn,
                         testing::Values(WeightLayout::kPanels16, WeightLayout::kFragments),
                         [](const auto& layout) { return std::string(word(layout.param)); });

TEST_P(PackedIn, AReplacedExpertEqualsAPackedOne) {
  const PackedMatrix m{.features = 50, .width = 96, .gated = true, .w = DType::kE2M1, .layout = GetParam()};
  Experts x(m, 3);
  ASSERT_TRUE(x.pack_all(1).ok());
  const void* before = x.packed.w.data;
  const uint64_t print = x.packed.header.fingerprint;
  for (size_t i = 0; i < 100; ++i) x.w[static_cast<size_t>(x.rows * x.row_bytes) + i] ^= 0x5A;  // expert 1
  ASSERT_TRUE(pack_expert(&x.packed, 1, x.source(1), 1, CheckFirst::kYes).ok());
  EXPECT_EQ(x.packed.w.data, before);
  EXPECT_NE(x.packed.header.fingerprint, print);
  const std::vector<uint8_t> panels = x.panels;
  const uint64_t replaced = x.packed.header.fingerprint;
  ASSERT_TRUE(x.pack_all(1).ok());
  EXPECT_EQ(x.panels, panels);
  EXPECT_EQ(x.packed.header.fingerprint, replaced);
}

TEST(RowSpan, ColumnsAndF8BlocksReadAsRowsOfBf16) {
  constexpr int64_t kWidth = 200;
  std::vector<std::byte> stage(2 * kWidth);
  std::vector<uint16_t> transposed(kWidth * 3);
  for (size_t i = 0; i < transposed.size(); ++i) transposed[i] = static_cast<uint16_t>(i);
  const RowSpan columns{.form = RowForm::kColumns,
                        .rows = 3,
                        .w = reinterpret_cast<std::byte*>(transposed.data()),
                        .stride = 2,
                        .step = 6};
  const auto* row = reinterpret_cast<const uint16_t*>(read_row(columns, {}, 2, kWidth, stage.data()).codes);
  for (int64_t k = 0; k < kWidth; ++k) ASSERT_EQ(row[k], k * 3 + 2);
  // 300 x 400 codes with scales per block of 128 x 128; the span begins at row 100 and column 70.
  std::vector<uint8_t> codes(300 * 400), e8m0(3 * 4);
  std::vector<float> f32(3 * 4);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37 % 126);
  for (size_t i = 0; i < e8m0.size(); ++i)
    e8m0[i] = static_cast<uint8_t>(120 + i), f32[i] = 0.5f + static_cast<float>(i);
  for (StoredType type : {StoredType::kF8E8M0, StoredType::kF32}) {
    const bool is_f32 = type == StoredType::kF32;
    const RowSpan span{.form = RowForm::kF8Blocks,
                       .rows = 150,
                       .w = reinterpret_cast<std::byte*>(codes.data()) + 100 * 400 + 70,
                       .stride = 400,
                       .scales = is_f32 ? reinterpret_cast<std::byte*>(f32.data())
                                        : reinterpret_cast<std::byte*>(e8m0.data()),
                       .scale_stride = is_f32 ? 16 : 4,
                       .scale_type = type,
                       .first_column = 70,
                       .first_row = 100};
    for (int64_t r : {0, 27, 28, 149}) {
      const auto* values = reinterpret_cast<const BF16*>(read_row(span, {}, r, kWidth, stage.data()).codes);
      for (int64_t k = 0; k < kWidth; ++k) {
        const auto block = static_cast<size_t>((100 + r) / 128 * 4 + (70 + k) / 128);
        const double scale = is_f32 ? double{f32[block]} : e8m0_value(e8m0[block]);
        const double exact = to_float(E4M3{codes[static_cast<size_t>((100 + r) * 400 + 70 + k)]}) * scale;
        ASSERT_EQ(values[k].bits, to_bf16(static_cast<float>(exact)).bits) << r << " " << k;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::test
