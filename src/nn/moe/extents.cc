// The byte ranges of tensors that packing reads, used to prefetch pages and to copy tensors to host memory.
#include "nn/moe/source.h"
#include "weights/numbers.h"

namespace sluice {

PackedMatrix packed_matrix(const ExpertGemm::Problem& p) {
  return {.features = p.features,
          .width = p.width,
          .gated = is_gated(p.act),
          .gate_order = p.gate_order,
          .w = p.w,
          .layout = p.layout,
          .scales = p.scales};
}

int64_t weight_bytes(const PackedMatrix& m) {
  const int64_t rows = m.gated ? 2 * m.features : m.features;
  return rows * (bytes_of(m.w, m.width) + m.format().row_scale_bytes(m.width));
}

void for_each_extent(const PackedMatrix& m, const MatrixSource& source, const ExtentVisitor& visit) {
  const auto extents = [&](const RowSpan& s) {
    if (s.rows == 0 || !s.tensor) return;
    const WeightFormat format = m.format();
    const int64_t row = s.form == RowForm::kColumns    ? (m.width - 1) * s.step + number_bytes(s.type, 1)
                        : s.form == RowForm::kF8Blocks ? m.width
                        : format.scaled()              ? bytes_of(m.w, m.width)
                                                       : number_bytes(s.type, m.width);
    visit(*s.tensor, s.w - s.tensor->data, (s.rows - 1) * s.stride + row);
    if (s.form == RowForm::kF8Blocks)
      return visit(*s.scale_tensor, s.scales - s.scale_tensor->data,
                   ((s.first_row + s.rows - 1) / kF8Block + 1) * s.scale_stride);
    if (format.scaled() && s.scales)
      visit(*s.scale_tensor, s.scales - s.scale_tensor->data,
            (s.rows - 1) * s.scale_stride + format.column_scales(m.width) * format.column_scale_bytes());
    if (s.row_scale_tensor) visit(*s.row_scale_tensor, 0, s.row_scale_tensor->bytes);
  };
  for (const RowSpan& s : source.rows) extents(s);
  for (const RowSpan& s : source.ups) extents(s);
}

void prefetch(const Checkpoint& checkpoint, const PackedMatrix& matrix, const MatrixSource& source) {
  for_each_extent(matrix, source, [&](const CheckpointTensor& t, int64_t begin, int64_t bytes) {
    checkpoint.prefetch(t, begin, bytes);
  });
}
void release(const Checkpoint& checkpoint, const PackedMatrix& matrix, const MatrixSource& source) {
  for_each_extent(matrix, source, [&](const CheckpointTensor& t, int64_t begin, int64_t bytes) {
    checkpoint.release(t, begin, bytes);
  });
}

}  // namespace sluice
