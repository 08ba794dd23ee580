// Matrices of random weights in the published form of a format, and the same weights in bf16, which holds them exactly.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "harness/moe_files.h"
#include "weights/stored_matrix.h"

namespace sluice::test {

// The shape of a scale for rows: one for each row, in one of two shapes, or one for the matrix, in one of two shapes.
enum class RowScaleShape : uint8_t { kColumn, kVector, kScalar, kOne };

// A way to store one matrix.
struct StoredWay {
  std::string name;
  WeightFormat format;
  std::string codes = ".weight", scales = {}, row_scale = {};  // names, in place of ".weight"
  bool reciprocal = false;
  StoredType code_type = StoredType::kF8E4M3;
  StoredType scale_type = StoredType::kF32;
  RowScaleShape shape = RowScaleShape::kScalar;
  StoredType row_scale_type = StoredType::kF32;
};

inline std::vector<StoredWay> stored_ways() {
  constexpr WeightFormat kBlocks{DType::kE4M3, WeightScales::kBlocks},
      kRows{DType::kE4M3, WeightScales::kRows}, kMxfp8{DType::kE4M3, WeightScales::kMx},
      kMxfp4{DType::kE2M1, WeightScales::kMx}, kNvfp4{DType::kE2M1, WeightScales::kNv};
  using T = StoredType;
  using S = RowScaleShape;
  const auto blocks = [&](const char* name, const char* scales, T type) {
    return StoredWay{.name = name, .format = kBlocks, .scales = scales, .scale_type = type};
  };
  const auto rows = [&](const char* name, const char* scale, S shape, T type) {
    return StoredWay{
        .name = name, .format = kRows, .row_scale = scale, .shape = shape, .row_scale_type = type};
  };
  const auto mx = [&](const char* name, WeightFormat f, const char* codes, T code_type, const char* scales,
                      T type) {
    return StoredWay{.name = name,
                     .format = f,
                     .codes = codes,
                     .scales = scales,
                     .code_type = code_type,
                     .scale_type = type};
  };
  return {blocks("FP8 blocks", ".weight_scale_inv", T::kF32),
          blocks("FP8 blocks, bf16 scales", ".weight_scale_inv", T::kBF16),
          blocks("FP8 blocks, e8m0 scales", ".weight_scale_inv", T::kF8E8M0),
          blocks("FP8 blocks, scales as bytes", ".weight_scale_inv", T::kU8),
          blocks("FP8 blocks of compressed-tensors", ".weight_scale", T::kF32),
          blocks("FP8 blocks of DeepSeek V4", ".scale", T::kF32),
          rows("FP8 by channel", ".weight_scale", S::kColumn, T::kF32),
          rows("FP8 by channel, bf16 scales", ".weight_scale", S::kColumn, T::kBF16),
          rows("FP8 by channel, a vector", ".weight_scale", S::kVector, T::kF32),
          rows("FP8 by tensor", ".weight_scale", S::kScalar, T::kF32),
          rows("FP8 by tensor, one element", ".weight_scale", S::kOne, T::kF32),
          rows("FP8 of Mistral", ".qscale_weight", S::kScalar, T::kF32),
          mx("MXFP8", kMxfp8, ".weight", T::kF8E4M3, ".weight_scale_inv", T::kU8),
          mx("MXFP8 of modelopt", kMxfp8, ".weight", T::kF8E4M3, ".weight_scale", T::kU8),
          mx("MXFP4 of quark", kMxfp4, ".weight", T::kU8, ".weight_scale", T::kU8),
          mx("MXFP4 of compressed-tensors", kMxfp4, ".weight_packed", T::kU8, ".weight_scale", T::kU8),
          mx("MXFP4 of DeepSeek V4", kMxfp4, ".weight", T::kI8, ".scale", T::kF8E8M0),
          {.name = "NVFP4 of modelopt",
           .format = kNvfp4,
           .scales = ".weight_scale",
           .row_scale = ".weight_scale_2",
           .code_type = T::kU8,
           .scale_type = T::kF8E4M3},
          {.name = "NVFP4 of compressed-tensors",
           .format = kNvfp4,
           .codes = ".weight_packed",
           .scales = ".weight_scale",
           .row_scale = ".weight_global_scale",
           .reciprocal = true,
           .code_type = T::kU8,
           .scale_type = T::kF8E4M3,
           .shape = S::kOne}};
}

// Adds the tensors of a random matrix "STEM.weight" whose scales are multiplied by 2^exponent, and returns its weights in bf16.
inline RandomMatrix store_matrix(const StoredWay& way, const std::string& name, int64_t rows, int64_t width,
                                 int exponent, Random& random, std::vector<StoredTensor>* out) {
  const std::string stem = name.substr(0, name.size() - std::string(".weight").size());
  const bool fp4 = way.format.w == DType::kE2M1;
  const auto add = [&](const std::string& suffix, StoredType type, std::vector<int64_t> shape) -> auto& {
    out->push_back({{stem + suffix, type, std::move(shape)}, {}});
    auto& bytes = out->back().bytes;
    bytes.resize(static_cast<size_t>(*stored_bytes(type, out->back().what.shape)));
    return bytes;
  };
  // Writes element i as a number of the type, or as e8m0.
  const auto put = [](std::vector<std::byte>& bytes, StoredType type, int64_t i, float value) {
    if (type == StoredType::kF32) return void(std::memcpy(&bytes[static_cast<size_t>(4 * i)], &value, 4));
    const BF16 narrow = to_bf16(value);
    if (type == StoredType::kBF16) return void(std::memcpy(&bytes[static_cast<size_t>(2 * i)], &narrow, 2));
    bytes[static_cast<size_t>(i)] = static_cast<std::byte>(127 + std::ilogb(value));
  };
  // Codes.
  std::vector<float> codes;
  std::vector<std::byte> code_bytes;
  for (int64_t i = 0; i < rows * width; ++i) {
    const auto bits = static_cast<uint8_t>(random.bits());
    const uint8_t code = fp4 ? bits & 15 : bits & 0xBF;
    codes.push_back(fp4 ? kE2M1Values[code] : to_float(E4M3{code}));
    if (!fp4) code_bytes.push_back(std::byte{code});
    if (fp4 && i % 2 == 0) code_bytes.push_back(std::byte{code});
    if (fp4 && i % 2 == 1) code_bytes.back() |= std::byte(code << 4);
  }
  const bool halves = fp4 && way.code_type != StoredType::kF4;
  add(way.codes, way.code_type, {rows, halves ? width / 2 : width}) = code_bytes;
  // Scales: factors with three significant bits at most, or powers of two.
  const int size = -static_cast<int>(std::lround(std::log2((fp4 ? 3 : .6) * std::sqrt(double(width)))));
  const bool bytes = way.scale_type == StoredType::kF8E8M0 || way.scale_type == StoredType::kU8;
  const auto factor = [&](int more, bool power) {
    const int quarter = power ? 0 : static_cast<int>(random.integer(0, 3));
    const int near = power ? static_cast<int>(random.integer(-1, 1)) : 0;
    return std::ldexp(1 + quarter / 4.f, size + exponent + near + more);
  };
  const WeightFormat f = way.format;
  std::vector<float> scale_of(static_cast<size_t>(rows * width), 1);
  const auto each = [&](auto value) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < width; ++k) scale_of[static_cast<size_t>(r * width + k)] *= value(r, k);
  };
  if (f.scales == WeightScales::kBlocks || f.scales == WeightScales::kMx) {
    const int64_t high = f.scales == WeightScales::kMx ? 1 : kF8Block;
    const int64_t wide = f.scales == WeightScales::kMx ? kMxBlock : kF8Block;
    const int64_t down = (rows + high - 1) / high, across = (width + wide - 1) / wide;
    std::vector<float> values;
    auto& stored = add(way.scales, way.scale_type, {down, across});
    for (int64_t i = 0; i < down * across; ++i) {
      values.push_back(factor(0, bytes));
      put(stored, way.scale_type, i, values.back());
    }
    each([&](int64_t r, int64_t k) { return values[static_cast<size_t>(r / high * across + k / wide)]; });
  }
  if (f.scales == WeightScales::kNv) {
    const int64_t across = width / kNvBlock;
    auto& stored = add(way.scales, way.scale_type, {rows, across});
    for (std::byte& b : stored) b = static_cast<std::byte>(random.integer(40, 72));  // 2^-2 to 2^2
    const std::vector<std::byte> scales = stored;
    each([&](int64_t r, int64_t k) {
      return to_float(E4M3{static_cast<uint8_t>(scales[static_cast<size_t>(r * across + k / kNvBlock)])});
    });
  }
  if (!way.row_scale.empty()) {
    const bool many = way.shape == RowScaleShape::kColumn || way.shape == RowScaleShape::kVector;
    const std::vector<int64_t> shape = way.shape == RowScaleShape::kColumn   ? std::vector<int64_t>{rows, 1}
                                       : way.shape == RowScaleShape::kVector ? std::vector<int64_t>{rows}
                                       : way.shape == RowScaleShape::kOne    ? std::vector<int64_t>{1}
                                                                             : std::vector<int64_t>{};
    auto& stored = add(way.row_scale, way.row_scale_type, shape);
    std::vector<float> values;
    for (int64_t r = 0; r < (many ? rows : 1); ++r) {
      values.push_back(factor(0, f.scales == WeightScales::kNv));
      put(stored, way.row_scale_type, r, way.reciprocal ? 1 / values.back() : values.back());
    }
    each([&](int64_t r, int64_t) { return values[static_cast<size_t>(many ? r : 0)]; });
  }
  // A scale of activations, which nothing reads.
  auto& unread = add(fp4 ? ".input_global_scale" : ".input_scale", StoredType::kF32, {});
  put(unread, StoredType::kF32, 0, 1e30f);
  RandomMatrix m{.rows = rows, .width = width, .fp4 = false, .w = {}, .scales = {}};
  m.w.resize(static_cast<size_t>(2 * rows * width));
  for (size_t i = 0; i < codes.size(); ++i) {
    const BF16 value = to_bf16(codes[i] * scale_of[i]);
    EXPECT_EQ(to_float(value), codes[i] * scale_of[i]) << "bf16 does not hold the weight";
    std::memcpy(&m.w[2 * i], &value, 2);
  }
  return m;
}

