#pragma once
#include "ops/op.h"

namespace sluice {

// Computes the score of every expert for every token.
//
//   y[t, e] = sum_h x[t, h] * w[e, h] (+ bias[e])
//
// Shapes     x [tokens, hidden], w [experts, hidden], bias [experts], y [tokens, experts]; rows of x and y
//            may be strided. 0 <= tokens <= 16384, 1 <= experts <= 1024, 1 <= hidden <= 65536.
// Types      x bf16 or f32; w and bias both bf16 or both f32; y bf16 or f32. Products and sums in f32.
// NaN        propagates along its row of x or w, as the formula says.
// Bytes      reads x, w, bias once, writes y once; 2 * tokens * experts * hidden flops.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  |y - ref| <= (hidden + 3) * 2^-24 * (sum_h |x||w| + |bias|) + half an ulp of y, and 2^-126 for
//            each number below the smallest normal, which may be flushed to zero.
// Source     the router of every MoE model; the bias is openai/gpt-oss's (gpt_oss/torch/model.py, MLPBlock).
struct RouterGemm {
  static constexpr std::string_view kName = "router_gemm";
  static constexpr std::string_view kSummary = "scores every expert for every token";
  struct Problem {
    int64_t tokens = 1, experts = 128, hidden = 2880;
    DType x = DType::kBF16, w = DType::kBF16, y = DType::kF32;
    bool bias = false;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "rows of x");
      v("experts", p.experts, "rows of w");
      v("hidden", p.hidden, "length of the sums");
      v("x", p.x, "type of the activations");
      v("w", p.w, "type of the weights and the bias");
      v("y", p.y, "type of the logits");
      v("bias", p.bias, "adds bias[experts]");
    }
  };
  struct Args {
    Tensor x, w, bias, y;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    v(slot("x", Role::kIn, p.x, {p.tokens, p.hidden}, true, Rows::kMayBeStrided), &Args::x);
    v(slot("w", Role::kIn, p.w, {p.experts, p.hidden}), &Args::w);
    v(slot("bias", Role::kIn, p.w, {p.experts}, p.bias), &Args::bias);
    v(slot("y", Role::kOut, p.y, {p.tokens, p.experts}, true, Rows::kMayBeStrided), &Args::y);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p) { return 2.0 * p.tokens * p.experts * p.hidden; }
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const RouterGemm::Problem& problem, const RouterGemm::Args& args);

}  // namespace sluice
