// A view of matrix rows as a checkpoint stores them. Packing and checks read every storage form through it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "ops/weight_format.h"
#include "weights/checkpoint.h"

namespace sluice {

enum class RowForm : uint8_t {
  kRows,      // a row's elements are contiguous: numbers, or codes of e2m1 or e4m3
  kColumns,   // numbers, transposed: a row's elements are `step` bytes apart
  kF8Blocks,  // F8_E4M3 rows with one scale per 128 x 128 block; read as bf16, or as e4m3 with kBlocks
};

// Rows and columns of an F8_E4M3 block, which share a scale; the number of blocks in n rows or columns.
inline constexpr int64_t kF8Block = 128;
constexpr int64_t f8_blocks(int64_t n) { return (n + kF8Block - 1) / kF8Block; }

// Rows 0 .. rows - 1. Spans describe tensor- and expert-parallel slices, only the gates or only the ups, and
// single matrices of a stack. Pointers need no alignment.
struct RowSpan {
  RowForm form = RowForm::kRows;
  StoredType type = StoredType::kBF16;  // for numbers (weights/numbers.h); kF32 and kF16 are read as bf16
  int64_t rows = 0;
  const std::byte* w = nullptr;  // element 0 of row 0
  int64_t stride = 0;            // bytes from one row to the next
  int64_t step = 0;              // kColumns: bytes from one element of a row to the next
  // kRows: the scales of row 0, stored as in ops/weight_format.h (nv may lack the row's f32, see row_scales).
  // kF8Blocks: the scale of block (0, 0) of the whole matrix.
  const std::byte* scales = nullptr;
  int64_t scale_stride = 0;  // bytes from one row's scales to the next (kF8Blocks: from one row of blocks)
  StoredType scale_type = StoredType::kF8E8M0;  // kF8Blocks: or kF32, kBF16
  // nv and rows: the f32 scale of row 0, stored as F32 or BF16. Null if each row's f32 follows its bytes in
  // `scales` instead.
  const std::byte* row_scales = nullptr;
  int64_t row_scale_stride = 0;  // bytes from one row's f32 to the next; 0: one f32 for all rows
  StoredType row_scale_type = StoredType::kF32;
  bool reciprocal = false;   // the f32 scale is 1 / the stored number
  int64_t first_column = 0;  // kF8Blocks: the span's first column in the whole matrix
  // For messages: row r of the span is row first_row + r * row_step of `tensor`, of this expert (-1: none).
  int64_t first_row = 0, row_step = 1, expert = -1;
  const CheckpointTensor* tensor = nullptr;
  const CheckpointTensor* scale_tensor = nullptr;
  const CheckpointTensor* row_scale_tensor = nullptr;
};

// A row's weights and its scales (null for bf16).
struct RowBytes {
  const std::byte *codes = nullptr, *scales = nullptr;
};
// Bytes of the staging buffer of read_row(): the row's weights, and from byte 2 * width on its scales.
inline int64_t row_stage_bytes(WeightFormat f, int64_t width) { return 2 * width + f.row_scale_bytes(width); }

// Whether rows of this form can be read as weights of the format.
bool can_read(const RowSpan& span, WeightFormat format);
// Returns row `row` of a span, `width` weights of the format: in place, or converted or gathered into `stage`
// (row_stage_bytes()). Replaces scales of 0, which some layouts cannot represent: in nv, their codes become
// zeros; in blocks, the scale becomes 1 if all its codes are zeros.
RowBytes read_row(const RowSpan& span, WeightFormat format, int64_t row, int64_t width, std::byte* stage);
// "x.safetensors: experts.w1.weight: expert 3, row 17": names a row in error messages.
std::string place_of_row(const RowSpan& span, const CheckpointTensor* tensor, int64_t row);

}  // namespace sluice
