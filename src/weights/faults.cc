#include "weights/faults.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "ops/fragment_layout.h"
#include "weights/numbers.h"

namespace sluice {
namespace {

constexpr uint16_t kBf16Exponent = 0x7f80;  // all ones: NaN or an infinity

uint16_t bf16_bits(const std::byte* row, int64_t k) {
  uint16_t bits;
  std::memcpy(&bits, row + 2 * k, sizeof bits);
  return bits;
}

// Has no branches, so that it vectorizes.
bool has_faulty_bf16(const std::byte* row, int64_t width) {
  uint16_t any = 0;
  for (int64_t k = 0; k < width; ++k)
    any |= static_cast<uint16_t>((bf16_bits(row, k) & kBf16Exponent) == kBf16Exponent);
  return any != 0;
}
bool has_nan8(const std::byte* row, int64_t width) {
  uint8_t any = 0;
  for (int64_t k = 0; k < width; ++k)
    any |= static_cast<uint8_t>((static_cast<uint8_t>(row[k]) & 0x7F) == 0x7F);
  return any != 0;
}

// The first faulty scale of the row's columns, or -1.
int64_t faulty_scale(WeightFormat f, const std::byte* scales, int64_t width) {
  for (int64_t i = 0; i < f.column_scales(width); ++i) {
    const auto byte = static_cast<uint8_t>(scales[i * f.column_scale_bytes()]);
    const bool faulty = f.scales == WeightScales::kMx   ? byte == 255
                        : f.scales == WeightScales::kNv ? byte >= 0x7F
                                                        : !is_block_scale(load_f32_bytes(scales + 4 * i));
    if (faulty) return i;
  }
  return -1;
}

// The row's f32 scale. Packing multiplies it by 2^7 in nv, so has_faulty_row_scale() checks the product.
float row_scale(WeightFormat f, const std::byte* scales, int64_t width) {
  return load_f32_bytes(scales + f.column_scales(width));
}
bool has_faulty_row_scale(WeightFormat f, const std::byte* scales, int64_t width) {
  if (!f.has_row_scale()) return false;
  const float scale = row_scale(f, scales, width);
  return !std::isfinite(f.scales == WeightScales::kNv ? 128 * scale : scale);
}

std::string number_text(float value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return "an infinity";
  char text[32];
  return {text, std::to_chars(text, std::end(text), value).ptr};
}

std::string scale_fault(WeightFormat f, const std::byte* scales, int64_t i) {
  const auto byte = static_cast<uint8_t>(scales[i * f.column_scale_bytes()]);
  const std::string block = ", block " + std::to_string(i) + ": wanted a scale ";
  if (f.scales == WeightScales::kMx) return block + "of 0 to 254, found 255 (NaN)";
  if (f.scales == WeightScales::kNv)
    return block + "of 0 or more, found " + number_text(to_float(E4M3{byte}));
  const float scale = load_f32_bytes(scales + 4 * i);
  return block + "of magnitude 2^-60 to 2^60" + (scale == 0 ? " for codes that are not zeros" : "") +
         ", found " + number_text(scale);
}

}  // namespace

bool has_fault(WeightFormat f, const RowBytes& row, int64_t width) {
  if (!f.scaled()) return has_faulty_bf16(row.codes, width);
  if (f.w == DType::kE4M3 && has_nan8(row.codes, width)) return true;
  return faulty_scale(f, row.scales, width) >= 0 || has_faulty_row_scale(f, row.scales, width);
}

std::string fault_text(const RowSpan& span, WeightFormat f, int64_t row, int64_t width) {
  std::vector<std::byte> stage(static_cast<size_t>(row_stage_bytes(f, width)));
  const RowBytes bytes = read_row(span, f, row, width, stage.data());
  const std::string of_scales = place_of_row(span, span.scale_tensor ? span.scale_tensor : span.tensor, row);
  if (f.scaled()) {
    if (const int64_t i = faulty_scale(f, bytes.scales, width); i >= 0)
      return of_scales + scale_fault(f, bytes.scales, i);
    if (has_faulty_row_scale(f, bytes.scales, width))
      return of_scales + ": wanted a finite scale, found " + number_text(row_scale(f, bytes.scales, width));
  }
  const auto faulty = [&](int64_t k) {
    return f.scaled() ? has_nan8(bytes.codes + k, 1) : has_faulty_bf16(bytes.codes + 2 * k, 1);
  };
  int64_t k = 0;
  while (k + 1 < width && !faulty(k)) ++k;
  const bool nan = f.scaled() || (bf16_bits(bytes.codes, k) & ~kBf16Exponent & 0x7fff) != 0;
  std::string found = nan ? "NaN" : "an infinity";
  if (float stored = 0; !nan && span.type == StoredType::kF32 && span.form != RowForm::kF8Blocks) {
    const int64_t at = span.form == RowForm::kColumns ? k * span.step : number_bytes(span.type, k);
    std::memcpy(&stored, span.w + row * span.stride + at, sizeof stored);
    if (std::isfinite(stored)) found = number_text(stored) + ", which is too large for bf16";
  }
  return place_of_row(span, span.tensor, row) + ", column " + std::to_string(span.first_column + k) +
         ": wanted finite numbers, found " + found;
}

}  // namespace sluice
