#pragma once
#include "ops/op.h"

namespace sluice {

enum class AdjustWay : uint8_t {
  kApply,    // applies penalties and biases, and saves the original logits
  kRestore,  // writes the saved logits back
};
template <>
struct EnumWords<AdjustWay> {
  static constexpr std::string_view words[] = {"apply", "restore"};
};

// kApply changes a few logits of each row before sampling: penalties on tokens that have occurred, biases on any token. After sampling,
// kRestore writes the originals back, so that log probabilities are the model's (ops/top_logprobs.h) without a copy of all logits.
//
//   Entry e names x = logits[row[e], id[e]]. apply:
//     raw[e] = x
//     x = x + logit_bias[e]
//     x = x > 0 ? x / repetition : x * repetition    in_prompt[e] != 0 or count[e] > 0
//     x = x - frequency * count[e] - presence        count[e] > 0
//   with the parameters of row[e]; a NaN parameter disables its step. restore: x = raw[e]. Arithmetic is IEEE: -inf stays -inf,
//   NaN stays NaN. An entry whose row or id does not exist is skipped: nothing is read or written for it. If two entries refer
//   to the same logit, that logit and both raw values depend on the order of reads and writes, which is unspecified. Other
//   logits do not change: a row without entries costs nothing.
//
// Shapes     row, id, count i32[entries]; in_prompt u8[entries]; logit_bias, raw f32[entries]; repetition, frequency,
//            presence f32[rows]; logits f32[rows, vocab], rows may be strided. entries, rows >= 0; vocab from 1 to 2^24.
//            restore uses row, id, raw and logits.
// Bytes      21 (apply) or 12 (restore) per entry, plus 8 to read and write its logit.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  2^-21 * (max(1, repetition, 1 / repetition) * (|raw| + |logit_bias|) + |frequency * count| + |presence|); raw,
//            restored logits and logits without an entry: equal. Numbers below 2^-126 may be flushed to zero.
// Source     Keskar et al., "CTRL" (2019) for repetition; vLLM, vllm/v1/sample/sampler.py, for the order, biases first.
struct AdjustLogits {
  static constexpr std::string_view kName = "adjust_logits";
  static constexpr std::string_view kSummary = "penalties and biases on a few logits of each row";
  struct Problem {
    int64_t entries = 1000, rows = 1, vocab = 201088;
    AdjustWay way = AdjustWay::kApply;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("entries", p.entries, "logits to change");
      v("rows", p.rows, "rows of logits");
      v("vocab", p.vocab, "columns of logits");
      v("way", p.way, "apply or restore");
    }
  };
  struct Args {
    Tensor row, id, count, in_prompt, logit_bias, repetition, frequency, presence, raw, logits;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    const bool apply = p.way == AdjustWay::kApply;
    v(slot("row", Role::kIn, DType::kI32, {p.entries}), &Args::row);
    v(slot("id", Role::kIn, DType::kI32, {p.entries}), &Args::id);
    v(slot("count", Role::kIn, DType::kI32, {p.entries}, apply), &Args::count);
    v(slot("in_prompt", Role::kIn, DType::kU8, {p.entries}, apply), &Args::in_prompt);
    v(slot("logit_bias", Role::kIn, DType::kF32, {p.entries}, apply), &Args::logit_bias);
    v(slot("repetition", Role::kIn, DType::kF32, {p.rows}, apply), &Args::repetition);
    v(slot("frequency", Role::kIn, DType::kF32, {p.rows}, apply), &Args::frequency);
    v(slot("presence", Role::kIn, DType::kF32, {p.rows}, apply), &Args::presence);
    v(slot("raw", apply ? Role::kOut : Role::kIn, DType::kF32, {p.entries}), &Args::raw);
    v(slot("logits", Role::kInOut, DType::kF32, {p.rows, p.vocab}, true, Rows::kMayBeStrided), &Args::logits);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem&) { return 0; }
  static Problem at_tokens(Problem p, int64_t n) { return p.entries = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.entries; }
};

Expectations reference(const AdjustLogits::Problem& problem, const AdjustLogits::Args& args);

}  // namespace sluice
