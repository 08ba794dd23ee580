#pragma once
#include "ops/op.h"

namespace sluice {

// Sums the experts' outputs of each token.
//
//   y[t] = scale * sum_k w[t, k] * (g[position[t, k]] (+ bias[ids[t, k]])) (+ shared[t]) (+ residual[t])
//
//   w = weights[t, k], or 1 if not `weighted` (the expert's input was weighted instead). A slot whose position is
//   outside [0, rows) contributes nothing at all, whatever its weight; a token without slots gets shared + residual,
//   or zeros. The order is fixed: the sum over ascending k in f32, starting at zero; then * scale, + shared, + residual.
//
// Shapes     g [rows, hidden], position i32[tokens, slots], ids i32[tokens, slots] (with bias; an id outside
//            [0, experts) adds no bias), weights f32[tokens, slots], bias [experts, hidden], shared and
//            residual [tokens, hidden] in y's type, y [tokens, hidden]; rows of g, shared, residual and y may
//            be strided. slots <= 64. tokens == 0 is legal. y may alias residual or shared (same rows), but no other
//            tensor.
// Types      g, bias, y bf16 or f32 (fields g, b, y); f32 arithmetic, one rounding to y.
// Settled    position, ids and weights were written before the previous launch, so a dependent launch may read
//            them before the previous launch has ended.
// Bytes      reads tokens * slots rows of g, writes `tokens` rows of y.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  |y - ref| <= (slots + 6) * 2^-24 * (|scale| sum |w|(|g| + |bias|) + |shared| + |residual|), and
//            half an ulp of y.
// Source     the finalize step of openai/gpt-oss MLPBlock (einsum over the chosen experts, then the residual) and of
//            DeepSeek-V3 MoE.forward (routed scale, shared experts).
struct Combine {
  static constexpr std::string_view kName = "combine";
  static constexpr std::string_view kSummary = "sums the experts' outputs of each token, with their weights";
  struct Problem {
    int64_t tokens = 1, slots = 4, rows = 4, hidden = 2880, experts = 32;
    DType g = DType::kBF16, b = DType::kBF16, y = DType::kBF16;
    bool weighted = true, bias = false, shared = false, residual = false, settled = false;
    double scale = 1;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "rows of y");
      v("slots", p.slots, "experts for each token");
      v("rows", p.rows, "rows of g");
      v("hidden", p.hidden, "columns of y");
      v("experts", p.experts, "rows of bias");
      v("g", p.g, "type of the experts' outputs");
      v("b", p.b, "type of the bias");
      v("y", p.y, "type of y, shared and residual");
      v("weighted", p.weighted, "multiplies by the router weights");
      v("bias", p.bias, "adds each expert's bias");
      v("shared", p.shared, "adds the shared expert's output");
      v("residual", p.residual, "adds the residual stream");
      v("settled", p.settled, "positions and router weights were written before the previous launch");
      v("scale", p.scale, "routed scaling factor");
    }
  };
  struct Args {
    Tensor g, position, ids, weights, bias, shared, residual, y;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    const auto strided = Rows::kMayBeStrided;
    v(slot("g", Role::kIn, p.g, {p.rows, p.hidden}, true, strided), &Args::g);
    v(slot("position", Role::kIn, DType::kI32, {p.tokens, p.slots}), &Args::position);
    v(slot("ids", Role::kIn, DType::kI32, {p.tokens, p.slots}, p.bias), &Args::ids);
    v(slot("weights", Role::kIn, DType::kF32, {p.tokens, p.slots}, p.weighted), &Args::weights);
    v(slot("bias", Role::kIn, p.b, {p.experts, p.hidden}, p.bias), &Args::bias);
    v(slot("shared", Role::kIn, p.y, {p.tokens, p.hidden}, p.shared, strided), &Args::shared);
    v(slot("residual", Role::kIn, p.y, {p.tokens, p.hidden}, p.residual, strided), &Args::residual);
    v(slot("y", Role::kOut, p.y, {p.tokens, p.hidden}, true, strided), &Args::y);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p) { return 2.0 * p.tokens * p.slots * p.hidden; }
  static Problem at_tokens(Problem p, int64_t n);  // keeps the padding rows, rows - tokens * slots
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const Combine::Problem& problem, const Combine::Args& args);

}  // namespace sluice
