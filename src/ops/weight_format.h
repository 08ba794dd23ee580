// Formats of expert weights: the type of the codes, and the scales that multiply them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/fields.h"
#include "base/host_device.h"

namespace sluice {

// The scales of a row of weights, stored as unaligned little-endian bytes.
enum class WeightScales : uint8_t {
  // One e8m0 per 32 columns: u8[width / 32]. e2m1: MXFP4, e4m3: MXFP8. bf16 weights have no scales and use this value.
  kMx,
  // NVFP4: one e4m3 per 16 columns and one f32 per row: u8[width / 16], f32. The weight is code * e4m3 * f32.
  kNv,
  // FP8 per block: one f32 per 64 columns, f32[width / 64 rounded up]. Packing into fragments requires equal scales in the rows
  // of each 32 features, separately for gates and ups, as in blocks of 128 x 128 or any multiple of 32 x 64.
  kBlocks,
  // FP8 per channel or per tensor: one f32 per row.
  kRows,
};
template <>
struct EnumWords<WeightScales> {
  static constexpr std::string_view words[] = {"mx", "nv", "blocks", "rows"};
};

constexpr int64_t kNvBlock = 16;        // columns that share an e4m3 scale
constexpr int64_t kScaleColumns = 64;   // columns that share a scale of kBlocks
constexpr int64_t kScaleFeatures = 32;  // features that share a scale of kBlocks

struct WeightFormat {
  DType w = DType::kBF16;
  WeightScales scales = WeightScales::kMx;

  constexpr bool operator==(const WeightFormat&) const = default;
  SLUICE_HOST_DEVICE constexpr bool scaled() const { return w != DType::kBF16; }
  SLUICE_HOST_DEVICE constexpr bool is(DType type, WeightScales s) const { return w == type && scales == s; }
  // Whether this combination of type and scales exists.
  constexpr bool exists() const {
    switch (w) {
      case DType::kBF16:
        return scales == WeightScales::kMx;
      case DType::kE2M1:
        return scales == WeightScales::kMx || scales == WeightScales::kNv;
      case DType::kE4M3:
        return scales != WeightScales::kNv;
      default:
        return false;
    }
  }
  // Columns that share a scale; 0: a row has only its f32 scale, or no scale.
  SLUICE_HOST_DEVICE constexpr int64_t columns() const {
    if (!scaled() || scales == WeightScales::kRows) return 0;
    return scales == WeightScales::kMx ? kMxBlock : scales == WeightScales::kNv ? kNvBlock : kScaleColumns;
  }
  // The width must be a multiple of this.
  SLUICE_HOST_DEVICE constexpr int64_t width_step() const {
    return w == DType::kE2M1 || (w == DType::kE4M3 && scales == WeightScales::kMx) ? kMxBlock : 1;
  }
  // The number of column scales of a row, and the bytes of each.
  SLUICE_HOST_DEVICE constexpr int64_t column_scales(int64_t width) const {
    return columns() == 0 ? 0 : (width + columns() - 1) / columns();
  }
  SLUICE_HOST_DEVICE constexpr int64_t column_scale_bytes() const {
    return scales == WeightScales::kBlocks ? 4 : 1;
  }
  // Whether a row has an f32 scale, stored after its column scales.
  SLUICE_HOST_DEVICE constexpr bool has_row_scale() const {
    return scaled() && (scales == WeightScales::kNv || scales == WeightScales::kRows);
  }
  SLUICE_HOST_DEVICE constexpr int64_t row_scale_bytes(int64_t width) const {
    return column_scales(width) * column_scale_bytes() + (has_row_scale() ? 4 : 0);
  }
  // Bits of a weight with its share of the column scales, without the row's f32.
  constexpr double bits() const {
    return bits_of(w) + (columns() == 0 ? 0
                                        : 8.0 * static_cast<double>(column_scale_bytes()) /
                                              static_cast<double>(columns()) /
                                              (scales == WeightScales::kBlocks ? kScaleFeatures : 1));
  }
};

// "bf16", "e2m1" (MXFP4), "e4m3 with scales=blocks": for messages.
std::string text(WeightFormat format);

inline float load_f32_bytes(const void* at) {
  float value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// The scale of the code at column k, from a row's scales. Exact in double.
inline double weight_scale_at(WeightFormat f, const uint8_t* scales, int64_t width, int64_t k) {
  if (!f.scaled()) return 1;
  switch (f.scales) {
    case WeightScales::kMx:
      return e8m0_value(scales[k / kMxBlock]);
    case WeightScales::kNv:
      return double{to_float(E4M3{scales[k / kNvBlock]})} * double{load_f32_bytes(scales + width / kNvBlock)};
    case WeightScales::kBlocks:
      return load_f32_bytes(scales + 4 * (k / kScaleColumns));
    case WeightScales::kRows:
      return load_f32_bytes(scales);
  }
  return 1;
}

}  // namespace sluice
