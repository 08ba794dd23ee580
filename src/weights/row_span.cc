#include "weights/row_span.h"

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

float f8_scale(const RowSpan& span, int64_t row, int64_t block) {
  const std::byte* at = span.scales + (span.first_row + row) / kF8Block * span.scale_stride;
  if (span.scale_type == StoredType::kF32) {
    float value = 0;
    std::memcpy(&value, at + 4 * block, sizeof value);
    return value;
  }
  return static_cast<float>(e8m0_value(static_cast<uint8_t>(at[block])));
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

}  // namespace

const std::byte* read_row(const RowSpan& span, int64_t row, int64_t width, std::byte* stage) {
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

std::string place_of_row(const RowSpan& span, const CheckpointTensor* tensor, int64_t row) {
  return (tensor ? place_of(*tensor) + ": " : std::string()) +
         (span.expert < 0 ? "" : "expert " + std::to_string(span.expert) + ", ") + "row " +
         std::to_string(span.first_row + row * span.row_step);
}

}  // namespace sluice
