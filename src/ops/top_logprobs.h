#pragma once
#include "ops/op.h"

namespace sluice {

// Log probabilities of some rows of logits: of each row's given token, and of the most likely tokens.
//
//   For q in [0, rows), with x = logits[row[q]], t = token[row[q]] and ln p = x - ln(sum over i of e^x[i]):
//   logprob[q]          ln p[t]
//   rank[q]             1 + the number of tokens that precede t
//   top_id[q, :]        the first `top` tokens in order
//   top_logprob[q, :]   ln p of these tokens
//   The order is by logit, descending, then by id; -0 equals +0, and NaN counts as -inf throughout. So rank r is the position
//   of t in any list of at least r tokens, even with ties.
//
//   If top exceeds the vocabulary, the rest of the list has id -1 and logprob NaN. In a row with +inf, or whose logits are all -inf,
//   every logprob is NaN. A token outside [0, vocab) has logprob NaN and rank 0. A row that does not exist has rank 0, ids -1 and
//   logprobs NaN.
//
// Shapes     logits f32[logit_rows, vocab], rows may be strided; token i32[logit_rows]; row, rank i32[rows]; logprob
//            f32[rows]; top_id i32[rows, top], top_logprob f32[rows, top], absent if top is 0. rows, logit_rows >= 0; vocab
//            from 1 to 2^24; top from 0 to 32.
// Bytes      reads the rows once, writes 8 + 8 * top bytes per row.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  ids and ranks: equal to the reference. logprobs: within 2^-18 * (1 + |ref|), -inf and NaN equal.
// Source     vLLM, vllm/v1/sample/sampler.py, gather_logprobs; vLLM's rank also counts all tokens with an equal logit.
struct TopLogprobs {
  static constexpr std::string_view kName = "top_logprobs";
  static constexpr std::string_view kSummary =
      "log probabilities of given tokens and of the most likely tokens";
  struct Problem {
    int64_t rows = 1, logit_rows = 1, vocab = 201088, top = 20;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("rows", p.rows, "rows to score");
      v("logit_rows", p.logit_rows, "rows of logits");
      v("vocab", p.vocab, "columns of logits");
      v("top", p.top, "most likely tokens to return for each row");
    }
  };
  struct Args {
    Tensor logits, token, row, logprob, rank, top_id, top_logprob;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    v(slot("logits", Role::kIn, DType::kF32, {p.logit_rows, p.vocab}, true, Rows::kMayBeStrided),
      &Args::logits);
    v(slot("token", Role::kIn, DType::kI32, {p.logit_rows}), &Args::token);
    v(slot("row", Role::kIn, DType::kI32, {p.rows}), &Args::row);
    v(slot("logprob", Role::kOut, DType::kF32, {p.rows}), &Args::logprob);
    v(slot("rank", Role::kOut, DType::kI32, {p.rows}), &Args::rank);
    v(slot("top_id", Role::kOut, DType::kI32, {p.rows, p.top}, p.top > 0), &Args::top_id);
    v(slot("top_logprob", Role::kOut, DType::kF32, {p.rows, p.top}, p.top > 0), &Args::top_logprob);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem&) { return 0; }
  static Problem at_tokens(Problem p, int64_t n) { return p.rows = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.rows; }
};

Expectations reference(const TopLogprobs::Problem& problem, const TopLogprobs::Args& args);

}  // namespace sluice
