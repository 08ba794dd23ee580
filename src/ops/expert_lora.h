#pragma once
#include "ops/activation.h"
#include "ops/fragment_layout.h"
#include "ops/op.h"
#include "ops/row_align.h"
#include "ops/weight_layout.h"

namespace sluice {

// A gated product is computed as an ungated one, whose features are the layout's rows, including padding. product_columns: the number of
// these features. product_column: which of them is a feature's gate (up = false; also for features without a gate) or up.
SLUICE_HOST_DEVICE constexpr int64_t product_columns(WeightLayout layout, int64_t features, bool gated) {
  if (!gated) return features;
  return 2 * (layout == WeightLayout::kRowMajor   ? features
              : layout == WeightLayout::kPanels16 ? round_up(features, kPanelRows)
                                                  : round_up(features, kFragmentRows / 2));
}
SLUICE_HOST_DEVICE constexpr int64_t product_column(WeightLayout layout, GateOrder order, int64_t features,
                                                    bool gated, int64_t feature, bool up) {
  if (!gated) return feature;
  if (layout == WeightLayout::kRowMajor) return gated_row(order, features, feature, up);
  if (layout == WeightLayout::kPanels16) {
    const PanelRow at = panel_row(true, feature, up);
    return at.panel * kPanelRows + at.lane;
  }
  const FragmentRow at = fragment_row(true, feature, up);
  return at.block * kFragmentRows + at.row;
}

// Completes an expert's product whose tokens may have a LoRA adapter: adds bias and the low-rank update of the row's expert and adapter,
// then applies the activation.
//
//   u[r, k]  = sum_h a[i, e, k, h] * x[row(r), h]
//   z'[r, j] = z[r, column of j] (+ bias[e, j]) + scale[i] * sum_k b[i, e, j, k] * u[r, s(j) * rank + k]
//   y[r, f]  = act(z'[r, f])  or  act(z'[r, gate row of f], z'[r, up row of f])
//
//   for row_begin[e] <= r < row_begin[e] + row_count[e], with the adapter i = adapter[order[r] / slots] of the row's token.
//   row(r) = order[r] / slots if `gathers`, otherwise r.
//   s(j)   = 1 for rows of up if `split`, otherwise 0: gate and up share u, or each has its own.
//
// A row whose adapter is outside [0, adapters), -1 by convention, gets no update. Rows of y that belong to no expert are not written.
//
// Shapes     x [tokens or rows, width]; z [rows, z_columns()]; bias [experts, product_rows()] in the checkpoint's order (gate_order);
//            a [adapters, experts, inner(), width], b [adapters, experts, product_rows(), rank], scale f32[adapters], adapter i32[tokens];
//            act_params f32[experts, 3] = alpha, beta, limit of each expert, in place of the problem's values; row_begin i32[experts + 1],
//            row_count i32[experts], order i32[rows] as GroupRows writes them; y [rows, features]. Rows of x, z and y may be strided.
//            Rows of x and z begin at multiples of 16 bytes, unless x_unaligned is set or a row's size is not such a multiple.
//            0 <= rows, tokens < 2^31, slots from 1 to 64, experts <= 2048, rank and adapters from 1 to 1024, features and width from 1
//            to 65536.
// z          is what ExpertGemm writes for the packed bytes of this product as z_columns() features without a gate, bias and activation.
//            Columns of padding are ignored.
// Types      x, z, y and bias (field bias_type) bf16 or f32; a and b both bf16 or both f32. Sums in f32; u keeps at least 16 bits; one rounding to y.
// Bytes      reads a and b of each (expert, adapter) that has rows once, x and z once, writes y once.
// Settled    x, adapter, row_begin, row_count and order were written before the previous launch, which wrote z: a dependent launch may read
//            them before the previous launch has ended.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data written by ops/group_rows.h.
// Exactness  z': (width + rank + 264) * 2^-24 * (|z| + |bias| + |scale| sum_k |b| sum_h |a||x|), and what flushing numbers below the smallest
//            normal to zero loses. If |scale| sum_h |a||x| exceeds the largest f32, the result may overflow. The bound passes through the activation by its slope (ops/activation.h), plus half an ulp of y.
// Source     Hu et al., "LoRA" (2021), equation 3, for each expert: PEFT's target_parameters and per-expert modules.
struct ExpertLora {
  static constexpr std::string_view kName = "expert_lora";
  static constexpr std::string_view kSummary =
      "adds each row's low-rank update, by expert and adapter, to an expert's product, with bias and "
      "activation";
  struct Problem {
    int64_t rows = 4, tokens = 1, slots = 4, experts = 32, experts_routed = 0, features = 2880, width = 2880;
    int64_t rank = 16, adapters = 1;
    DType x = DType::kBF16, z = DType::kF32, w = DType::kBF16, bias_type = DType::kBF16, y = DType::kBF16;
    WeightLayout layout = WeightLayout::kPanels16;
    GateOrder gate_order = GateOrder::kInterleaved;
    Activation act = Activation::kIdentity;
    double alpha = 1, beta = 0, limit = 0;
    bool gathers = false, split = false, bias = false, per_expert = false, x_unaligned = false,
         settled = false;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("rows", p.rows, "bound on the rows of all experts together");
      v("tokens", p.tokens, "tokens");
      v("slots", p.slots, "experts for each token");
      v("experts", p.experts, "experts that have weights here");
      v("experts_routed", p.experts_routed,
        "cost estimate only: experts of the model on all ranks; 0: same as experts");
      v("features", p.features, "columns of y");
      v("width", p.width, "columns of x");
      v("rank", p.rank, "inner size of the update");
      v("adapters", p.adapters, "adapters; each token uses at most one");
      v("x", p.x, "type of the product's input");
      v("z", p.z, "type of the product");
      v("w", p.w, "type of a and b");
      v("bias_type", p.bias_type, "type of the bias");
      v("y", p.y, "type of the output");
      v("layout", p.layout, "layout of the product's weights, whose rows are the columns of z");
      v("gate_order", p.gate_order, "order of gate and up in bias and b");
      v("act", p.act, "activation");
      v("alpha", p.alpha, "activation: slope inside the sigmoid");
      v("beta", p.beta, "activation: added to up");
      v("limit", p.limit, "activation: clamp");
      v("gathers", p.gathers, "x has a row for each token; otherwise it is in the order of z");
      v("split", p.split, "gate and up have their own a");
      v("bias", p.bias, "adds bias before the activation");
      v("per_expert", p.per_expert, "act_params has alpha, beta, limit of each expert");
      v("x_unaligned", p.x_unaligned,
        "rows of x and z may begin anywhere, not only at multiples of 16 bytes");
      v("settled", p.settled, "all inputs but z were written before the previous launch");
    }
  };
  struct Args {
    Tensor x, z, bias, act_params, a, b, scale, adapter, row_begin, row_count, order, y;
  };
  static bool gated(const Problem& p) { return is_gated(p.act); }
  // Rows of one expert's matrix W and of b.
  static int64_t product_rows(const Problem& p) { return gated(p) ? 2 * p.features : p.features; }
  static int64_t inner(const Problem& p) { return p.split ? 2 * p.rank : p.rank; }  // rows of one a
  static int64_t z_columns(const Problem& p) { return product_columns(p.layout, p.features, gated(p)); }
  static int64_t z_column(const Problem& p, int64_t feature, bool up) {
    return product_column(p.layout, p.gate_order, p.features, gated(p), feature, up);
  }
  template <class V>
  static void slots(const Problem& p, V v) {
    const auto strided = Rows::kMayBeStrided;
    SlotSpec x = slot("x", Role::kIn, p.x, {p.gathers ? p.tokens : p.rows, p.width}, true, strided);
    x.row_align = row_align(p.x, p.width, p.x_unaligned);
    v(x, &Args::x);
    SlotSpec z = slot("z", Role::kIn, p.z, {p.rows, z_columns(p)}, true, strided);
    z.row_align = row_align(p.z, z_columns(p), p.x_unaligned);
    v(z, &Args::z);
    v(slot("bias", Role::kIn, p.bias_type, {p.experts, product_rows(p)}, p.bias), &Args::bias);
    v(slot("act_params", Role::kIn, DType::kF32, {p.experts, 3}, p.per_expert), &Args::act_params);
    v(slot("a", Role::kIn, p.w, {p.adapters, p.experts, inner(p), p.width}), &Args::a);
    v(slot("b", Role::kIn, p.w, {p.adapters, p.experts, product_rows(p), p.rank}), &Args::b);
    v(slot("scale", Role::kIn, DType::kF32, {p.adapters}), &Args::scale);
    v(slot("adapter", Role::kIn, DType::kI32, {p.tokens}), &Args::adapter);
    v(slot("row_begin", Role::kIn, DType::kI32, {p.experts + 1}), &Args::row_begin);
    v(slot("row_count", Role::kIn, DType::kI32, {p.experts}), &Args::row_count);
    v(slot("order", Role::kIn, DType::kI32, {p.rows}), &Args::order);
    v(slot("y", Role::kOut, p.y, {p.rows, p.features}, true, strided), &Args::y);
  }
  static Refusal validate(const Problem& p);
  static double expected_rows(const Problem& p);  // this rank's share of `rows`
  static double bytes(const Problem& p);          // for rows with uniformly random experts and adapters
  static double flops(const Problem& p);
  static Problem at_tokens(Problem p, int64_t n);  // keeps the padding rows, rows - tokens * slots
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const ExpertLora::Problem& problem, const ExpertLora::Args& args);

}  // namespace sluice
