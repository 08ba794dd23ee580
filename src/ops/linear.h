#pragma once
#include "ops/op.h"
#include "ops/row_align.h"
#include "ops/weight_layout.h"

namespace sluice {

// A dense layer.
//
//   y[t, n] = sum_k x[t, k] * w[n, k] (+ bias[n]) (+ residual[t, n])
//
// Shapes     x [tokens, width], w [features, width] row-major, or u8[bytes] in panels16 (bf16 only, size from
//            panel_shape without a gate), bias [features], residual and y [tokens, features]; rows of x,
//            residual and y may be strided. 0 <= tokens < 2^31; features, width from 1 to 2^20. y may alias residual.
//            Rows of x begin at multiples of 16 bytes if their size is a multiple of 16 (field x_unaligned: anywhere).
// Types      x bf16 or f32; w and bias both bf16 or both f32; y and residual bf16 or f32. Sums in f32.
// NaN        as the formula says.
// Bytes      w, x, y once; 2 * tokens * features * width flops.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  |y - ref| <= (width + 4) * 2^-24 * (sum |x||w| + |bias| + |residual|) + half an ulp of y, and
//            2^-126 for each number below the smallest normal, which may be flushed to zero. If that sum of magnitudes
//            exceeds the largest f32, the result may overflow too.
// Source     torch.nn.Linear.
struct Linear {
  static constexpr std::string_view kName = "linear";
  static constexpr std::string_view kSummary = "a dense layer, with bias and residual";
  struct Problem {
    int64_t tokens = 1, features = 2880, width = 2880;
    DType x = DType::kBF16, w = DType::kBF16, y = DType::kBF16;
    WeightLayout layout = WeightLayout::kRowMajor;
    bool bias = false, residual = false;
    bool x_unaligned = false;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "rows of x");
      v("features", p.features, "rows of w");
      v("width", p.width, "length of the sums");
      v("x", p.x, "type of the activations");
      v("w", p.w, "type of the weights and the bias");
      v("y", p.y, "type of y and the residual");
      v("layout", p.layout, "layout of the weights");
      v("bias", p.bias, "adds bias[features]");
      v("residual", p.residual, "adds the residual stream");
      v("x_unaligned", p.x_unaligned, "rows of x may begin anywhere, not only at multiples of 16 bytes");
    }
  };
  struct Args {
    Tensor x, w, bias, residual, y;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    const auto strided = Rows::kMayBeStrided;
    SlotSpec x = slot("x", Role::kIn, p.x, {p.tokens, p.width}, true, strided);
    x.row_align = row_align(p.x, p.width, p.x_unaligned);
    v(x, &Args::x);
    v(p.layout == WeightLayout::kPanels16
          ? slot("w", Role::kIn, DType::kU8, {panel_shape(p.features, false, p.width).code_bytes({})})
          : slot("w", Role::kIn, p.w, {p.features, p.width}),
      &Args::w);
    v(slot("bias", Role::kIn, p.w, {p.features}, p.bias), &Args::bias);
    v(slot("residual", Role::kIn, p.y, {p.tokens, p.features}, p.residual, strided), &Args::residual);
    v(slot("y", Role::kOut, p.y, {p.tokens, p.features}, true, strided), &Args::y);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p) { return 2.0 * p.tokens * p.features * p.width; }
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const Linear::Problem& problem, const Linear::Args& args);

}  // namespace sluice
