// Weights in FP8, MXFP8 and NVFP4: packed and unpacked in every layout, from tensors as checkpoints store them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cases/expert_gemm_scaled.h"
#include "ops/fragment_layout.h"
#include "weights/checkpoint.h"
#include "weights/faults.h"
#include "weights/files.h"
#include "weights/packing.h"
#include "weights/stored_matrix.h"

namespace sluice::test {
namespace {

constexpr int64_t kFeatures = 96, kWidth = 192;

// A gated matrix in the checkpoint's order, gates first, and memory for its packed form.
struct Matrix {
  Matrix(WeightFormat f, WeightLayout layout)
      : m{.features = kFeatures,
          .width = kWidth,
          .gated = true,
          .gate_order = GateOrder::kGateFirst,
          .w = f.w,
          .layout = layout,
          .scales = f.scales} {
    Random random(3);
    rows = scaled_rows(f, 2 * kFeatures, kWidth, Fill::kNormal, random);
    const auto row_of = [](int64_t feature, bool up) { return feature + (up ? kFeatures : 0); };
    if (f.scales == WeightScales::kBlocks)
      fill_block_scales(kFeatures, 2, kWidth, Fill::kNormal, row_of, &rows, random);
    const PackedSizes sizes = packed_sizes(m);
    codes.assign(static_cast<size_t>(sizes.code_bytes), 0xA5);
    scales.assign(static_cast<size_t>(sizes.scale_bytes), 0xA5);
  }
  int64_t each() const { return m.format().row_scale_bytes(kWidth); }
  RowMajorWeights rowwise() {
    return {make_tensor(rows.codes.data(), m.w, {2 * kFeatures, kWidth}),
            make_tensor(rows.scales.data(), DType::kU8, {2 * kFeatures, each()})};
  }
  PackedWeights packed() {
    return {make_tensor(codes.data(), DType::kU8, {static_cast<int64_t>(codes.size())}),
            make_tensor(scales.data(), DType::kU8, {static_cast<int64_t>(scales.size())})};
  }
  // The rows as one span for gates and one for ups.
  MatrixSource source() {
    const auto span = [&](int64_t first) {
      const int64_t bytes = bytes_of(m.w, kWidth);
      return RowSpan{.rows = kFeatures,
                     .w = reinterpret_cast<const std::byte*>(rows.codes.data()) + first * bytes,
                     .stride = bytes,
                     .scales = reinterpret_cast<const std::byte*>(rows.scales.data()) + first * each(),
                     .scale_stride = each(),
                     .first_row = first};
    };
    return {{span(0)}, {span(kFeatures)}};
  }
  Status load() {
    const auto made = pack_rows(m, source(), packed(), {});
    return made.ok() ? Status{} : made.status();
  }
  PackedMatrix m;
  ScaledRows rows;
  std::vector<uint8_t> codes, scales;
};

constexpr WeightLayout kPacked[] = {WeightLayout::kPanels16, WeightLayout::kFragments};

TEST(Formats, UnpackingRestoresEveryBit) {
  for (const WeightFormat& f : kScaledFormats)
    for (const WeightLayout layout : kPacked) {
      Matrix one(f, layout);
      // A scale of 0 of nv hides its codes.
      if (f.scales == WeightScales::kNv)
        for (int64_t row = 0; row < 2 * kFeatures; ++row)
          for (int64_t g = 0; g < kWidth / kNvBlock; ++g)
            if (one.rows.scales[static_cast<size_t>(row * one.each() + g)] == 0)
              std::memset(one.rows.codes.data() + (row * kWidth + g * kNvBlock) / 2, 0, kNvBlock / 2);
      const ScaledRows wanted = one.rows;
      ASSERT_TRUE(pack_matrix(one.m, one.rowwise(), one.packed()).ok());
      one.rows.codes.assign(one.rows.codes.size(), 0x5A),
          one.rows.scales.assign(one.rows.scales.size(), 0x5A);
      ASSERT_TRUE(unpack_matrix(one.m, one.packed(), one.rowwise()).ok());
      EXPECT_EQ(one.rows.codes, wanted.codes) << text(f) << " " << word(layout);
      EXPECT_EQ(one.rows.scales, wanted.scales) << text(f) << " " << word(layout);
    }
}

TEST(Formats, TheFingerprintIsThatOfThePackedBytes) {
  for (const WeightFormat& f : kScaledFormats)
    for (const WeightLayout layout : kPacked) {
      Matrix one(f, layout);
      if (f.scales == WeightScales::kNv) one.rows.scales[5] = 0;
      const auto loaded = pack_rows(one.m, one.source(), one.packed(), {});
      ASSERT_TRUE(loaded.ok()) << loaded.status().message;
      const auto found = fingerprint(one.m, one.packed(), 1);
      ASSERT_TRUE(found.ok());
      EXPECT_EQ(found.value(), loaded.value()) << text(f) << " " << word(layout);
      one.codes[100] ^= 1;
      EXPECT_NE(fingerprint(one.m, one.packed(), 1).value(), loaded.value());
    }
}

// Every e4m3 scale of nv that is not negative, and the multiplier that kernels make of it.
TEST(Formats, ScalesOfNvBecomeExactMultipliers) {
  for (int scale = 0; scale < 0x7F; ++scale) {
    const uint8_t stored = fragment_nv_stored(static_cast<uint8_t>(scale));
    EXPECT_EQ(fragment_nv_scale(stored), scale);
    if (scale == 0) continue;  // its codes are zeros
    EXPECT_EQ(std::ldexp(double{to_float(BF16{fragment_nv_multiplier(stored)})}, -119),
              double{to_float(E4M3{static_cast<uint8_t>(scale)})});
  }
  for (const int scale : {0x7F, 0x80, 0x81, 0xFE, 0xFF})
    EXPECT_EQ(fragment_nv_stored(static_cast<uint8_t>(scale)), kFragmentNvNan);
  EXPECT_TRUE(std::isinf(to_float(BF16{fragment_nv_multiplier(kFragmentNvNan)})));
}

TEST(Formats, EveryPairOfCodesOfE4m3) {
  for (uint32_t low = 0; low < 256; ++low)
    for (uint32_t high = 0; high < 256; ++high) {
      const uint32_t word = low | (high ^ 0xA5) << 8 | high << 16 | (low ^ 0x3C) << 24;
      const uint32_t codes[2][2] = {{low, high}, {high ^ 0xA5, low ^ 0x3C}};
      for (int pair = 0; pair < 2; ++pair)
        for (int half = 0; half < 2; ++half) {
          const uint32_t code = codes[pair][half], bits = fragment_pair8(word, pair) >> (16 * half) & 0xffff;
          ASSERT_EQ(bits, (code & 0x80) << 8 | (code & 0x7F) << 4) << code;
          if ((code & 0x7F) == 0x7F) continue;  // NaN: the row's factor is NaN
          ASSERT_EQ(std::ldexp(double{to_float(BF16{static_cast<uint16_t>(bits)})}, 120),
                    double{to_float(E4M3{static_cast<uint8_t>(code)})});
        }
    }
}

struct Fault {
  WeightFormat format;
  const char* named;  // what the error says
  void (*plant)(Matrix& one);
};
void put(Matrix& one, int64_t at, float value) { std::memcpy(one.rows.scales.data() + at, &value, 4); }

TEST(Formats, FaultsAreNamed) {
  constexpr WeightFormat kNv{DType::kE2M1, WeightScales::kNv}, kMx{DType::kE4M3, WeightScales::kMx},
      kBlocks{DType::kE4M3, WeightScales::kBlocks}, kRows{DType::kE4M3, WeightScales::kRows};
  const Fault faults[] = {
      {kMx, "row 0, block 2: wanted a scale of 0 to 254, found 255 (NaN)",
       [](Matrix& one) { one.rows.scales[2] = 255; }},
      {kMx, "row 1, column 7: wanted finite numbers, found NaN",
       [](Matrix& one) { one.rows.codes[kWidth + 7] = 0xFF; }},
      {kNv, "row 0, block 3: wanted a scale of 0 or more, found NaN",
       [](Matrix& one) { one.rows.scales[3] = 0x7F; }},
      {kNv, "row 0, block 3: wanted a scale of 0 or more, found -1",
       [](Matrix& one) { one.rows.scales[3] = 0xB8; }},
      {kNv, "row 0: wanted a finite scale, found an infinity",
       [](Matrix& one) { put(one, kWidth / kNvBlock, INFINITY); }},
      {kBlocks, "row 0, block 1: wanted a scale of magnitude 2^-60 to 2^60, found NaN",
       [](Matrix& one) { put(one, 4, NAN); }},
      {kBlocks, "row 0, block 0: wanted a scale of magnitude 2^-60 to 2^60, found 1e+30",
       [](Matrix& one) { put(one, 0, 1e30f); }},
      {kBlocks, "block 0: wanted a scale of magnitude 2^-60 to 2^60 for codes that are not zeros, found 0",
       [](Matrix& one) { put(one, 0, 0); }},
      {kRows, "row 0: wanted a finite scale, found NaN", [](Matrix& one) { put(one, 0, NAN); }},
      {kRows, "row 2, column 0: wanted finite numbers, found NaN",
       [](Matrix& one) { one.rows.codes[2 * kWidth] = 0x7F; }},
  };
  for (const Fault& fault : faults)
    for (const WeightLayout layout : kPacked) {
      Matrix one(fault.format, layout);
      fault.plant(one);
      const Status found = one.load();
      EXPECT_EQ(found.code, Code::kCorrupt);
      EXPECT_NE(found.message.find(fault.named), std::string::npos)
          << found.message << "\nwanted " << fault.named;
    }
}

// Numbers in F32 are read as bf16.
TEST(Formats, NumbersThatBf16CannotHoldAreNamed) {
  for (const RowForm form : {RowForm::kRows, RowForm::kColumns}) {
    std::vector<float> numbers{1, 2, 3, -3.4e38f};
    RowSpan span{.form = form, .type = StoredType::kF32, .rows = 2, .stride = 8};
    if (form == RowForm::kColumns) span.stride = 4, span.step = 8;
    span.w = reinterpret_cast<const std::byte*>(numbers.data());
    const std::string place = "row 1, column 1: wanted finite numbers, found ";
    EXPECT_NE(fault_text(span, {}, 1, 2).find(place + "-3.4e+38, which is too large for bf16"),
              std::string::npos)
        << fault_text(span, {}, 1, 2);
    numbers[3] = -INFINITY;
    EXPECT_NE(fault_text(span, {}, 1, 2).find(place + "an infinity"), std::string::npos);
  }
}

// Integers of a whole matrix are no packed codes.
TEST(Formats, CodesOfFourBitsHaveHalfTheWidth) {
  const TemporaryDirectory at;
  const auto bytes = [](int64_t n) { return std::vector<std::byte>(static_cast<size_t>(n)); };
  write_tensors(at.file("model.safetensors"), {{{"a.weight", StoredType::kI8, {4, 64}}, bytes(256)},
                                               {{"b.weight", StoredType::kI8, {4, 32}}, bytes(128)}});
  const auto files = Checkpoint::open(at.path()).value();
  EXPECT_FALSE(stored_format(*files, "a.weight", 4, 64));
  EXPECT_EQ(stored_format(*files, "b.weight", 4, 64), (WeightFormat{DType::kE2M1, WeightScales::kMx}));
}

// A scale of 0 with codes that are zeros is what quantisers write for an empty block.
TEST(Formats, EmptyBlocksMayHaveAScaleOfZero) {
  for (const WeightLayout layout : kPacked) {
    Matrix one({DType::kE4M3, WeightScales::kBlocks}, layout);
    for (int64_t row = 0; row < kScaleFeatures; ++row) {
      put(one, row * one.each() + 4, 0);
      for (int64_t k = kScaleColumns; k < 2 * kScaleColumns; ++k)
        one.rows.codes[static_cast<size_t>(row * kWidth + k)] = 0;
    }
    const Status loaded = one.load();
    EXPECT_TRUE(loaded.ok()) << loaded.message;
  }
}

}  // namespace
}  // namespace sluice::test
