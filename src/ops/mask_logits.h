#pragma once
#include "ops/op.h"

namespace sluice {

enum class MaskWay : uint8_t {
  kApply,    // keeps the allowed tokens, sets the others to -inf, and saves the original logits
  kRestore,  // writes the saved logits back
};
template <>
struct EnumWords<MaskWay> {
  static constexpr std::string_view words[] = {"apply", "restore"};
};

// kApply removes tokens from a few rows of logits before sampling. After sampling, kRestore writes the original rows back, so that log
// probabilities are the model's (ops/top_logprobs.h).
//
//   Mask m applies to row r = row[m]; x = logits[r, i]. apply:
//     raw[m, i] = x
//     x = -inf    bit i % 32 of allowed[m, i / 32] is 0
//   restore: x = raw[m, i]. Bits are copied unchanged, NaN included. A mask whose row does not exist is skipped: nothing is read or
//   written for it. If two masks refer to the same row, that row and both raw rows depend on the order of reads and writes, which is
//   unspecified. Other rows do not change.
//
// Shapes     row i32[masks]; allowed i32[masks, ceil(vocab / 32)]; raw f32[masks, vocab]; logits f32[rows, vocab], rows may be
//            strided. masks, rows >= 0; vocab from 1 to 2^24. restore uses row, raw and logits.
// Bytes      12 (apply) or 8 (restore) per logit of a masked row, and the bitmask.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  equal to the reference.
// Source     original; bits as in the token bitmasks of vLLM and SGLang.
struct MaskLogits {
  static constexpr std::string_view kName = "mask_logits";
  static constexpr std::string_view kSummary =
      "removes tokens that are not allowed from a few rows of logits, and restores them";
  struct Problem {
    int64_t masks = 1, rows = 1, vocab = 201088;
    MaskWay way = MaskWay::kApply;
    int64_t words() const { return (vocab + 31) / 32; }
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("masks", p.masks, "rows that have a mask");
      v("rows", p.rows, "rows of logits");
      v("vocab", p.vocab, "columns of logits");
      v("way", p.way, "apply or restore");
    }
  };
  struct Args {
    Tensor row, allowed, raw, logits;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    const bool apply = p.way == MaskWay::kApply;
    v(slot("row", Role::kIn, DType::kI32, {p.masks}), &Args::row);
    v(slot("allowed", Role::kIn, DType::kI32, {p.masks, p.words()}, apply), &Args::allowed);
    v(slot("raw", apply ? Role::kOut : Role::kIn, DType::kF32, {p.masks, p.vocab}), &Args::raw);
    v(slot("logits", Role::kInOut, DType::kF32, {p.rows, p.vocab}, true, Rows::kMayBeStrided), &Args::logits);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem&) { return 0; }
  static Problem at_tokens(Problem p, int64_t n) { return p.masks = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.masks; }
};

Expectations reference(const MaskLogits::Problem& problem, const MaskLogits::Args& args);

}  // namespace sluice
