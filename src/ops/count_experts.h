#pragma once
#include "ops/op.h"

namespace sluice {

// Adds to each expert's count the number of a step's tokens that chose it, in all layers at once.
//
//   counts[l, e] += how many of ids[l, :, :] are e
//
// An id outside [0, experts) is ignored (a negative id means no expert: ops/route_topk.h).
//
// Shapes     ids i32[layers, tokens, top_k], layers may be strided; counts i64[layers, experts]. tokens >= 0, top_k from 1 to 32,
//            experts from 1 to 1024; layers from 1 to 2^31 - 1. tokens == 0 is legal and writes nothing.
// Bytes      reads ids, reads and writes counts.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  equal to the reference, as long as counts stay below 2^63.
// Source     original.
struct CountExperts {
  static constexpr std::string_view kName = "count_experts";
  static constexpr std::string_view kSummary = "counts the tokens that each expert of each layer gets";
  struct Problem {
    int64_t layers = 36, tokens = 1, top_k = 4, experts = 128;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("layers", p.layers, "layers, each with its own experts");
      v("tokens", p.tokens, "tokens of this step");
      v("top_k", p.top_k, "experts for each token");
      v("experts", p.experts, "experts of a layer");
    }
  };
  struct Args {
    Tensor ids, counts;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    v(slot("ids", Role::kIn, DType::kI32, {p.layers, p.tokens, p.top_k}, true, Rows::kMayBeStrided),
      &Args::ids);
    v(slot("counts", Role::kInOut, DType::kI64, {p.layers, p.experts}), &Args::counts);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p) {
    return static_cast<double>(p.layers) *
           (4.0 * static_cast<double>(p.tokens * p.top_k) + 16.0 * static_cast<double>(p.experts));
  }
  static double flops(const Problem&) { return 0; }
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const CountExperts::Problem& problem, const CountExperts::Args& args);

}  // namespace sluice
