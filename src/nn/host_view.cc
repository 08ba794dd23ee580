#include "nn/host_view.h"

#include <algorithm>
#include <cstdint>

#include "nn/moe/source.h"

namespace sluice {
namespace {

// Bytes begin .. end - 1 of a tensor, and the offset of their copy.
struct Extent {
  const CheckpointTensor* tensor;
  int64_t begin, end;
  size_t at = 0;
};

// The bytes that the host cannot read, one extent per tensor: from the first to the last byte of the spans,
// because gate and up rows may alternate in one tensor.
std::vector<Extent> extents_of(const PackedMatrix& m, const MatrixSource& source) {
  std::vector<Extent> out;
  for_each_extent(m, source, [&](const CheckpointTensor& t, int64_t begin, int64_t bytes) {
    if (!is_far(t)) return;
    for (Extent& e : out) {
      if (e.tensor != &t) continue;
      e.begin = std::min(e.begin, begin), e.end = std::max(e.end, begin + bytes);
      return;
    }
    out.push_back({&t, begin, begin + bytes});
  });
  return out;
}

}  // namespace

int64_t far_bytes(const PackedMatrix& m, const MatrixSource& source) {
  int64_t out = 0;
  for (const Extent& e : extents_of(m, source)) out += e.end - e.begin;
  return out;
}

bool is_far(const MatrixSource& source) {
  const auto far = [](const RowSpan& s) {
    return (s.tensor && is_far(*s.tensor)) || (s.scale_tensor && is_far(*s.scale_tensor)) ||
           (s.row_scale_tensor && is_far(*s.row_scale_tensor));
  };
  return std::any_of(source.rows.begin(), source.rows.end(), far) ||
         std::any_of(source.ups.begin(), source.ups.end(), far);
}

Status HostView::reserve(size_t bytes) {
  if (bytes <= capacity_) return {};
  device_.release_host(buffer_);
  buffer_ = nullptr, capacity_ = 0;
  const auto memory = device_.allocate_host(bytes);
  if (!memory.ok()) return memory.status();
  buffer_ = static_cast<std::byte*>(memory.value()), capacity_ = bytes;
  return {};
}

Result<CheckpointTensor> HostView::tensor(const CheckpointTensor& t) {
  CheckpointTensor out = t;
  if (!is_far(t)) return out;
  const auto bytes = static_cast<size_t>(t.bytes);
  if (Status status = reserve(bytes); !status.ok()) return status;
  SLUICE_TRY(device_.copy(buffer_, t.data, bytes, device_.stream()));
  SLUICE_TRY(device_.wait(device_.stream()));
  out.data = buffer_;
  out.where = Backend::kCpu;
  return out;
}

Result<MatrixSource> HostView::matrix(const PackedMatrix& m, const MatrixSource& source) {
  const Wanted one{&m, &source};
  auto out = matrices({&one, 1});
  if (!out.ok()) return out.status();
  return std::move(out.value()[0]);
}

Result<std::vector<MatrixSource>> HostView::matrices(std::span<const Wanted> wanted) {
  std::vector<std::vector<Extent>> extents;  // one entry per wanted matrix
  size_t total = 0;
  for (const Wanted& w : wanted) {
    extents.push_back(extents_of(*w.matrix, *w.source));
    for (Extent& e : extents.back()) {
      e.at = total;
      total += static_cast<size_t>(e.end - e.begin);
    }
  }
  if (total > 0) {
    if (Status status = reserve(total); !status.ok()) return status;
    for (const std::vector<Extent>& of_one : extents)
      for (const Extent& e : of_one)
        SLUICE_TRY(device_.copy(buffer_ + e.at, e.tensor->data + e.begin,
                                static_cast<size_t>(e.end - e.begin), device_.stream()));
    SLUICE_TRY(device_.wait(device_.stream()));
  }
  std::vector<MatrixSource> out;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto near = [&](const CheckpointTensor* t, const std::byte* at) -> const std::byte* {
      for (const Extent& e : extents[i])
        if (e.tensor == t) return buffer_ + e.at + (at - t->data - e.begin);
      return at;
    };
    out.push_back(*wanted[i].source);
    for (std::vector<RowSpan>* spans : {&out.back().rows, &out.back().ups}) {
      for (RowSpan& s : *spans) {
        s.w = near(s.tensor, s.w);
        if (s.scales) s.scales = near(s.scale_tensor, s.scales);
        if (s.row_scales) s.row_scales = near(s.row_scale_tensor, s.row_scales);
      }
    }
  }
  return out;
}

}  // namespace sluice
