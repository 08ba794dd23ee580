#pragma once
#include "cases/expert_gemm.h"
#include "ops/fused/expert_mlp.h"

namespace sluice::test {

template <>
struct Suite<ExpertMlp> {
  using P = ExpertMlp::Problem;
  static constexpr DType kF = DType::kF32, kB = DType::kBF16;

  // The layers of gpt-oss and DeepSeek V4 at a given size.
  static P gpt_oss(int64_t tokens, int64_t experts, int64_t hidden, int64_t intermediate) {
    return {.tokens = tokens,
            .slots = 4,
            .experts = experts,
            .hidden = hidden,
            .intermediate = intermediate,
            .act = Activation::kSwiGluClamped,
            .alpha = 1.702,
            .beta = 1,
            .limit = 7,
            .up_bias = true,
            .down_bias = true};
  }
  static P deepseek(int64_t tokens, int64_t experts, int64_t hidden, int64_t intermediate) {
    P p = gpt_oss(tokens, experts, hidden, intermediate);
    p.slots = 6;
    p.gate_order = GateOrder::kGateFirst, p.alpha = 1, p.beta = 0, p.limit = 10;
    p.up_bias = p.down_bias = false, p.shared = true, p.scale = 1.5;
    return p;
  }

  static P nemotron(int64_t tokens) {
    P p = gpt_oss(tokens, 5, 64, 96);
    p.act = Activation::kRelu2, p.up_bias = false, p.limit = 0;
    return p;
  }

  // Adds a case in each of `layouts`.
  struct InLayouts {
    std::vector<Case<ExpertMlp>>* out;
    std::vector<WeightLayout> layouts;
    void operator()(P p, const char* why, Fill fill = Fill::kNormal,
                    Spread spread = Spread::kContiguous) const {
      for (const WeightLayout layout : layouts) {
        p.layout = layout;
        out->push_back({p, why, fill, spread});
      }
    }
  };

