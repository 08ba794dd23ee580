#pragma once
#include "ops/op.h"

namespace sluice {

// Scales each row to unit mean square, optionally after adding it to the residual stream.
//
//   h[t, i] = x[t, i] (+ residual[t, i], and the sum is written back to residual, rounded to its type)
//   y[t, i] = h[t, i] / sqrt(mean_i h^2 + eps) * weight[i]
//   with a residual, h is the sum before that rounding
//
// A row holds `heads` heads next to each other, for example the queries or keys that a projection writes. Each head has
// its own mean; all heads share one weight.
//
// Shapes     x, residual, y [tokens, heads * hidden], rows may be strided; weight [hidden]. tokens >= 0; heads and
//            hidden at least 1, heads * hidden at most 65536; eps from 2^-100 to 1 (so that eps and 1 / sqrt(eps) are
//            normal f32 numbers). y may alias x.
// Types      x and residual both bf16 or both f32; weight bf16 or f32; y bf16 or f32. f32 arithmetic.
// NaN        in a head makes that head of y NaN. If the sum of squares of a head overflows f32 while every h is
//            finite, that head is unspecified.
// Bytes      reads x (and residual), writes y (and residual).
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  y: (hidden / 2 + 12) * 2^-24 * |ref| + half an ulp: the sum of squares is off by at most (hidden + 5)
//            roundings, the square root halves that error, and the other operations add a few roundings.
//            residual: 2^-24 |h| + half an ulp. Numbers below 2^-126 may be flushed to zero.
// Source     Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019); openai/gpt-oss RMSNorm.
struct RmsNorm {
  static constexpr std::string_view kName = "rms_norm";
  static constexpr std::string_view kSummary =
      "scales each row to unit mean square, optionally after adding it to the residual stream";
  struct Problem {
    int64_t tokens = 1, hidden = 2880;
    double eps = 1e-5;
    DType x = DType::kBF16, w = DType::kBF16, y = DType::kBF16;
    bool residual = false;
    int64_t heads = 1;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "rows of x");
      v("hidden", p.hidden, "elements of a head; with heads=1, of a row");
      v("eps", p.eps, "added to the mean square");
      v("x", p.x, "type of x and the residual");
      v("w", p.w, "type of the weight");
      v("y", p.y, "type of y");
      v("residual", p.residual, "adds x to the residual stream first");
      v("heads", p.heads, "heads in a row, each normalized separately");
    }
  };
  struct Args {
    Tensor x, weight, residual, y;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    const auto strided = Rows::kMayBeStrided;
    const int64_t width = p.heads * p.hidden;
    v(slot("x", Role::kIn, p.x, {p.tokens, width}, true, strided), &Args::x);
    v(slot("weight", Role::kIn, p.w, {p.hidden}), &Args::weight);
    v(slot("residual", Role::kInOut, p.x, {p.tokens, width}, p.residual, strided), &Args::residual);
    v(slot("y", Role::kOut, p.y, {p.tokens, width}, true, strided), &Args::y);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p) { return 4.0 * p.tokens * p.heads * p.hidden; }
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const RmsNorm::Problem& problem, const RmsNorm::Args& args);

}  // namespace sluice
