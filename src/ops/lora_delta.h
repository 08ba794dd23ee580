#pragma once
#include "ops/op.h"

namespace sluice {

// Adds a low-rank update to the output of a linear layer, for example the router.
//
//   y[t, n] += scale[i] * sum_r b[i, n, r] * (sum_h a[i, r, h] * x[t, h]),  i = adapter[t]
//
// A token whose adapter is outside [0, adapters), -1 by convention, keeps its y unchanged.
//
// Shapes     x [tokens, hidden], a [adapters, rank, hidden], b [adapters, features, rank],
//            scale f32[adapters], adapter i32[tokens], y [tokens, features] in and out; rows of x and y
//            may be strided. adapters and rank from 1 to 1024, features and hidden from 1 to 65536,
//            0 <= tokens < 2^31.
// Types      x bf16 or f32; a and b both bf16 or both f32; y bf16 or f32. Sums in f32; A x stays in f32.
// Bytes      reads x, a, b, y once, writes y once.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  |y - ref| <= (hidden + rank + 6) * 2^-24 * (|y0| + |scale| sum_r |b| sum_h |a||x|) + ulp(y) / 2.
// Source     Hu et al., "LoRA" (2021), equation 3, on the router: y = base(x) + scale * B(A x).
struct LoraDelta {
  static constexpr std::string_view kName = "lora_delta";
  static constexpr std::string_view kSummary = "adds a low-rank update to the output of a linear layer";
  struct Problem {
    int64_t tokens = 1, features = 128, hidden = 2880, rank = 16, adapters = 1;
    DType x = DType::kBF16, w = DType::kBF16, y = DType::kF32;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "rows of x");
      v("features", p.features, "columns of y");
      v("hidden", p.hidden, "columns of x");
      v("rank", p.rank, "inner size of the update");
      v("adapters", p.adapters, "adapters; each token uses at most one");
      v("x", p.x, "type of the activations");
      v("w", p.w, "type of a and b");
      v("y", p.y, "type of y");
    }
  };
  struct Args {
    Tensor x, a, b, scale, adapter, y;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    v(slot("x", Role::kIn, p.x, {p.tokens, p.hidden}, true, Rows::kMayBeStrided), &Args::x);
    v(slot("a", Role::kIn, p.w, {p.adapters, p.rank, p.hidden}), &Args::a);
    v(slot("b", Role::kIn, p.w, {p.adapters, p.features, p.rank}), &Args::b);
    v(slot("scale", Role::kIn, DType::kF32, {p.adapters}), &Args::scale);
    v(slot("adapter", Role::kIn, DType::kI32, {p.tokens}), &Args::adapter);
    v(slot("y", Role::kInOut, p.y, {p.tokens, p.features}, true, Rows::kMayBeStrided), &Args::y);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p) { return 2.0 * p.tokens * p.rank * (p.hidden + p.features); }
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const LoraDelta::Problem& problem, const LoraDelta::Args& args);

}  // namespace sluice
