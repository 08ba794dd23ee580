// Matrices of weights as published checkpoints store them: the tensors of each format and their names, as data.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weights/row_span.h"

namespace sluice {

// A way of storing matrices of a format. Each name stands in place of the ".weight" at the end of a matrix's name.
struct StoredForm {
  WeightFormat format;
  std::string_view codes = ".weight";
  std::string_view scales = {}, row_scale = {};  // empty: no such tensor
  bool reciprocal = false;                       // row_scale is 1 / the factor of the codes
};
// The forms of a format, the most common one first; none for bf16.
std::span<const StoredForm> stored_forms(WeightFormat format);

// Scales of a matrix's columns: their types, the most common one first, and their shape.
std::vector<StoredType> types_of_scales(WeightScales scales);
std::vector<int64_t> shape_of_scales(WeightFormat format, int64_t rows, int64_t width);

// `count` rows of a matrix [rows, width], from row `first` and column `column` on, in steps of `step` rows.
struct MatrixPart {
  int64_t rows = 0, width = 0;
  int64_t first = 0, count = 0, column = 0, step = 1;
  int64_t expert = -1;  // for messages
  std::string_view scales =
      {};  // the name of scales to ask for if no form's tensors are there; empty: the most common form's
  std::string_view place = {};  // prefix of the error for a missing tensor
};

// Points the span of a part to the scales of its columns; those of the matrix begin at byte `at` of the tensor.
void set_scales(const CheckpointTensor& scales, int64_t at, WeightFormat format, const MatrixPart& part,
                RowSpan* to);
// The same for the rows' f32, one for each row or one for the matrix.
void set_row_scales(const CheckpointTensor& scale, int64_t at, bool one_for_all, const MatrixPart& part,
                    RowSpan* to);

// The format of a matrix of this name ("X.weight"), by its tensors' types and shapes; empty: there is none, or of another type. FP8
// without scales counts as blocks.
std::optional<WeightFormat> stored_format(const Checkpoint& files, std::string_view name, int64_t rows,
                                          int64_t width);
// Describes a part of a matrix in a format; numbers of other types are read as bf16. kCorrupt: a tensor is missing or has another shape.
// kUnsupported: it has another type.
Result<RowSpan> find_matrix(const Checkpoint& files, const std::string& name, WeightFormat format,
                            const MatrixPart& part);
// All tensors of a matrix that the files have, those that Sluice does not need (scales of activations) included.
std::vector<const CheckpointTensor*> tensors_of_matrix(const Checkpoint& files, std::string_view name);

// The tensors that a matrix of a format has in the most common form, or in the form whose scales have this name.
struct StoredPart {
  enum class What : uint8_t { kCodes, kScales, kRowScale } what = What::kCodes;
  std::string name;
  StoredType type = StoredType::kBF16;
  std::vector<int64_t> shape;
};
std::vector<StoredPart> stored_parts(std::string_view name, WeightFormat format, int64_t rows, int64_t width,
                                     std::string_view scales = {});

}  // namespace sluice
