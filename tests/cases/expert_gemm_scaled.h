// Experts in formats other than bf16 and MXFP4, made in the checkpoint's order and packed by weights/packing.h.
#pragma once
#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "harness/cases.h"
#include "ops/expert_gemm.h"
#include "weights/packing.h"

namespace sluice::test {

inline constexpr WeightFormat kScaledFormats[] = {{DType::kE2M1, WeightScales::kNv},
                                                  {DType::kE4M3, WeightScales::kMx},
                                                  {DType::kE4M3, WeightScales::kBlocks},
                                                  {DType::kE4M3, WeightScales::kRows}};
inline WeightFormat random_format(Random& r) {
  if (r.integer(0, 2) > 0) return {r.integer(0, 1) ? DType::kBF16 : DType::kE2M1};
  return kScaledFormats[r.integer(0, 3)];
}

// One expert in the checkpoint's order.
struct ScaledRows {
  std::vector<uint8_t> codes, scales;
};

// Codes of every value but NaN, with weights of a root mean square of about 0.1. kSomeNan: some NaN codes and scales. kTiny,
// kHuge: the extremes of e8m0. kAllEqual: codes of 1, and scales of a wide range.
inline ScaledRows scaled_rows(WeightFormat f, int64_t rows, int64_t width, Fill fill, Random& random) {
  ScaledRows out;
  out.codes.resize(static_cast<size_t>(bytes_of(f.w, rows * width)));
  for (uint8_t& byte : out.codes) {
    byte = static_cast<uint8_t>(random.bits());
    if (fill == Fill::kAllEqual) byte = f.w == DType::kE2M1 ? 0x22 : 0x38;
    if (f.w == DType::kE4M3 && (byte & 0x7F) == 0x7F && fill != Fill::kSomeNan) byte ^= 1;
  }
  const int64_t each = f.row_scale_bytes(width);
  out.scales.resize(static_cast<size_t>(rows * each));
  const bool nans = fill == Fill::kSomeNan;
  const auto real = [&](double middle) {  // of any sign, over seven powers of two
    if (nans && random.integer(0, 15) == 0) return std::numeric_limits<float>::quiet_NaN();
    return static_cast<float>((random.integer(0, 1) ? 1 : -1) * middle * (1 + random.uniform()) *
                              std::ldexp(1.0, static_cast<int>(random.integer(-3, 3))));
  };
  for (int64_t row = 0; row < rows; ++row) {
    uint8_t* to = out.scales.data() + row * each;
    for (int64_t i = 0; i < f.column_scales(width); ++i) {
      if (f.scales == WeightScales::kMx) {
        int64_t scale = random.integer(113, 119);
        if (fill == Fill::kTiny) scale = random.integer(0, 6);
        if (fill == Fill::kHuge) scale = random.integer(242, 254);
        if (fill == Fill::kAllEqual) scale = random.integer(60, 200);
        to[i] = static_cast<uint8_t>(nans && random.integer(0, 15) == 0 ? 255 : scale);
      } else if (f.scales == WeightScales::kNv) {
        to[i] =
            static_cast<uint8_t>(fill == Fill::kAllEqual ? random.integer(0, 126) : random.integer(40, 60));
        if (random.integer(0, 31) == 0) to[i] = static_cast<uint8_t>(random.integer(0, 8));
        if (nans && random.integer(0, 15) == 0) to[i] = static_cast<uint8_t>(random.integer(126, 255));
      }
    }
    if (f.has_row_scale()) {
      const float scale = real(f.scales == WeightScales::kNv ? 0x1p-5 : 0x1p-10);
      std::memcpy(to + f.column_scales(width), &scale, sizeof scale);
    }
  }
  return out;
}

// blocks: the same scales in the rows of 32 features, and other ones in every 64 columns, or in blocks of 128 columns as checkpoints have
// them, of which the first may be cut, as in a slice of a matrix. `row_of(feature, up)`: the row of the matrix.
template <class RowOf>
void fill_block_scales(int64_t features, int halves, int64_t width, Fill fill, RowOf row_of, ScaledRows* rows,
                       Random& random) {
  const WeightFormat f{DType::kE4M3, WeightScales::kBlocks};
  const int64_t each = f.row_scale_bytes(width), columns = random.integer(1, 2),
                cut = columns > 1 && random.integer(0, 3) == 0;
  for (int up = 0; up < halves; ++up)
    for (int64_t first = 0; first < features; first += kScaleFeatures) {
      float scale = 0;
      for (int64_t i = 0; i < f.column_scales(width); ++i) {
        if (i == 0 || (i + cut) % columns == 0) {
          const int spread = fill == Fill::kAllEqual ? 40 : 3;
          scale = static_cast<float>((random.integer(0, 7) ? 1 : -1) * (1 + random.uniform()) *
                                     std::ldexp(1.0, static_cast<int>(random.integer(-spread, spread)) - 10));
          if (fill == Fill::kSomeNan && random.integer(0, 15) == 0)
            scale = random.integer(0, 1) ? std::numeric_limits<float>::quiet_NaN() : 0x1p80f;
        }
        for (int64_t feature = first; feature < std::min(features, first + kScaleFeatures); ++feature)
          std::memcpy(rows->scales.data() + row_of(feature, up != 0) * each + 4 * i, &scale, sizeof scale);
      }
    }
}

// One expert of a packed layout.
inline void fill_scaled_expert(const ExpertGemm::Problem& p, Fill fill, const Tensor& w, const Tensor& scales,
                               Random& random) {
  const WeightFormat f = ExpertGemm::format(p);
  const bool gated = is_gated(p.act);
  const int64_t rows = ExpertGemm::weight_rows(p);
  ScaledRows one = scaled_rows(f, rows, p.width, fill, random);
  const auto row_of = [&](int64_t feature, bool up) {
    return gated ? gated_row(p.gate_order, p.features, feature, up) : feature;
  };
  if (f.scales == WeightScales::kBlocks)
    fill_block_scales(p.features, gated ? 2 : 1, p.width, fill, row_of, &one, random);
  if (p.layout == WeightLayout::kRowMajor) {
    std::memcpy(w.data, one.codes.data(), one.codes.size());
    std::memcpy(scales.data, one.scales.data(), one.scales.size());
    return;
  }
  const PackedMatrix matrix{.features = p.features,
                            .width = p.width,
                            .gated = gated,
                            .gate_order = p.gate_order,
                            .w = p.w,
                            .layout = p.layout,
                            .scales = p.scales};
  const Status packed =
      pack_matrix(matrix,
                  {make_tensor(one.codes.data(), p.w, {rows, p.width}),
                   make_tensor(one.scales.data(), DType::kU8, {rows, f.row_scale_bytes(p.width)})},
                  {w, scales});
  if (!packed.ok()) std::abort();  // the problem was validated
}

inline void fill_scaled_experts(const ExpertGemm::Problem& p, Fill fill, ExpertGemm::Args& a,
                                Random& random) {
  const auto each = [&](const Tensor& all, int64_t e) {
    const int64_t bytes = bytes_of(all.dtype, elements_of(all)) / p.experts;
    return make_tensor(all.as<uint8_t>() + e * bytes, DType::kU8, {bytes});
  };
  for (int64_t e = 0; e < p.experts; ++e)
    fill_scaled_expert(p, fill, each(a.w, e), each(a.w_scale, e), random);
}

}  // namespace sluice::test
