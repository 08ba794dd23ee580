#pragma once
#include "cases/expert_mlp.h"
#include "ops/fused/grouped_mlp.h"

namespace sluice::test {

template <>
struct Suite<GroupedMlp> {
  using P = GroupedMlp::Problem;
  using Mlp = Suite<ExpertMlp>;
  static constexpr DType kF = DType::kF32, kB = DType::kBF16;

  static std::vector<Case<GroupedMlp>> cases() {
    std::vector<Case<GroupedMlp>> out;
    const auto in = [&](WeightLayout layout, ExpertMlp::Problem p, const char* why, Fill fill = Fill::kNormal,
                        Spread spread = Spread::kContiguous) {
      p.layout = layout;
      out.push_back({GroupedMlp::of(p), why, fill, spread});
    };
    // For kernels that read only fragments.
    const auto tiles = [&](const ExpertMlp::Problem& p, const char* why, Fill fill = Fill::kNormal,
                           Spread spread = Spread::kContiguous) {
      in(WeightLayout::kFragments, p, why, fill, spread);
    };
    for (const WeightLayout layout :
         {WeightLayout::kPanels16, WeightLayout::kRowMajor, WeightLayout::kFragments}) {
      in(layout, Mlp::gpt_oss(5, 6, 160, 96), "gpt-oss");
      in(layout, Mlp::deepseek(7, 9, 128, 64), "DeepSeek V4: gates first, no biases");
      ExpertMlp::Problem input = Mlp::gpt_oss(5, 4, 75, 53);
      input.slots = 1, input.w = kB, input.weight_on_input = true;
      in(layout, input, "Llama 4: router weights on the input; bf16, sizes that no tile divides");
      ExpertMlp::Problem relu = Mlp::gpt_oss(6, 5, 64, 96);
      relu.act = Activation::kRelu2, relu.up_bias = false, relu.limit = 0;
      in(layout, relu, "Nemotron: relu squared, no gate");
      ExpertMlp::Problem floats = Mlp::gpt_oss(4, 3, 64, 32);
      floats.x = floats.g = floats.b = kF;
      in(layout, floats, "all in f32");
      in(layout, Mlp::gpt_oss(3, 4, 64, 64), "some scales are NaN", Fill::kSomeNan);
      in(layout, Mlp::gpt_oss(3, 8, 64, 32), "no rows", Fill::kEmpty);
      in(layout, Mlp::gpt_oss(0, 4, 64, 32), "no tokens");
    }
    // One expert has all rows: every wgmma width, whole tiles, tiles that lack one row, and more rows than
    // any tile. Sums have one k block, a full stage of k blocks, or more k blocks than the TMA ring holds.
    for (const int64_t tokens : {1, 7, 8, 9, 16, 17, 24, 25, 33, 41, 48, 56, 57, 113, 200}) {
      ExpertMlp::Problem p = Mlp::gpt_oss(tokens, 3, 96, 64);
      p.slots = 1, p.hidden = 32 * (1 + tokens % 23), p.intermediate = 32 * (1 + tokens % 11);
      tiles(p, "all rows of one expert", Fill::kSkewed);
    }
    // Weight rows that do not fill the last row block, and tiles of one, two and six row blocks.
    tiles(Mlp::gpt_oss(30, 5, 352, 160), "a partial row block");
    tiles(Mlp::gpt_oss(30, 5, 416, 224), "a tile of one row block, and a tile of one warpgroup");
    // Tiles of 384 weight rows on 132 SMs: one and a half waves of each product; hardly any tiles of one
    // product; last waves that are less than a third full, up to two thirds full, or fuller, so that tiles
    // are cut.
    tiles(Mlp::gpt_oss(50, 200, 384, 64), "more than a wave of gate and up");
    tiles(Mlp::gpt_oss(50, 150, 64, 480), "nearly all tiles are gate and up");
    tiles(Mlp::gpt_oss(60, 100, 800, 32), "nearly all tiles are down and wait for the few of gate and up");
    tiles(Mlp::gpt_oss(60, 80, 384, 64), "a last wave less than a third full");
    tiles(Mlp::gpt_oss(60, 100, 384, 64), "a last wave half full");
    tiles(Mlp::gpt_oss(60, 125, 384, 64), "a last wave nearly full");
    tiles(Mlp::gpt_oss(70, 5, 416, 224), "several tiles of the same weights");
    tiles(Mlp::gpt_oss(400, 6, 96, 64), "many tiles of the same weights", Fill::kSkewed);
    // Long lists of experts.
    tiles(Mlp::deepseek(64, 256, 160, 96), "DeepSeek V4: 256 experts");
    tiles(Mlp::gpt_oss(70, 512, 64, 32), "512 experts");
    tiles(Mlp::gpt_oss(70, 513, 64, 32), "more experts than the CTA has threads");
    tiles(Mlp::deepseek(64, 40, 320, 160), "strided rows of x", Fill::kNormal, Spread::kStridedRows);
    ExpertMlp::Problem rank = Mlp::gpt_oss(40, 4, 96, 64);
    rank.experts_routed = 32;
    tiles(rank, "a rank with a part of the experts: most slots are empty");
    ExpertMlp::Problem f32 = Mlp::gpt_oss(40, 3, 160, 96);
    f32.b = kF, f32.gate_order = GateOrder::kUpFirst;
    tiles(f32, "biases in f32, ups first");
    f32.up_bias = false;
    tiles(f32, "a bias only in down");
    ExpertMlp::Problem plain = Mlp::deepseek(40, 3, 160, 96);
    plain.act = Activation::kSwiGlu;
    tiles(plain, "no clamp");
    tiles(Mlp::gpt_oss(33, 4, 64, 64), "NaN in many tiles", Fill::kSomeNan);
    tiles(Mlp::gpt_oss(33, 4, 64, 64), "infinities", Fill::kInfinite);
    return out;
  }