  static std::vector<Case<ExpertMlp>> cases() {
    std::vector<Case<ExpertMlp>> out;
    // Few-token kernels read only fragments.
    const InLayouts few{&out, {WeightLayout::kFragments}};
    add_models({&out, {WeightLayout::kPanels16, WeightLayout::kRowMajor, WeightLayout::kFragments}});
    add_few_tokens(few);
    add_few_token_slices(few);
    // Strided rows are unaligned here; the fuzzer covers aligned strided rows.
    for (auto& test : out) test.problem.x_unaligned = test.spread == Spread::kStridedRows;
    return out;
  }
  static void add_models(const InLayouts& each) {
    each(gpt_oss(1, 6, 160, 96), "gpt-oss: one token");
    each(deepseek(3, 9, 128, 64), "DeepSeek V4: a shared expert, a scale, gates first");
    P all = deepseek(2, 5, 96, 64);
    all.residual = true, all.down_bias = true, all.b = kF;
    each(all, "every added term, strided rows, f32 biases", Fill::kNormal, Spread::kStridedRows);
    P input = gpt_oss(5, 4, 75, 53);
    input.slots = 1, input.w = kB, input.weight_on_input = true;
    each(input, "Llama 4: router weights on the input; bf16, sizes that no tile divides");
    P whole = deepseek(3, 5, 96, 64);
    whole.w = kB;
    each(whole, "bf16 weights");
    each(nemotron(6), "Nemotron: relu squared, no gate");
    P floats = gpt_oss(4, 3, 64, 32);
    floats.x = floats.g = floats.y = floats.b = kF;
    each(floats, "all in f32");
    floats.g = kB;
    each(floats, "all in f32 except the experts' outputs");
    P answers = deepseek(9, 5, 96, 64);
    answers.y = kF;
    each(answers, "the experts' outputs are rounded, their sum is not");
    answers.g = kF, answers.y = kB;
    each(answers, "the sum of the experts' outputs is rounded, the outputs are not");
    answers.w = kB;
    each(answers, "the same with bf16 weights");
    P rank = gpt_oss(4, 3, 64, 64);
    rank.experts_routed = 24, rank.residual = true;
    each(rank, "a rank with a part of the experts: most slots are empty");
    each(gpt_oss(40, 6, 64, 64), "forty tokens");
    each(deepseek(3, 8, 64, 32), "only empty slots: y is the shared expert", Fill::kEmpty);
    each(gpt_oss(3, 8, 64, 32), "only empty slots: y is zero", Fill::kEmpty);
    each(gpt_oss(3, 4, 64, 32), "all rows of one expert", Fill::kSkewed);
    each(gpt_oss(0, 4, 64, 32), "no tokens");
    each(gpt_oss(3, 4, 64, 64), "some scales are NaN", Fill::kSomeNan);
    each(gpt_oss(3, 4, 64, 64), "infinities", Fill::kInfinite);
    P tiny = gpt_oss(2, 3, 64, 32);
    tiny.act = Activation::kRelu, tiny.up_bias = tiny.down_bias = false;
    each(tiny, "scales from 0", Fill::kTiny);
    each(tiny, "scales to 254", Fill::kHuge);
    each(tiny, "very different scales in one row", Fill::kAllEqual);
  }
  static void add_few_tokens(const InLayouts& few) {
    // Sums that end inside a block of 64; experts with between one row and more than a tile; token counts
    // around the limits of the few-token kernels.
    for (const int64_t tokens : {1, 2, 8, 16, 17, 64, 65})
      few(gpt_oss(tokens, 12, 352, 224), "a tail of 32 in blocks of 64");
    few(gpt_oss(8, 2, 256, 128), "several rows of each expert");
    for (const int64_t tokens : {2, 65}) {
      P f32 = gpt_oss(tokens, 12, 352, 224);
      f32.g = kF;
      few(f32, "expert outputs in f32");
      f32.w = kB;
      few(f32, "expert outputs in f32, bf16 weights");
    }
    few(gpt_oss(64, 3, 128, 96), "all 64 tokens on one expert", Fill::kSkewed);
    few(gpt_oss(65, 3, 96, 64), "all 65 tokens on one expert", Fill::kSkewed);
    few(deepseek(4, 40, 1088, 96), "many experts with one row each", Fill::kNormal, Spread::kStridedRows);
    few(deepseek(64, 16, 320, 160), "DeepSeek V4: 64 tokens", Fill::kNormal, Spread::kStridedRows);
    few(gpt_oss(1, 4, 2880, 160), "gpt-oss's width");
    few(gpt_oss(1, 4, 160, 2880), "gpt-oss's intermediate width");
  }
  static void add_few_token_slices(const InLayouts& few) {
    // Some teams have a row block of their own, others share one or have two.
    few(deepseek(5, 40, 2112, 416), "more row blocks of y than teams, one or two rows per expert");
    few(deepseek(1, 3, 4160, 1056), "one token that names experts twice, a partial row block");
    // Tensor-parallel slices. Teams of all CTAs exchange partial sums of one or several columns. A row block
    // of `down` fits one stage exactly, or is one k block too large and takes two. Slot counts are on both
    // sides of 32.
    few(deepseek(1, 9, 2112, 320), "one token, one part of the sum per team");
    few(deepseek(6, 14, 2112, 384), "36 slots, several parts per team, six k blocks in down");
    few(deepseek(10, 12, 1088, 512), "60 slots, eight k blocks in down", Fill::kNormal, Spread::kStridedRows);
    few(deepseek(10, 12, 1088, 544), "60 slots, nine k blocks in down");
    few(gpt_oss(16, 3, 352, 288), "64 slots, many per expert, five k blocks in down");
    few(gpt_oss(16, 5, 1120, 416), "all 64 slots on one expert, split sums", Fill::kSkewed);
    // Slices of y in one launch: pairs of warps with one unit each, whole sums from two TMA boxes, slot
    // counts that are not powers of two, and a block filled with the slots of one token.
    few(deepseek(2, 9, 1120, 384), "six k blocks, two slices in some clusters");
    few(deepseek(2, 9, 96, 2048), "whole sums from two TMA boxes", Fill::kNormal, Spread::kStridedRows);
    P three = deepseek(5, 9, 160, 224);
    three.slots = 3, three.residual = true;
    few(three, "fifteen slots, three per token");
    P sixteen = gpt_oss(1, 20, 96, 288);
    sixteen.slots = 16;
    few(sixteen, "sixteen slots of one token");
    for (const int64_t tokens : {1, 4, 8}) {
      P wide = gpt_oss(tokens, 6, 200, 456);
      wide.w = kB;
      few(wide, "bf16 weights, sizes that are multiples of 8", Fill::kNormal, Spread::kStridedRows);
    }
    P ups = gpt_oss(2, 5, 256, 96);
    ups.gate_order = GateOrder::kUpFirst;
    few(ups, "ups first");
    ups.b = kF;
    few(ups, "ups first, f32 biases");
    ups.up_bias = false, ups.y = kF;
    few(ups, "a bias only in down, y in f32");
    P plain = nemotron(2);
    plain.up_bias = true;
    few(plain, "no gate, few tokens");
    P weighed = gpt_oss(2, 5, 96, 64);
    weighed.weight_on_input = true, weighed.shared = weighed.residual = true, weighed.scale = -0.5;
    few(weighed, "router weights on the input, every added term");
    P most = gpt_oss(2, 7, 64, 32);
    most.slots = 64;
    few(most, "64 slots, most of which repeat an expert of the token");
  }

