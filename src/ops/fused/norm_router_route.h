#pragma once
#include "ops/fused/router_route.h"
#include "ops/rms_norm.h"
#include "ops/row_align.h"

namespace sluice {

// RmsNorm followed by RouterRoute, fused: the work between the residual stream and the experts.
//
//   normed                      RmsNorm of x with norm_weight and eps (ops/rms_norm.h)
//   logits, ids, weights, ...   RouterRoute of normed (ops/fused/router_route.h); ids and weights follow from the rounded logits
//
// Shapes     as in rms_norm.h and router_route.h; norm_weight [hidden], normed [tokens, hidden], rows may be strided.
// Types      normed has the type of x; norm_weight bf16 or f32 (field norm_w).
// Bytes      RouterRoute's bytes, and normed once.
// Errors     make_plan: kInvalidArgument if the problem violates a limit here or in rms_norm.h or router_route.h. run: never fails on data.
// Exactness  normed as in RmsNorm. Logits may be computed from the rounded normed, or from a norm rounded to bf16 at another
//            point, so their bound is RouterGemm's for normed, plus 2^-7 * sum |normed| |w|. Unspecified if a sum of squares, or
//            of |x norm_weight w|, overflows f32.
// Source     rms_norm.h and router_route.h; the inverse RMS of a row is a common factor of all its logits.
struct NormRouterRoute {
  static constexpr std::string_view kName = "norm_router_route";
  static constexpr std::string_view kSummary =
      "normalizes each token, scores every expert for it, and chooses experts";
  struct Problem {
    RouterRoute::Problem router;
    double eps = 1e-5;
    DType norm_w = DType::kBF16;
    bool x_unaligned = false;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      RouterRoute::Problem::fields(v, p.router);
      v("eps", p.eps, "added to the mean square");
      v("norm_w", p.norm_w, "type of the norm's weight");
      v("x_unaligned", p.x_unaligned,
        "rows of x and normed may begin anywhere, not only at multiples of 16 bytes");
    }
  };
  struct Args : RouterRoute::Args {
    Tensor norm_weight, normed;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    const int align = row_align(p.router.x, p.router.hidden, p.x_unaligned);
    RouterRoute::slots(p.router, [&](SlotSpec spec, Tensor RouterRoute::Args::*member) {
      if (member == &RouterRoute::Args::x) spec.row_align = align;
      v(spec, static_cast<Tensor Args::*>(member));
    });
    v(slot("norm_weight", Role::kIn, p.norm_w, {p.router.hidden}), &Args::norm_weight);
    SlotSpec normed = slot("normed", Role::kOut, p.router.x, {p.router.route.tokens, p.router.hidden}, true,
                           Rows::kMayBeStrided);
    normed.row_align = align;
    v(normed, &Args::normed);
  }
  // The parts: the norm, and Problem::router on its output.
  static RmsNorm::Problem norm(const Problem& p) {
    return {.tokens = p.router.route.tokens,
            .hidden = p.router.hidden,
            .eps = p.eps,
            .x = p.router.x,
            .w = p.norm_w,
            .y = p.router.x};
  }
  static RmsNorm::Args norm(const Args& a) {
    return {.x = a.x, .weight = a.norm_weight, .residual = {}, .y = a.normed};
  }
  static RouterRoute::Args router(const Args& a) {
    RouterRoute::Args out = a;
    out.x = a.normed;
    return out;
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p) { return RmsNorm::flops(norm(p)) + RouterRoute::flops(p.router); }
  static Problem at_tokens(Problem p, int64_t n) { return p.router = RouterRoute::at_tokens(p.router, n), p; }
  static int64_t tokens_of(const Problem& p) { return p.router.route.tokens; }
};

Expectations reference(const NormRouterRoute::Problem& problem, const NormRouterRoute::Args& args);
Expectations reference_given(const NormRouterRoute::Problem& problem, const NormRouterRoute::Args& args);

}  // namespace sluice
