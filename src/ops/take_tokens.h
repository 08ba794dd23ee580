#pragma once
#include "ops/op.h"

namespace sluice {

// Combines tokens sampled by the previous step with tokens known to the host, so that a step can be enqueued before the host has read the
// previous step's samples.
//
//   y[t] = ids[t]                 ids[t] >= 0
//          sampled[-1 - ids[t]]   ids[t] < 0, if that row exists
//          -1                     otherwise: no token (ops/embedding.h gives zeros)
//
// With map > 0 the sampled tokens belong to a draft head with its own vocabulary: token_of[sampled[..]] replaces sampled[..],
// and -1 replaces a token outside the map.
//
// Shapes     ids, y i32[tokens]; sampled i32[rows]; token_of i32[map]. tokens >= 0; rows from 1 and map from 0 to 2^31 - 1.
// Bytes      reads ids and at most as many sampled tokens, writes y.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  equal to the reference.
// Source     original.
struct TakeTokens {
  static constexpr std::string_view kName = "take_tokens";
  static constexpr std::string_view kSummary =
      "combines known tokens with tokens that the previous step sampled";
  struct Problem {
    int64_t tokens = 1, rows = 256, map = 0;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "ids of this step");
      v("rows", p.rows, "tokens that the previous step may have sampled");
      v("map", p.map,
        "tokens of the draft head's vocabulary; 0: sampled tokens are in the model's vocabulary");
    }
  };
  struct Args {
    Tensor ids, sampled, token_of, y;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    v(slot("ids", Role::kIn, DType::kI32, {p.tokens}), &Args::ids);
    v(slot("sampled", Role::kIn, DType::kI32, {p.rows}), &Args::sampled);
    v(slot("token_of", Role::kIn, DType::kI32, {p.map}, p.map > 0), &Args::token_of);
    v(slot("y", Role::kOut, DType::kI32, {p.tokens}), &Args::y);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p) { return 12.0 * static_cast<double>(p.tokens); }
  static double flops(const Problem&) { return 0; }
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const TakeTokens::Problem& problem, const TakeTokens::Args& args);

}  // namespace sluice
