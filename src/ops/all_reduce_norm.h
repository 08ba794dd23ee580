#pragma once
#include <span>

#include "ops/op.h"
#include "ops/row_align.h"

namespace sluice {

// Sums a row over the ranks of a group (dispatch/group.h), adds the sum to the residual stream and normalizes the stream: the work between
// a row-parallel projection (its input is split among the ranks) and the next projection.
//
//   stream[t, i] = x_0[t, i] + x_1[t, i] + ... (+ stream[t, i], last), where x_r is the x of rank r; rounded to its type
//   y[t, i]      = RmsNorm of the rounded stream, with weight and eps (ops/rms_norm.h)
//
// A collective: every rank of the group runs it with the same problem, and all ranks run the group's operations in the same order. Each rank passes
// its own tensors; with `residual`, stream must hold equal values on all ranks. The order of the sum is fixed as written, so stream and y have the
// same bits on all ranks and in every run. With one rank there is no exchange, and no group is needed.
//
// Shapes     x, stream, y [tokens, hidden], rows may be strided and begin at multiples of 16 bytes; weight [hidden]. tokens >= 0; hidden a
//            multiple of 8 up to 8192; ranks 1 to 8; eps as in RmsNorm. Tensors must not overlap.
// Types      x, stream and y all bf16 or all f32; weight bf16 or f32. f32 arithmetic.
// NaN        as in RmsNorm. A NaN or an infinity of one rank reaches all ranks.
// Bytes      reads x (and stream), writes stream (and y); sends x to other ranks.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: kInvalidArgument if the stream's device is in no group of
//            `ranks` ranks, or if a row exceeds the group's row_bytes. If a rank fails, the outputs of all ranks are unspecified, and the
//            devices report the failure (Group).
// Exactness  stream: (ranks + 1) * 2^-24 * sum |addend| + half an ulp. y: RmsNorm's bound, relative to the stream that was written.
// Source     the sum as in NCCL's LL protocol and vLLM's custom all-reduce; FlashInfer and TensorRT-LLM fuse it with the norm.
struct AllReduceNorm {
  static constexpr std::string_view kName = "all_reduce_norm";
  static constexpr std::string_view kSummary =
      "sums rows over the ranks of a group, adds them to the residual stream and norms it";
  static constexpr int64_t kRanksMax = 8, kHiddenMax = 8192, kHiddenUnit = 8;
  struct Problem {
    int64_t tokens = 1, hidden = 2880, ranks = 1;
    double eps = 1e-5;
    DType x = DType::kBF16, w = DType::kBF16;
    bool residual = true, norm = true;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "rows of x");
      v("hidden", p.hidden, "elements of a row");
      v("ranks", p.ranks, "devices whose rows are added");
      v("eps", p.eps, "added to the mean square");
      v("x", p.x, "type of x, the stream and y");
      v("w", p.w, "type of the norm's weight");
      v("residual", p.residual, "adds the sum to the stream instead of replacing the stream");
      v("norm", p.norm, "norms the stream");
    }
  };
  struct Args {
    Tensor x, stream, weight, y;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    const auto rows = [&](std::string_view name, Role role, bool used = true) {
      SlotSpec spec = slot(name, role, p.x, {p.tokens, p.hidden}, used, Rows::kMayBeStrided);
      spec.row_align = row_align(p.x, p.hidden, false);
      return spec;
    };
    v(rows("x", Role::kIn), &Args::x);
    v(rows("stream", p.residual ? Role::kInOut : Role::kOut), &Args::stream);
    v(slot("weight", Role::kIn, p.w, {p.hidden}, p.norm), &Args::weight);
    v(rows("y", Role::kOut, p.norm), &Args::y);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p) {
    return static_cast<double>(p.tokens * p.hidden * (p.ranks + (p.norm ? 4 : 0)));
  }
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

// With more than one rank the other ranks' x is unknown, so the reference accepts any stream.
Expectations reference(const AllReduceNorm::Problem& problem, const AllReduceNorm::Args& args);
Expectations reference_given(const AllReduceNorm::Problem& problem, const AllReduceNorm::Args& args);
// Computes the stream that every rank must have from the args of all ranks.
Expectations reference_of_ranks(const AllReduceNorm::Problem& problem,
                                std::span<const AllReduceNorm::Args> ranks);

}  // namespace sluice