// A layer with its experts in the given format, and the same layer in bf16.
struct StoredLayer {
  MoeConfig config;  // of the quantized layer
  RandomMoe plain;   // config in bf16
  std::vector<StoredTensor> tensors;

  StoredLayer(const StoredWay& way, MoeNaming naming, MoeConfig c, uint64_t seed)
      : config(with(c, way.format)), plain(with(c, {}), seed) {
    Random random(seed + 1);
    const MoeNames& n = moe_names(naming);
    std::vector<StoredTensor> quantized;
    // Gate, up and down are 2^3, 2^-3 and 1 times as large, so a reciprocal in place of a factor is off by 64.
    const auto one = [&](std::string_view pattern, int64_t e, int exponent, RandomMatrix* m) {
      if (m->rows == 0) return;
      *m = store_matrix(way, tensor_name(pattern, 0, e), m->rows, m->width, exponent, random, &quantized);
    };
    for (size_t e = 0; e < plain.up.size(); ++e) {
      const auto number = static_cast<int64_t>(e);
      if (!plain.gate.empty()) one(n.gate, number, 3, &plain.gate[e]);
      one(n.up, number, -3, &plain.up[e]);
      one(n.down, number, 0, &plain.down[e]);
    }
    one(n.shared_gate, 0, 3, &plain.shared_gate);
    one(n.shared_up, 0, -3, &plain.shared_up);
    one(n.shared_down, 0, 0, &plain.shared_down);
    const auto is_matrix = [&](const std::string& name) {
      return name.find(".experts.") != std::string::npos || name.find("shared_expert") != std::string::npos;
    };
    for (StoredTensor& t : plain.tensors(naming, 0))
      if (!is_matrix(t.what.name)) tensors.push_back(std::move(t));
    for (StoredTensor& t : quantized) tensors.push_back(std::move(t));
  }

 private:
  static MoeConfig with(MoeConfig c, WeightFormat f) {
    c.expert_w = f.w, c.expert_scales = f.scales;
    if (c.shared_intermediate > 0) c.shared_w = f.w, c.shared_scales = f.scales;
    return c;
  }
};

}  // namespace sluice::test