  static void fill(const P& p, Fill fill, HostArgs<GroupedMlp>& host, Random& random) {
    // ExpertMlp's suite fills the same tensors, and the ids by which rows are grouped here.
    HostArgs<ExpertMlp> whole(p.mlp, Spread::kContiguous);
    Mlp::fill(p.mlp, fill, whole, random);
    const GroupedMlp::Args& a = host.args();
    std::vector<std::vector<int32_t>> lists;
    GroupRows::Args groups;
    const GroupRows::Problem of = ExpertMlp::group(p.mlp);
    for (const Expected& list : reference(of, ExpertMlp::group(whole.args(), {}))) {
      std::vector<int32_t>& numbers = lists.emplace_back(list.value.begin(), list.value.end());
      GroupRows::slots(of, [&](const SlotSpec& spec, Tensor GroupRows::Args::*member) {
        if (spec.name == list.slot && spec.rank == 1)
          groups.*member = make_tensor(numbers.data(), spec.dtype, {spec.shape[0]});
      });
    }
    const GroupedMlp::Args from = GroupedMlp::of(p.mlp, whole.args(), groups, {});
    GroupedMlp::slots(p, [&](const SlotSpec& spec, Tensor GroupedMlp::Args::*member) {
      const Tensor &to = a.*member, &given = from.*member;
      if (spec.role != Role::kIn || !to.present()) return;
      if (member == &GroupedMlp::Args::x) {
        set_each(to, [&](int64_t t, int64_t c) { return load2(given, t, c); });
      } else {
        std::memcpy(to.data, given.data, static_cast<size_t>(bytes_of(to.dtype, elements_of(to))));
      }
    });
  }

  static P random(Random& r) {
    P p = GroupedMlp::of(Mlp::random(r));
    ExpertMlp::Problem& m = p.mlp;
    if (r.integer(0, 2) == 0) return p;
    // Problems that the tile kernels accept.
    m.tokens = r.integer(0, 40), m.experts = r.integer(1, 12), m.experts_routed = 0;
    m.hidden = 32 * r.integer(1, 14), m.intermediate = 32 * r.integer(1, 8);
    m.x = m.g = kB, m.w = DType::kE2M1, m.layout = WeightLayout::kFragments;
    m.act = coin(r) ? Activation::kSwiGlu : Activation::kSwiGluClamped, m.limit = 0.5 + 7 * r.uniform();
    m.weight_on_input = m.x_unaligned = false;
    return p;
  }
};

}  // namespace sluice::test
