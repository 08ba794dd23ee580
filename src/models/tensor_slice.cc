#include "models/tensor_slice.h"

#include <algorithm>
#include <cstring>

#include "weights/numbers.h"

namespace sluice {
namespace {

constexpr int64_t kElementBytes = 2;  // BF16

// A rank's part of a tensor: ranges of rows, and a range of columns in each of these rows.
struct Cut {
  std::vector<Part> rows;
  Part columns;
  int64_t row_count() const {
    int64_t sum = 0;
    for (const Part& part : rows) sum += part.count;
    return sum;
  }
};

Cut cut_of(const TensorSpec& spec, const WeightParts& parts) {
  const int64_t width = spec.shape.size() > 1 ? spec.shape[1] : 1;
  if (parts.columns.count > 0) return {{{0, spec.shape[0]}}, parts.columns};
  Cut out{.rows = {}, .columns = {0, width}};
  for (const Part& part : parts.rows) {
    const int64_t begin = std::max(part.begin, spec.first_row),
                  end = std::min(part.begin + part.count, spec.first_row + spec.shape[0]);
    if (begin < end) out.rows.push_back({begin - spec.first_row, end - begin});
  }
  return out;
}

void copy_cut(const CheckpointTensor& t, const Cut& cut, int64_t width, std::byte* to) {
  const int64_t size = number_bytes(t.type, 1);
  const auto copy = [&](int64_t first, int64_t count) {
    if (t.type == StoredType::kBF16) {
      std::memcpy(to, t.data + first * size, static_cast<size_t>(count * size));
    } else {
      convert_numbers(t.type, t.data + first * size, count, DType::kBF16, to);
    }
    to += count * kElementBytes;
  };
  for (const Part& rows : cut.rows) {
    if (cut.columns.count == width) {
      copy(rows.begin * width, rows.count * width);
      continue;
    }
    for (int64_t row = rows.begin; row < rows.begin + rows.count; ++row)
      copy(row * width + cut.columns.begin, cut.columns.count);
  }
}

}  // namespace

Result<const Checkpoint*> TensorSlicer::hold(const Checkpoint& from, const WeightParts& parts,
                                             std::vector<TensorSpec>* specs) {
  std::vector<const CheckpointTensor*> whole;
  std::vector<Cut> cuts;
  int64_t bytes = 0, row = 0;
  for (TensorSpec& spec : *specs) {
    const auto found = from.find(spec.name);
    if (!found.ok()) return found.status();
    const CheckpointTensor& t = *found.value();
    if (t.shape != spec.shape || !is_number(t.type))
      return Status{Code::kCorrupt, place_of(t) + ": wanted " + stored_text(spec.type, spec.shape) +
                                        ", found " + stored_text(t.type, t.shape)};
    whole.push_back(&t);
    cuts.push_back(cut_of(spec, parts));
    bytes += cuts.back().row_count() * cuts.back().columns.count * kElementBytes;
  }
  held_.reset();
  memory_.resize(static_cast<size_t>(bytes));
  std::vector<CheckpointTensor> tensors;
  std::byte* at = memory_.data();
  for (size_t i = 0; i < whole.size(); ++i) {
    TensorSpec& spec = (*specs)[i];
    copy_cut(*whole[i], cuts[i], spec.shape.size() > 1 ? spec.shape[1] : 1, at);
    from.release(*whole[i]);
    spec.shape[0] = cuts[i].row_count(), spec.first_row = row;
    if (spec.shape.size() > 1) spec.shape[1] = cuts[i].columns.count;
    row += spec.shape[0];
    tensors.push_back({.name = spec.name, .type = StoredType::kBF16, .shape = spec.shape, .data = at});
    at += cuts[i].row_count() * cuts[i].columns.count * kElementBytes;
  }
  auto made = Checkpoint::of_memory(from.path(), std::move(tensors));
  if (!made.ok()) return made.status();
  held_ = std::move(made).value();
  return held_.get();
}

}  // namespace sluice
