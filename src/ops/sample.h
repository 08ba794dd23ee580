#pragma once
#include "ops/op.h"

namespace sluice {

// Samples one token from each row of logits. NaN logits count as -inf throughout.
//
// Greedy (temperature[r] not above 0, or the problem declares all rows greedy): the largest logit, ties (-0 equals +0) to the lower id.
// Otherwise, in this order: p = softmax(logits / temperature), sorted by logit descending, ties by lower id;
//   top_k[r] > 0: keep the first top_k;
//   top_p[r] < 1: renormalize the kept tokens; keep the shortest prefix whose sum reaches top_p, at least one token;
//   min_p[r] > 0: of these keep the tokens with p >= min_p * (largest p), at least one token;
//   renormalize; u = uniform(seed[r], step[r]) (base/random.h); take the first token whose running sum exceeds u.
// logprob[r] = ln softmax(logits)[token] of the unmodified logits. A row whose logits are all -inf gives token 0 and logprob NaN. A row
// with +inf is greedy, and its logprob is NaN.
//
// Shapes     logits [rows, vocab], rows may be strided; temperature, top_p, min_p f32[rows]; top_k i32[rows];
//            seed and step i64[rows], all of them absent if every row is greedy; token i32[rows], logprob f32[rows]. rows >= 0,
//            vocab from 1 to 2^24.
// Types      logits f32 or bf16.
// Bytes      reads the logits.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data. A parameter that is NaN disables its step
//            (temperature: greedy).
// Exactness  token: equal to the reference, except near a threshold, where the tokens on both sides are accepted: u within 2^-20 of a
//            running sum, a running sum within 2^-20 of top_p, p / (largest p) within 2^-20 of min_p. Equal inputs always give equal
//            tokens on one backend. logprob: of the returned token, within 2^-18 * (1 + |ref|).
// Source     Holtzman et al. (2020) for top-p; Hugging Face generation/logits_process.py for the order.
struct Sample {
  static constexpr std::string_view kName = "sample";
  static constexpr std::string_view kSummary = "samples one token from each row of logits";
  struct Problem {
    int64_t rows = 1, vocab = 201088;
    DType logits = DType::kF32;
    bool greedy = false;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("rows", p.rows, "sequences to sample for");
      v("vocab", p.vocab, "columns of logits");
      v("logits", p.logits, "type of the logits");
      v("greedy", p.greedy, "every row is greedy");
    }
  };
  struct Args {
    Tensor logits, temperature, top_k, top_p, min_p, seed, step, token, logprob;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    const bool samples = !p.greedy;
    v(slot("logits", Role::kIn, p.logits, {p.rows, p.vocab}, true, Rows::kMayBeStrided), &Args::logits);
    v(slot("temperature", Role::kIn, DType::kF32, {p.rows}, samples), &Args::temperature);
    v(slot("top_k", Role::kIn, DType::kI32, {p.rows}, samples), &Args::top_k);
    v(slot("top_p", Role::kIn, DType::kF32, {p.rows}, samples), &Args::top_p);
    v(slot("min_p", Role::kIn, DType::kF32, {p.rows}, samples), &Args::min_p);
    v(slot("seed", Role::kIn, DType::kI64, {p.rows}, samples), &Args::seed);
    v(slot("step", Role::kIn, DType::kI64, {p.rows}, samples), &Args::step);
    v(slot("token", Role::kOut, DType::kI32, {p.rows}), &Args::token);
    v(slot("logprob", Role::kOut, DType::kF32, {p.rows}), &Args::logprob);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem&) { return 0; }
  static Problem at_tokens(Problem p, int64_t n) { return p.rows = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.rows; }
};

Expectations reference(const Sample::Problem& problem, const Sample::Args& args);

}  // namespace sluice
