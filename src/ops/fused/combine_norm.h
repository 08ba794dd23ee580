#pragma once
#include "ops/combine.h"
#include "ops/rms_norm.h"
#include "ops/row_align.h"

namespace sluice {

// Combine followed by RmsNorm, fused: the work between the experts of a layer and the projection of the next layer.
//
//   y      = as in ops/combine.h
//   normed = RmsNorm of the rounded y, with norm_weight and eps (ops/rms_norm.h)
//
// Shapes     as in combine.h; norm_weight [hidden], normed [tokens, hidden], rows may be strided. y may alias residual or
//            shared (same rows), but no other tensor.
// Types      normed has the type of y; norm_weight bf16 or f32 (field norm_w).
// Bytes      Combine's bytes, and normed once.
// Errors     make_plan: kInvalidArgument if the problem violates a limit here or in combine.h or rms_norm.h. run: never fails on data.
// Exactness  y as in combine.h, normed as in rms_norm.h for the rounded y.
// Source     combine.h and rms_norm.h; TensorRT-LLM and FlashInfer fuse the same two steps to save a pass over y.
struct CombineNorm {
  static constexpr std::string_view kName = "combine_norm";
  static constexpr std::string_view kSummary =
      "sums the experts' outputs of each token, and normalizes the sum for the next layer";
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
  // The second half. The first half is Problem::combine, and Args extends its Args.
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
