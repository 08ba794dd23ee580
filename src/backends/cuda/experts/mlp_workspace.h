// The intermediate tensors of ExpertMlp, in the workspace of kernels that compute all its stages.
#pragma once
#include "base/arena.h"
#include "ops/fused/expert_mlp.h"

namespace sluice::cuda {

// Tensors one after the other, with the alignment of Arena.
struct ExpertMlpBetween {
  GroupRows::Args groups;
  Tensor h, g;
  size_t bytes = 0;  // of all tensors; the kernel's own scratch comes after them

  // `base` may be null if only the size is needed.
  static ExpertMlpBetween at(std::byte* base, const ExpertMlp::Problem& p, Backend where) {
    ExpertMlpBetween out;
    const int64_t rows = ExpertMlp::rows(p);
    const auto take = [&](DType dtype, std::initializer_list<int64_t> shape) {
      Tensor t = make_tensor(base ? base + out.bytes : nullptr, dtype, shape, where);
      out.bytes += Arena::footprint(static_cast<size_t>(bytes_of(dtype, elements_of(t))));
      return t;
    };
    out.groups.row_count = take(DType::kI32, {p.experts});
    out.groups.row_begin = take(DType::kI32, {p.experts + 1});
    out.groups.order = take(DType::kI32, {rows});
    out.groups.position = take(DType::kI32, {p.tokens, p.slots});
    out.h = take(p.x, {rows, p.intermediate});
    out.g = take(p.g, {rows, p.hidden});
    return out;
  }
};

}  // namespace sluice::cuda
