#pragma once
#include "ops/activation.h"
#include "ops/fragment_layout.h"
#include "ops/op.h"
#include "ops/row_align.h"
#include "ops/weight_layout.h"

namespace sluice {

// Multiplies each row by its own expert's weights and applies bias and activation.
//
//   z[r, j]  = in(r) * sum_h x[row(r), h] * w[e, j, h] (+ bias[e, j])
//              for row_begin[e] <= r < row_begin[e] + row_count[e]
//   y[r, i]  = act(z[r, i])  or  act(z[r, gate row of i], z[r, up row of i])
//
//   row(r) = r, or order[r] / slots when `slots` > 0: rows are gathered from the tokens (x [tokens, width]).
//   in(r)  = 1, or weights[order[r]] when `weighted` (Llama 4 weights the expert's input).
//
// Rows of y that belong to no expert are not written.
//
// With fp8_x a kernel may round rows of x to FP8: it multiplies q[r, h] * s[r] in place of x[r, h], where
//   s[r] = max(max_h |x[r, h]|, 1e-10) / 448   and   q[r, h] = e4m3(x[r, h] / s[r]), to nearest even.
//
// Shapes     features = columns of y, width = columns of x; the weights have `features` rows, or twice as many if
//            the activation is gated. w in layout row_major: bf16, e2m1 or e4m3 [experts, rows, width], the latter two
//            with w_scale u8[experts, rows, bytes of a row's scales] (ops/weight_format.h); in panels16 and fragments:
//            u8[experts, bytes] and w_scale u8[experts, bytes], sizes from panel_shape and fragment_shape. bias [experts, rows] in the
//            checkpoint's order (gate_order).
//            act_params f32[experts, 3] = alpha, beta, limit of each expert, in place of the problem's values.
//            row_begin i32[experts + 1], row_count i32[experts], order i32[rows], weights f32[tokens * slots]
//            as GroupRows and RouteTopk write them. y [rows, features]; rows of x and y may be
//            strided. Rows of x begin at multiples of 16 bytes, unless x_unaligned is set or a row's size is not such a
//            multiple. rows is an upper bound; row_begin[experts] rows are in use. width % 32 == 0 for e2m1 and
//            for scales mx. 0 <= rows < 2^31, experts <= 2048, features and width <= 65536; all of these except rows are at least 1.
// Types      x bf16 or f32; w bf16, e2m1 (scales mx or nv) or e4m3 (scales mx, blocks or rows); bias bf16 or f32
//            (field b), y bf16 or f32. Sums in f32, the activation in f32, one rounding to y.
// Weights    decode exactly for every code and scale. A NaN code or scale makes its weights NaN. In layout fragments, a negative nv
//            scale and a blocks scale of a magnitude outside 2^-60 to 2^60 also make their weights NaN.
// NaN        as the formula says; clamps and relu return NaN for NaN. With fp8_x, a row of x that has an infinity may give anything.
// Bytes      each active expert's weights once, x and y once. expected_rows() affects only the cost.
// Settled    row_begin, row_count, order and weights were written before the previous launch, not by it:
//            a dependent launch may read them, and load weights, before the previous launch has ended.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data written by
//            ops/group_rows.h.
// Exactness  z: (width + 5 + m) * 2^-24 * (|in| sum |x||w| + |bias|), where m is 2 for nv, 3 times the number of a row's scales for blocks and 0
//            otherwise, because kernels may apply nv and blocks scales to sums; plus, for each term, (|in| + 1) times the loss from
//            flushing numbers below the smallest normal to zero. The loss is |x||w| if |x| < 2^-126 or |w| < 2^-126 or |w| <= 6 *
//            2^-127 s_row, and 2 * 2^-126 max(1, s_row) for its product and a partial sum; s_row is the row's largest scale (nv: 128
//            times the row's f32), and kernels may sum in units of it. The bound then passes through the activation by its slope
//            (ops/activation.h), plus half an ulp of y. If the sum of |x||w|, or of |x||code| before scales (where nv may multiply codes by up
//            to 448, and mx in fragments by up to 128; for blocks, the sum of |x||w| divided by the row's smallest scale), exceeds the largest
//            f32, the result may overflow too; a single weight never overflows.
//            With fp8_x, z's bound grows by |in| times three terms, because tensor cores keep about 14 bits of a sum of FP8 products:
//            sum |x - q s||w|; 2^-12 sum over each 32 columns of (the sum up to there, |sum x w|, plus the columns' own sum |x||w|);
//            and |x||w| for each weight with |w| <= 2^-26 s_row.
// Source     openai/gpt-oss MLPBlock.forward, swiglu; DeepSeek-V4 Expert.forward; NVIDIA Nemotron-3 (relu2).
struct ExpertGemm {
  static constexpr std::string_view kName = "expert_gemm";
  static constexpr std::string_view kSummary =
      "multiplies each row by its own expert's weights, with bias and activation";
  struct Problem {
    int64_t rows = 4, rows_expected = 0, experts = 32, experts_routed = 0, features = 2880, width = 2880;
    int64_t tokens = 0, slots = 0;
    DType x = DType::kBF16, w = DType::kE2M1, b = DType::kBF16, y = DType::kBF16;
    WeightScales scales = WeightScales::kMx;
    WeightLayout layout = WeightLayout::kPanels16;
    GateOrder gate_order = GateOrder::kInterleaved;
    Activation act = Activation::kIdentity;
    double alpha = 1, beta = 0, limit = 0;
    bool bias = false, per_expert = false, weighted = false, settled = false, x_unaligned = false;
    bool fp8_x = false;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("rows", p.rows, "bound on the rows of all experts together");
      v("rows_expected", p.rows_expected,
        "cost estimate only: expected rows; 0: this rank's share of rows, by experts_routed");
      v("experts", p.experts, "experts that have weights here");
      v("experts_routed", p.experts_routed,
        "cost estimate only: experts of the model on all ranks; 0: same as experts");
      v("features", p.features, "columns of y");
      v("width", p.width, "columns of x");
      v("tokens", p.tokens, "rows of x when they are gathered");
      v("slots", p.slots, "gathers row order[r] / slots of x; 0: x is already in row order");
      v("x", p.x, "type of the activations");
      v("w", p.w, "type of the weights");
      v("b", p.b, "type of the bias");
      v("y", p.y, "type of the output");
      v("scales", p.scales, "scales of e2m1 or e4m3 weights");
      v("layout", p.layout, "memory layout of the weights");
      v("gate_order", p.gate_order, "order of gate and up in bias and row-major weights");
      v("act", p.act, "activation");
      v("alpha", p.alpha, "activation: slope inside the sigmoid");
      v("beta", p.beta, "activation: added to up");
      v("limit", p.limit, "activation: clamp");
      v("bias", p.bias, "adds bias before the activation");
      v("per_expert", p.per_expert, "act_params has alpha, beta, limit of each expert");
      v("weighted", p.weighted, "multiplies each row by its router weight");
      v("settled", p.settled, "the groups were written before the previous launch");
      v("x_unaligned", p.x_unaligned, "rows of x may begin anywhere, not only at multiples of 16 bytes");
      v("fp8_x", p.fp8_x, "kernels may round each row of x to FP8 (e4m3), with a scale of its own");
    }
  };
  struct Args {
    Tensor x, w, w_scale, bias, act_params, row_begin, row_count, order, weights, y;
  };
  // Rows of one expert's weight matrix.
  static int64_t weight_rows(const Problem& p) { return is_gated(p.act) ? 2 * p.features : p.features; }
  static PanelShape panels(const Problem& p) { return panel_shape(p.features, is_gated(p.act), p.width); }
  static FragmentShape fragments(const Problem& p) {
    return fragment_shape(p.features, is_gated(p.act), p.width);
  }
  static WeightFormat format(const Problem& p) { return {p.w, p.scales}; }
  // Bytes of one expert in a packed layout: weights, and scales (0 for bf16).
  static int64_t packed_bytes(const Problem& p) {
    return p.layout == WeightLayout::kFragments ? fragments(p).code_bytes(format(p))
                                                : panels(p).code_bytes(format(p));
  }
  static int64_t packed_scale_bytes(const Problem& p) {
    return p.layout == WeightLayout::kFragments ? fragments(p).scale_bytes(format(p))
                                                : panels(p).scale_bytes(format(p));
  }
  template <class V>
  static void slots(const Problem& p, V v) {
    const bool packed = p.layout != WeightLayout::kRowMajor, scaled = format(p).scaled(),
               gather = p.slots > 0;
    const int64_t rows = weight_rows(p);
    SlotSpec x = slot("x", Role::kIn, p.x, {gather ? p.tokens : p.rows, p.width}, true, Rows::kMayBeStrided);
    x.row_align = row_align(p.x, p.width, p.x_unaligned);
    v(x, &Args::x);
    v(packed ? slot("w", Role::kIn, DType::kU8, {p.experts, packed_bytes(p)})
             : slot("w", Role::kIn, p.w, {p.experts, rows, p.width}),
      &Args::w);
    v(packed ? slot("w_scale", Role::kIn, DType::kU8, {p.experts, packed_scale_bytes(p)}, scaled)
             : slot("w_scale", Role::kIn, DType::kU8, {p.experts, rows, format(p).row_scale_bytes(p.width)},
                    scaled),
      &Args::w_scale);
    v(slot("bias", Role::kIn, p.b, {p.experts, rows}, p.bias), &Args::bias);
    v(slot("act_params", Role::kIn, DType::kF32, {p.experts, 3}, p.per_expert), &Args::act_params);
    v(slot("row_begin", Role::kIn, DType::kI32, {p.experts + 1}), &Args::row_begin);
    v(slot("row_count", Role::kIn, DType::kI32, {p.experts}), &Args::row_count);
    v(slot("order", Role::kIn, DType::kI32, {p.rows}, gather), &Args::order);
    v(slot("weights", Role::kIn, DType::kF32, {p.tokens * p.slots}, p.weighted), &Args::weights);
    v(slot("y", Role::kOut, p.y, {p.rows, p.features}, true, Rows::kMayBeStrided), &Args::y);
  }
  static Refusal validate(const Problem& p);
  // Expected rows of the local experts: rows_expected or, if it is 0, the local experts' share of `rows`.
  static double expected_rows(const Problem& p);
  static double bytes(const Problem& p);  // for the experts that are active under uniform routing
  static double flops(const Problem& p);  // for expected_rows() rows
  // If rows are gathered: n tokens with the same rows - tokens * slots. Otherwise: n rows.
  static Problem at_tokens(Problem p, int64_t n);
  static int64_t tokens_of(const Problem& p) { return p.slots > 0 ? p.tokens : p.rows; }
};

// Expected number of distinct experts among `rows` rows, each with a uniformly random expert.
double active_experts(double rows, int64_t experts);

Expectations reference(const ExpertGemm::Problem& problem, const ExpertGemm::Args& args);

}  // namespace sluice
