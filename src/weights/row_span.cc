#include "weights/row_span.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "weights/numbers.h"

namespace sluice {
namespace {

std::array<float, 256> f8_table() {
  std::array<float, 256> out{};
  for (size_t code = 0; code < 256; ++code) out[code] = to_float(E4M3{static_cast<uint8_t>(code)});
  return out;
}

// An element of F32 or BF16.
float number_at(StoredType type, const std::byte* from, int64_t i) {
  if (type == StoredType::kF32) return load_f32_bytes(from + 4 * i);
  BF16 value;
  std::memcpy(&value, from + 2 * i, sizeof value);
  return to_float(value);
}

float f8_scale(const RowSpan& span, int64_t row, int64_t block) {
  const std::byte* at = span.scales + (span.first_row + row) / kF8Block * span.scale_stride;
  if (span.scale_type == StoredType::kF8E8M0 || span.scale_type == StoredType::kU8)
    return static_cast<float>(e8m0_value(static_cast<uint8_t>(at[block])));
  return number_at(span.scale_type, at, block);
}

void read_f8(const RowSpan& span, int64_t row, int64_t width, std::byte* stage) {
  static const std::array<float, 256> kValues = f8_table();
  const std::byte* codes = span.w + row * span.stride;
  for (int64_t k = 0; k < width;) {
    const int64_t column = span.first_column + k, block = column / kF8Block;
    const int64_t end = std::min(width, (block + 1) * kF8Block - span.first_column);
    const float scale = f8_scale(span, row, block);
    for (; k < end; ++k) {
      const BF16 value = to_bf16(kValues[static_cast<uint8_t>(codes[k])] * scale);
      std::memcpy(stage + 2 * k, &value, sizeof value);
    }
  }
}

void read_column(const RowSpan& span, const std::byte* first, int64_t width, std::byte* stage) {
  if (span.type == StoredType::kBF16) {
    for (int64_t k = 0; k < width; ++k) std::memcpy(stage + 2 * k, first + k * span.step, 2);
    return;
  }
  for (int64_t k = 0; k < width; ++k)
    convert_numbers(span.type, first + k * span.step, 1, DType::kBF16, stage + 2 * k);
}

const std::byte* read_scales(const RowSpan& span, WeightFormat f, int64_t row, int64_t width,
                             std::byte* stage) {
  if (span.form == RowForm::kF8Blocks) {
    for (int64_t k = 0; k < width; k += kScaleColumns) {
      const float scale = f8_scale(span, row, (span.first_column + k) / kF8Block);
      std::memcpy(stage + 4 * (k / kScaleColumns), &scale, sizeof scale);
    }
    return stage;
  }
  const std::byte* own = span.scales ? span.scales + row * span.scale_stride : nullptr;
  if (!f.has_row_scale() || !span.row_scales) return own;
  const auto bytes = static_cast<size_t>(f.column_scales(width));
  if (bytes > 0) std::memcpy(stage, own, bytes);
  const float stored = number_at(span.row_scale_type, span.row_scales + row * span.row_scale_stride, 0);
  const float scale = span.reciprocal ? 1 / stored : stored;
  std::memcpy(stage + bytes, &scale, sizeof scale);
  return stage;
}

const std::byte* read_numbers(const RowSpan& span, int64_t row, int64_t width, std::byte* stage) {
  const std::byte* first = span.w + row * span.stride;
  switch (span.form) {
    case RowForm::kRows:
      if (span.type == StoredType::kBF16) return first;
      convert_numbers(span.type, first, width, DType::kBF16, stage);
      return stage;
    case RowForm::kColumns:
      read_column(span, first, width, stage);
      return stage;
    case RowForm::kF8Blocks:
      read_f8(span, row, width, stage);
      return stage;
  }
  return first;
}

// nv: if a scale is 0, copies the row's codes to `stage` and sets the codes of that scale to zero there.
void hide_zero_scales(int64_t width, std::byte* stage, RowBytes* row) {
  const int64_t groups = width / kNvBlock;
  const std::byte* end = row->scales + groups;
  if (std::find(row->scales, end, std::byte{0}) == end) return;
  std::memmove(stage, row->codes, static_cast<size_t>(width / 2));
  for (int64_t g = 0; g < groups; ++g)
    if (row->scales[g] == std::byte{0}) std::memset(stage + g * kNvBlock / 2, 0, kNvBlock / 2);
  row->codes = stage;
}

// blocks: if a scale is 0 and all its codes are zeros, copies the row's scales to `stage` and sets that scale to 1 there.
void replace_zero_scales(WeightFormat f, int64_t width, std::byte* stage, RowBytes* row) {
  for (int64_t k = 0; k < width; k += kScaleColumns) {
    const int64_t at = 4 * (k / kScaleColumns), end = std::min(width, k + kScaleColumns);
    if (load_f32_bytes(row->scales + at) != 0) continue;
    const bool zeros = std::all_of(row->codes + k, row->codes + end,
                                   [](std::byte code) { return (code & std::byte{0x7F}) == std::byte{0}; });
    if (!zeros) continue;
    if (row->scales != stage)
      std::memmove(stage, row->scales, static_cast<size_t>(f.row_scale_bytes(width))), row->scales = stage;
    constexpr float kOne = 1;
    std::memcpy(stage + at, &kOne, sizeof kOne);
  }
}

}  // namespace

bool can_read(const RowSpan& span, WeightFormat f) {
  if (!span.w || span.rows < 0) return false;
  if (!f.scaled()) return span.form != RowForm::kF8Blocks || span.scales;
  if (f.is(DType::kE4M3, WeightScales::kBlocks) && span.form == RowForm::kF8Blocks)
    return span.scales && span.first_column % kScaleColumns == 0 && span.first_row % kScaleFeatures == 0;
  if (span.form != RowForm::kRows) return false;
  if (f.scales == WeightScales::kRows) return span.scales || span.row_scales;
  return span.scales != nullptr;
}

RowBytes read_row(const RowSpan& span, WeightFormat f, int64_t row, int64_t width, std::byte* stage) {
  if (!f.scaled()) return {read_numbers(span, row, width, stage), nullptr};
  RowBytes out{span.w + row * span.stride, read_scales(span, f, row, width, stage + 2 * width)};
  if (f.scales == WeightScales::kNv) hide_zero_scales(width, stage, &out);
  if (f.scales == WeightScales::kBlocks) replace_zero_scales(f, width, stage + 2 * width, &out);
  return out;
}

std::string place_of_row(const RowSpan& span, const CheckpointTensor* tensor, int64_t row) {
  return (tensor ? place_of(*tensor) + ": " : std::string()) +
         (span.expert < 0 ? "" : "expert " + std::to_string(span.expert) + ", ") + "row " +
         std::to_string(span.first_row + row * span.row_step);
}

}  // namespace sluice