  static void fill(const P& p, Fill fill, HostArgs<ExpertMlp>& host, Random& random) {
    const ExpertMlp::Args& a = host.args();
    HostArgs<ExpertGemm> up(ExpertMlp::up(p), Spread::kContiguous),
        down(ExpertMlp::down(p), Spread::kContiguous);
    Suite<ExpertGemm>::fill(ExpertMlp::up(p), fill, up, random);
    // The first product of numbers near the ends of the range is multiplied by weights of ordinary size.
    const bool ends = fill == Fill::kTiny || fill == Fill::kHuge;
    Suite<ExpertGemm>::fill(ExpertMlp::down(p), ends ? Fill::kNormal : fill, down, random);
    const auto copy = [](const Tensor& to, const Tensor& from) {
      if (to.present())
        std::memcpy(to.data, from.data, static_cast<size_t>(bytes_of(to.dtype, elements_of(to))));
    };
    set_each(a.x, [&](int64_t t, int64_t c) { return load2(up.args().x, t, c); });
    copy(a.up, up.args().w), copy(a.up_scale, up.args().w_scale), copy(a.up_bias, up.args().bias);
    copy(a.down, down.args().w), copy(a.down_scale, down.args().w_scale), copy(a.down_bias, down.args().bias);
    fill_floats(a.weights, Fill::kNormal, random);
    fill_floats(a.shared, Fill::kNormal, random);
    fill_floats(a.residual, Fill::kNormal, random);
    ids(p, fill, a.ids, random);
    // The weight of an empty slot may have any value, so it is NaN.
    set_each(a.weights, [&](int64_t t, int64_t k) -> double {
      const int32_t id = a.ids.row<int32_t>(t)[k];
      return id >= 0 && id < p.experts ? a.weights.row<float>(t)[k]
                                       : std::numeric_limits<double>::quiet_NaN();
    });
  }

  // In addition to `fill`: some slots name an expert of another rank, the first token names one expert twice,
  // and the second token has only empty slots.
  static void ids(const P& p, Fill fill, const Tensor& ids, Random& random) {
    constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
    const int64_t favourite = random.integer(0, p.experts - 1);
    const int64_t empty_of_10 = p.experts_routed > p.experts ? 7 : 1;
    set_each(ids, [&](int64_t, int64_t) -> int64_t {
      if (fill == Fill::kEmpty) return -1;
      if (random.integer(0, 9) < empty_of_10)
        return one_of(random, {-1, -7, p.experts, kLargest, -kLargest - 1});
      return fill == Fill::kSkewed ? favourite : random.integer(0, p.experts - 1);
    });
    if (p.tokens > 0 && p.slots > 1) ids.row<int32_t>(0)[1] = ids.row<int32_t>(0)[0];
    if (p.tokens > 2)
      for (int64_t k = 0; k < p.slots; ++k) ids.row<int32_t>(1)[k] = -1;
  }

  static P random(Random& r) {
    const ExpertGemm::Problem g = Suite<ExpertGemm>::random(r);
    P p{.tokens = r.integer(0, 9), .slots = r.integer(1, 7), .experts = r.integer(1, 12), .w = g.w};
    p.experts_routed = coin(r) ? 0 : r.integer(p.experts - 1, 4 * p.experts);
    p.hidden = g.w == kB ? r.integer(1, 90) : 32 * r.integer(1, 9) + (r.integer(0, 9) == 0 ? 8 : 0);
    p.intermediate = g.w == kB ? r.integer(1, 50) : 32 * r.integer(1, 4);
    p.x = r.integer(0, 3) ? kB : kF, p.b = g.b, p.g = coin(r) ? kB : kF, p.y = g.y;
    p.layout = coin(r) ? WeightLayout::kFragments : g.layout;
    p.gate_order = g.gate_order, p.act = g.act, p.alpha = g.alpha, p.beta = g.beta, p.limit = g.limit;
    p.up_bias = coin(r), p.down_bias = coin(r), p.weight_on_input = r.integer(0, 3) == 0;
    p.shared = coin(r), p.residual = coin(r), p.scale = coin(r) ? 1 : 4 * r.uniform() - 2;
    p.x_unaligned = coin(r);
    return p;
  }
};

}  // namespace sluice::test
