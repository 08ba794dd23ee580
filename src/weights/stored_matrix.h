// Weight matrices in published checkpoints: a table of the tensors that store each format, with their names.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weights/row_span.h"

namespace sluice {

// One way to store matrices of a format. Each suffix replaces the ".weight" at the end of a matrix's name.
struct StoredForm {
  WeightFormat format;
  std::string_view codes = ".weight";
  std::string_view scales = {}, row_scale = {};  // empty: no such tensor
  bool reciprocal = false;                       // the codes' factor is 1 / row_scale
};
// The forms of a format, the most common one first; none for bf16.
std::span<const StoredForm> stored_forms(WeightFormat format);

// Accepted types of a matrix's column scales, the most common one first, and their shape.
std::vector<StoredType> types_of_scales(WeightScales scales);
std::vector<int64_t> shape_of_scales(WeightFormat format, int64_t rows, int64_t width);

// `count` rows of a matrix [rows, width]: every `step`-th row from row `first`, from column `column` on.
struct MatrixPart {
  int64_t rows = 0, width = 0;
  int64_t first = 0, count = 0, column = 0, step = 1;
  int64_t expert = -1;  // for messages
  std::string_view scales =
      {};  // the suffix of the scales to report as missing if no form matches; empty: the suffix in the most common form
  std::string_view place = {};  // prefix of the error for a missing tensor
};

// Sets the column scales of a part's span. The scales of the whole matrix begin at byte `at` of the tensor.
void set_scales(const CheckpointTensor& scales, int64_t at, WeightFormat format, const MatrixPart& part,
                RowSpan* to);
// Sets the f32 scales of a part's span: one per row, or one for the matrix.
void set_row_scales(const CheckpointTensor& scale, int64_t at, bool one_for_all, const MatrixPart& part,
                    RowSpan* to);

// The format of the matrix with this name ("X.weight"), from the types and shapes of its tensors. Empty:
// there is no such matrix, or its type is unknown. FP8 without scales counts as blocks.
std::optional<WeightFormat> stored_format(const Checkpoint& files, std::string_view name, int64_t rows,
                                          int64_t width);
// Finds a part of a matrix in a format; F32 and F16 numbers are read as bf16. kCorrupt: a tensor is missing
// or has another shape. kUnsupported: a tensor has another type.
Result<RowSpan> find_matrix(const Checkpoint& files, const std::string& name, WeightFormat format,
                            const MatrixPart& part);
// All tensors of a matrix that the files have, including the scales of activations, which Sluice does not
// use.
std::vector<const CheckpointTensor*> tensors_of_matrix(const Checkpoint& files, std::string_view name);

// The tensors of a matrix in the format's most common form, or in the form whose scales have this suffix.
struct StoredPart {
  enum class What : uint8_t { kCodes, kScales, kRowScale } what = What::kCodes;
  std::string name;
  StoredType type = StoredType::kBF16;
  std::vector<int64_t> shape;
};
std::vector<StoredPart> stored_parts(std::string_view name, WeightFormat format, int64_t rows, int64_t width,
                                     std::string_view scales = {});

}  // namespace sluice
