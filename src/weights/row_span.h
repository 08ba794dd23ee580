// Rows of a matrix as a checkpoint stores them: a view that packing and checks read, whatever the storage.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "weights/checkpoint.h"

namespace sluice {

enum class RowForm : uint8_t {
  kRows,      // a row's elements are contiguous: numbers, or e2m1 with e8m0 scales
  kColumns,   // numbers, transposed: a row's elements are `step` bytes apart
  kF8Blocks,  // F8_E4M3 rows with one scale per 128 x 128 elements; read as bf16
};

// Rows and columns of F8_E4M3 that share a scale, and the blocks that `n` of them have.
inline constexpr int64_t kF8Block = 128;
constexpr int64_t f8_blocks(int64_t n) { return (n + kF8Block - 1) / kF8Block; }

// Rows 0 .. rows - 1. Tensor- and expert-parallel slices, single gates or ups, and stacked matrices are all
// spans. Pointers need no alignment.
struct RowSpan {
  RowForm form = RowForm::kRows;
  StoredType type = StoredType::kBF16;  // type of numbers (weights/numbers.h); kF32 and kF16 are read as bf16
  int64_t rows = 0;
  const std::byte* w = nullptr;  // element 0 of row 0
  int64_t stride = 0;            // bytes from one row to the next
  int64_t step = 0;              // kColumns: bytes from one element of a row to the next
  // e2m1: scales of row 0's first block. kF8Blocks: scale of block (0, 0) of the whole matrix
  const std::byte* scales = nullptr;
  int64_t scale_stride = 0;  // bytes from one row's scales to the next (kF8Blocks: one row of blocks)
  StoredType scale_type = StoredType::kF8E8M0;  // kF8Blocks: or kF32
  int64_t first_column = 0;                     // kF8Blocks: the span's first column in the whole matrix
  // For messages: row r of the span is row first_row + r * row_step of `tensor`, of this expert (-1: none).
  int64_t first_row = 0, row_step = 1, expert = -1;
  const CheckpointTensor* tensor = nullptr;
  const CheckpointTensor* scale_tensor = nullptr;
};

// Returns row `row` of a span of `width` elements as contiguous bf16 or e2m1: in place, or gathered into
// `stage`, which must hold 2 * width bytes.
const std::byte* read_row(const RowSpan& span, int64_t row, int64_t width, std::byte* stage);
// The row's e8m0 scales, width / 32 bytes (e2m1).
inline const std::byte* scales_of_row(const RowSpan& span, int64_t row) {
  return span.scales + row * span.scale_stride;
}
// "x.safetensors: experts.w1.weight: expert 3, row 17": a row's place for error messages.
std::string place_of_row(const RowSpan& span, const CheckpointTensor* tensor, int64_t row);

}  // namespace sluice
