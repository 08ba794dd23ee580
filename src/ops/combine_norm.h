#pragma once
#include "ops/combine.h"
#include "ops/rms_norm.h"
#include "ops/row_align.h"

namespace sluice {

// Combine, and RmsNorm behind it, as one operation: what stands between the experts of a layer and the projection of the next one.
//
//   y      = what ops/combine.h says
//   normed = what ops/rms_norm.h says of y as it is written, of norm_weight and of eps
//
// Shapes     as the contracts have them; norm_weight [hidden], normed [tokens, hidden], rows may be strided. y may be residual or
//            shared itself (same rows), nothing else.
// Types      normed has the type of y; norm_weight bf16 or f32 (field norm_w).
// Bytes      those of Combine, and normed once.
// Errors     make_plan: kInvalidArgument if a bound of a contract is broken. run: never fails on data.
// Exactness  each half as its contract says; normed on the y that was written.
// Source     the contracts; TensorRT-LLM and FlashInfer fuse the sum of a layer with the norm behind it, for the same reason.
struct CombineNorm {
  static constexpr std::string_view kName = "combine_norm";
  static constexpr std::string_view kSummary =
      "sums the experts' answers of each token, and norms the sum for the layer that follows";
  struct Problem {
    Combine::Problem combine;
    double eps = 1e-5;
    DType norm_w = DType::kBF16;
    bool x_unaligned = false;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      Combine::Problem::fields(v, p.combine);
      v("eps", p.eps, "added to the mean square");
      v("norm_w", p.norm_w, "type of the norm's weight");
      v("x_unaligned", p.x_unaligned,
        "rows of g, shared, residual, y and normed may begin anywhere, not only at multiples of 16 bytes");
    }
  };
  struct Args : Combine::Args {
    Tensor norm_weight, normed;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    Combine::slots(p.combine, [&](SlotSpec spec, Tensor Combine::Args::*member) {
      if (spec.rows == Rows::kMayBeStrided)
        spec.row_align = row_align(spec.dtype, p.combine.hidden, p.x_unaligned);
      v(spec, static_cast<Tensor Args::*>(member));
    });
    v(slot("norm_weight", Role::kIn, p.norm_w, {p.combine.hidden}), &Args::norm_weight);
    SlotSpec normed = slot("normed", Role::kOut, p.combine.y, {p.combine.tokens, p.combine.hidden}, true,
                           Rows::kMayBeStrided);
    normed.row_align = row_align(p.combine.y, p.combine.hidden, p.x_unaligned);
    v(normed, &Args::normed);
  }
  // The second half; the first is Problem::combine, and Args is the first half's Args.
  static RmsNorm::Problem norm(const Problem& p) {
    return {.tokens = p.combine.tokens,
            .hidden = p.combine.hidden,
            .eps = p.eps,
            .x = p.combine.y,
            .w = p.norm_w,
            .y = p.combine.y};
  }
  static RmsNorm::Args norm(const Args& a) {
    return {.x = a.y, .weight = a.norm_weight, .residual = {}, .y = a.normed};
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p) { return Combine::flops(p.combine) + RmsNorm::flops(norm(p)); }
  static Problem at_tokens(Problem p, int64_t n) { return p.combine = Combine::at_tokens(p.combine, n), p; }
  static int64_t tokens_of(const Problem& p) { return p.combine.tokens; }
};

Expectations reference(const CombineNorm::Problem& problem, const CombineNorm::Args& args);
Expectations reference_given(const CombineNorm::Problem& problem, const CombineNorm::Args& args);

}  // namespace sluice
