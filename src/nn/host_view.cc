#include "nn/host_view.h"

#include <algorithm>
#include <cstdint>

#include "nn/moe_source.h"

namespace sluice {
namespace {

// Bytes begin .. end - 1 of a tensor, and where their copy stands.
struct Extent {
  const CheckpointTensor* tensor;
  int64_t begin, end;
  size_t at = 0;
};

}  // namespace

bool is_far(const MatrixSource& source) {
  const auto far = [](const RowSpan& s) {
    return (s.tensor && is_far(*s.tensor)) || (s.scale_tensor && is_far(*s.scale_tensor));
  };
  return std::any_of(source.rows.begin(), source.rows.end(), far) ||
         std::any_of(source.ups.begin(), source.ups.end(), far);
}

Result<CheckpointTensor> HostView::tensor(const CheckpointTensor& t) {
  CheckpointTensor out = t;
  if (!is_far(t)) return out;
  buffer_.resize(static_cast<size_t>(t.bytes));
  SLUICE_TRY(device_.copy(buffer_.data(), t.data, buffer_.size(), device_.stream()));
  SLUICE_TRY(device_.wait(device_.stream()));
  out.data = buffer_.data();
  out.where = Backend::kCpu;
  return out;
}

Result<MatrixSource> HostView::matrix(const PackedMatrix& m, const MatrixSource& source) {
  if (!is_far(source)) return source;
  // Gates and ups may alternate in one tensor, so extents of one tensor are joined.
  std::vector<Extent> extents;
  for_each_extent(m, source, [&](const CheckpointTensor& t, int64_t begin, int64_t bytes) {
    if (!is_far(t)) return;
    for (Extent& e : extents) {
      if (e.tensor != &t) continue;
      e.begin = std::min(e.begin, begin), e.end = std::max(e.end, begin + bytes);
      return;
    }
    extents.push_back({&t, begin, begin + bytes});
  });
  size_t total = 0;
  for (Extent& e : extents) {
    e.at = total;
    total += static_cast<size_t>(e.end - e.begin);
  }
  buffer_.resize(total);
  for (const Extent& e : extents)
    SLUICE_TRY(device_.copy(buffer_.data() + e.at, e.tensor->data + e.begin,
                            static_cast<size_t>(e.end - e.begin), device_.stream()));
  SLUICE_TRY(device_.wait(device_.stream()));
  const auto near = [&](const CheckpointTensor* t, const std::byte* at) {
    for (const Extent& e : extents)
      if (e.tensor == t)
        return static_cast<const std::byte*>(buffer_.data() + e.at + (at - t->data - e.begin));
    return at;
  };
  MatrixSource out = source;
  for (std::vector<RowSpan>* spans : {&out.rows, &out.ups}) {
    for (RowSpan& s : *spans) {
      s.w = near(s.tensor, s.w);
      if (s.scales) s.scales = near(s.scale_tensor, s.scales);
    }
  }
  return out;
}

}  // namespace sluice
