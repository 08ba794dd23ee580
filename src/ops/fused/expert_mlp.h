#pragma once
#include "ops/combine.h"
#include "ops/expert_gemm.h"
#include "ops/group_rows.h"

namespace sluice {

// The experts of a layer, fused: GroupRows, ExpertGemm up, ExpertGemm down and Combine, from the router's ids and weights.
//
//   row_begin, row_count,  = GroupRows of ids (ops/group_rows.h): an id outside [0, experts) is an empty slot
//   order, position
//   h[r] = ExpertGemm with `up` (ops/expert_gemm.h), gathered from x by order[r] / slots, in x's type
//   g[r] = ExpertGemm with `down`, applied to h, in type g; a kernel that does not write g to memory may keep it in f32
//   y[t] = Combine of g, position and weights (ops/combine.h), without an additional bias
//
// With weight_on_input the router's weight multiplies the input of `up` instead of the output. A token whose slots are all
// empty gets shared + residual, or zeros.
//
// Shapes     x [tokens, hidden]; `up` and `down` are ExpertGemm's w, w_scale and bias: `up` with `intermediate` features
//            of width `hidden`, `down` with `hidden` features of width `intermediate`. ids i32[tokens, slots], weights
//            f32[tokens, slots]; an expert may appear in several slots of a token. shared, residual, y [tokens, hidden] in
//            y's type. Rows of x, shared, residual and y may be strided. y may alias residual or shared, but no other
//            tensor. tokens == 0 is legal and writes nothing. slots <= 64, experts <= 2048, hidden and intermediate <=
//            65536, multiples of 32 for e2m1 and for scales mx.
// Types      x bf16 or f32, w (of up and down) as in ops/expert_gemm.h, b bf16 or f32, g bf16 or f32, y bf16 or f32.
// Bytes      each active expert's weights, the ids, the router's weights, x and y, once. experts_routed affects only the
//            cost.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above; the message names each one. run: never fails on data.
// Exactness  the bounds of expert_gemm.h (for h, then g) and combine.h (y), each plus the error propagated from the previous
//            part: an error of h reaches g multiplied by |w|; an error of g, including half an ulp of its type, reaches y
//            multiplied by |scale| |weight|. A g in f32 is the same without that half ulp. Sums of g and y may be split and
//            ordered in any way.
// Source     group_rows.h, expert_gemm.h and combine.h.
struct ExpertMlp {
  static constexpr std::string_view kName = "expert_mlp";
  static constexpr std::string_view kSummary =
      "the experts of a layer for given ids: both matrix products of each row, and the weighted sum for each "
      "token";
  struct Problem {
    int64_t tokens = 1, slots = 4, experts = 32, experts_routed = 0, hidden = 2880, intermediate = 2880;
    DType x = DType::kBF16, w = DType::kE2M1, b = DType::kBF16, g = DType::kBF16, y = DType::kBF16;
    WeightScales scales = WeightScales::kMx;
    WeightLayout layout = WeightLayout::kPanels16;
    GateOrder gate_order = GateOrder::kInterleaved;
    Activation act = Activation::kSwiGlu;
    double alpha = 1, beta = 0, limit = 0;
    bool up_bias = false, down_bias = false, weight_on_input = false, shared = false, residual = false;
    bool x_unaligned = false, fp8_x = false;
    double scale = 1;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "rows of x and y");
      v("slots", p.slots, "experts for each token");
      v("experts", p.experts, "experts that have weights here");
      v("experts_routed", p.experts_routed,
        "cost estimate only: experts of the model on all ranks; 0: same as experts");
      v("hidden", p.hidden, "columns of x and y");
      v("intermediate", p.intermediate, "columns between the two products");
      v("x", p.x, "type of the activations");
      v("w", p.w, "type of the weights");
      v("b", p.b, "type of the biases");
      v("g", p.g, "type of the experts' outputs before they are summed");
      v("y", p.y, "type of y, shared and residual");
      v("scales", p.scales, "scales of e2m1 or e4m3 weights");
      v("layout", p.layout, "memory layout of the weights");
      v("gate_order", p.gate_order, "order of gate and up in bias and row-major weights");
      v("act", p.act, "activation");
      v("alpha", p.alpha, "activation: slope inside the sigmoid");
      v("beta", p.beta, "activation: added to up");
      v("limit", p.limit, "activation: clamp");
      v("up_bias", p.up_bias, "adds bias before the activation");
      v("down_bias", p.down_bias, "adds a bias to each expert's output");
      v("weight_on_input", p.weight_on_input, "router weights multiply the experts' inputs");
      v("shared", p.shared, "adds the shared expert's output");
      v("residual", p.residual, "adds the residual stream");
      v("x_unaligned", p.x_unaligned, "rows of x may begin anywhere, not only at multiples of 16 bytes");
      v("fp8_x", p.fp8_x, "kernels may round rows of x and h to FP8 (ops/expert_gemm.h)");
      v("scale", p.scale, "routed scaling factor");
    }
  };
  struct Args {
    Tensor x, up, up_scale, up_bias, down, down_scale, down_bias, ids, weights, shared, residual, y;
  };
  // The same problem with g in f32, for a kernel that does not write g to memory.
  static Problem with_f32_g(Problem p) { return p.g = DType::kF32, p; }
  // Rows of h and g; empty slots leave some of them unused.
  static int64_t rows(const Problem& p) { return p.tokens * p.slots; }
  // The problems of the four parts, for implementations that compute them one after the other.
  static GroupRows::Problem group(const Problem& p) {
    return {.tokens = p.tokens, .slots = p.slots, .experts = p.experts};
  }
  static ExpertGemm::Problem up(const Problem& p) {
    return {.rows = rows(p),
            .experts = p.experts,
            .experts_routed = p.experts_routed,
            .features = p.intermediate,
            .width = p.hidden,
            .tokens = p.tokens,
            .slots = p.slots,
            .x = p.x,
            .w = p.w,
            .b = p.b,
            .y = p.x,
            .scales = p.scales,
            .layout = p.layout,
            .gate_order = p.gate_order,
            .act = p.act,
            .alpha = p.alpha,
            .beta = p.beta,
            .limit = p.limit,
            .bias = p.up_bias,
            .weighted = p.weight_on_input,
            .x_unaligned = p.x_unaligned,
            .fp8_x = p.fp8_x};
  }
  static ExpertGemm::Problem down(const Problem& p) {
    return {.rows = rows(p),
            .experts = p.experts,
            .experts_routed = p.experts_routed,
            .features = p.hidden,
            .width = p.intermediate,
            .x = p.x,
            .w = p.w,
            .b = p.b,
            .y = p.g,
            .scales = p.scales,
            .layout = p.layout,
            .bias = p.down_bias,
            .settled = true,  // `up` runs between GroupRows and `down`
            .fp8_x = p.fp8_x};
  }
  static Combine::Problem combine(const Problem& p) {
    return {.tokens = p.tokens,
            .slots = p.slots,
            .rows = rows(p),
            .hidden = p.hidden,
            .experts = p.experts,
            .g = p.g,
            .y = p.y,
            .weighted = !p.weight_on_input,
            .shared = p.shared,
            .residual = p.residual,
            .settled = true,
            .scale = p.scale};
  }
  // The Args of the four parts. `groups` holds the intermediate values row_count i32[experts], row_begin
  // i32[experts + 1], order i32[rows] and position i32[tokens, slots]; h [rows, intermediate] in x's type and
  // g [rows, hidden] in type g are intermediate as well.
  static GroupRows::Args group(const Args& a, const GroupRows::Args& groups);
  static ExpertGemm::Args up(const Problem& p, const Args& a, const GroupRows::Args& groups, const Tensor& h);
  static ExpertGemm::Args down(const Args& a, const GroupRows::Args& groups, const Tensor& h,
                               const Tensor& g);
  static Combine::Args combine(const Problem& p, const Args& a, const GroupRows::Args& groups,
                               const Tensor& g);

  template <class V>
  static void slots(const Problem& p, V v) {
    const auto strided = Rows::kMayBeStrided;
    SlotSpec x = slot("x", Role::kIn, p.x, {p.tokens, p.hidden}, true, strided);
    x.row_align = row_align(p.x, p.hidden, p.x_unaligned);
    v(x, &Args::x);
    const auto weights = [&](const ExpertGemm::Problem& gemm, std::array<std::string_view, 3> names,
                             std::array<Tensor Args::*, 3> members) {
      ExpertGemm::slots(gemm, [&](SlotSpec spec, Tensor ExpertGemm::Args::*member) {
        const size_t which = member == &ExpertGemm::Args::w         ? 0
                             : member == &ExpertGemm::Args::w_scale ? 1
                             : member == &ExpertGemm::Args::bias    ? 2
                                                                    : 3;
        if (which == 3) return;
        spec.name = names[which];
        v(spec, members[which]);
      });
    };
    weights(up(p), {"up", "up_scale", "up_bias"}, {&Args::up, &Args::up_scale, &Args::up_bias});
    weights(down(p), {"down", "down_scale", "down_bias"}, {&Args::down, &Args::down_scale, &Args::down_bias});
    v(slot("ids", Role::kIn, DType::kI32, {p.tokens, p.slots}), &Args::ids);
    v(slot("weights", Role::kIn, DType::kF32, {p.tokens, p.slots}), &Args::weights);
    v(slot("shared", Role::kIn, p.y, {p.tokens, p.hidden}, p.shared, strided), &Args::shared);
    v(slot("residual", Role::kIn, p.y, {p.tokens, p.hidden}, p.residual, strided), &Args::residual);
    v(slot("y", Role::kOut, p.y, {p.tokens, p.hidden}, true, strided), &Args::y);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p);
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const ExpertMlp::Problem& problem, const ExpertMlp::Args& args);

}  // namespace sluice
