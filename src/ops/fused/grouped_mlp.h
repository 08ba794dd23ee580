#pragma once
#include "ops/fused/expert_mlp.h"

namespace sluice {

// Both GEMMs of the experts (ExpertGemm `up`, then `down`), fused, for rows grouped by expert.
//
//   h[r] = ExpertGemm with `up` (ops/expert_gemm.h), gathered from x by order[r] / slots, in x's type
//   g[r] = ExpertGemm with `down`, applied to h
//
// Rows of g without an expert are not written. With weight_on_input the router's weight multiplies the input of `up`.
//
// Shapes     as in ops/fused/expert_mlp.h; row_begin i32[experts + 1], row_count i32[experts] and order i32[rows] as
//            ops/group_rows.h writes them, rows = tokens * slots; g [rows, hidden].
// Types      as in ops/fused/expert_mlp.h. h is rounded to x's type and stays internal.
// Bytes      each active expert's weights once, x and g once. experts_routed affects only the cost.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data written by ops/group_rows.h.
// Exactness  expert_gemm.h's bound for h; for g, expert_gemm.h's bound plus the error propagated from h: an error of
//            h reaches g multiplied by |w|.
// Source     expert_gemm.h.
struct GroupedMlp {
  static constexpr std::string_view kName = "grouped_mlp";
  static constexpr std::string_view kSummary =
      "both matrix products of each expert, for rows that are grouped by expert";
  struct Problem {
    // the ExpertMlp around this operation; fields that concern only its final sum are ignored
    ExpertMlp::Problem mlp;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.mlp.tokens, "rows of x");
      v("slots", p.mlp.slots, "experts for each token");
      v("experts", p.mlp.experts, "experts that have weights here");
      v("experts_routed", p.mlp.experts_routed,
        "cost estimate only: experts of the model on all ranks; 0: same as experts");
      v("hidden", p.mlp.hidden, "columns of x and g");
      v("intermediate", p.mlp.intermediate, "columns between the two products");
      v("x", p.mlp.x, "type of the activations");
      v("w", p.mlp.w, "type of the weights");
      v("b", p.mlp.b, "type of the biases");
      v("g", p.mlp.g, "type of the experts' outputs");
      v("scales", p.mlp.scales, "scales of e2m1 or e4m3 weights");
      v("layout", p.mlp.layout, "memory layout of the weights");
      v("gate_order", p.mlp.gate_order, "order of gate and up in bias and row-major weights");
      v("act", p.mlp.act, "activation");
      v("alpha", p.mlp.alpha, "activation: slope inside the sigmoid");
      v("beta", p.mlp.beta, "activation: added to up");
      v("limit", p.mlp.limit, "activation: clamp");
      v("up_bias", p.mlp.up_bias, "adds bias before the activation");
      v("down_bias", p.mlp.down_bias, "adds a bias to each expert's output");
      v("weight_on_input", p.mlp.weight_on_input, "router weights multiply the experts' inputs");
      v("x_unaligned", p.mlp.x_unaligned, "rows of x may begin anywhere, not only at multiples of 16 bytes");
    }
  };
  struct Args {
    Tensor x, up, up_scale, up_bias, down, down_scale, down_bias, row_begin, row_count, order, weights, g;
  };
  static int64_t rows(const Problem& p) { return ExpertMlp::rows(p.mlp); }
  // The GroupedMlp inside an ExpertMlp.
  static Problem of(ExpertMlp::Problem p) {
    p.y = DType::kBF16, p.shared = p.residual = false, p.scale = 1;
    return {p};
  }
  // The two parts; h [rows, intermediate] is the intermediate value.
  static ExpertGemm::Problem up(const Problem& p) { return ExpertMlp::up(p.mlp); }
  static ExpertGemm::Problem down(const Problem& p) { return ExpertMlp::down(p.mlp); }
  static ExpertGemm::Args up(const Problem& p, const Args& a, const Tensor& h);
  static ExpertGemm::Args down(const Args& a, const Tensor& h);
  // The Args of the GroupedMlp inside an ExpertMlp; `groups` holds the outputs of GroupRows.
  static Args of(const ExpertMlp::Problem& p, const ExpertMlp::Args& a, const GroupRows::Args& groups,
                 const Tensor& g) {
    return {.x = a.x,
            .up = a.up,
            .up_scale = a.up_scale,
            .up_bias = a.up_bias,
            .down = a.down,
            .down_scale = a.down_scale,
            .down_bias = a.down_bias,
            .row_begin = groups.row_begin,
            .row_count = groups.row_count,
            .order = groups.order,
            .weights = p.weight_on_input ? a.weights : Tensor{},
            .g = g};
  }

  template <class V>
  static void slots(const Problem& p, V v) {
    using M = ExpertMlp::Args;
    constexpr std::pair<Tensor M::*, Tensor Args::*> kShared[] = {{&M::x, &Args::x},
                                                                  {&M::up, &Args::up},
                                                                  {&M::up_scale, &Args::up_scale},
                                                                  {&M::up_bias, &Args::up_bias},
                                                                  {&M::down, &Args::down},
                                                                  {&M::down_scale, &Args::down_scale},
                                                                  {&M::down_bias, &Args::down_bias}};
    ExpertMlp::slots(p.mlp, [&](const SlotSpec& spec, Tensor M::*member) {
      for (const auto& [from, to] : kShared)
        if (member == from) v(spec, to);
    });
    v(slot("row_begin", Role::kIn, DType::kI32, {p.mlp.experts + 1}), &Args::row_begin);
    v(slot("row_count", Role::kIn, DType::kI32, {p.mlp.experts}), &Args::row_count);
    v(slot("order", Role::kIn, DType::kI32, {rows(p)}), &Args::order);
    v(slot("weights", Role::kIn, DType::kF32, {p.mlp.tokens, p.mlp.slots}, p.mlp.weight_on_input),
      &Args::weights);
    v(slot("g", Role::kOut, p.mlp.g, {rows(p), p.mlp.hidden}), &Args::g);
  }
  static Refusal validate(const Problem& p) { return ExpertMlp::validate(p.mlp); }
  static double bytes(const Problem& p);
  static double flops(const Problem& p) { return ExpertGemm::flops(up(p)) + ExpertGemm::flops(down(p)); }
  static Problem at_tokens(Problem p, int64_t n) { return p.mlp.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.mlp.tokens; }
};

Expectations reference(const GroupedMlp::Problem& problem, const GroupedMlp::Args& args);

}  // namespace sluice
