#pragma once
#include <algorithm>
#include <cmath>

#include "cases/expert_gemm_scaled.h"
#include "cases/expert_gemm_tiles.h"
#include "cases/expert_rows.h"
#include "cases/rare.h"
#include "ops/expert_gemm.h"

namespace sluice::test {

// The range of e8m0 scales; x is scaled to match. In kTiny and kHuge each row of x has a single nonzero
// number, so that an error in one scale cannot hide in the error bound of a long sum.
struct ScaleRange {
  int64_t low = 118, high = 127;
};
inline ScaleRange scale_range(Fill fill) {
  if (fill == Fill::kTiny) return {0, 6};
  if (fill == Fill::kHuge) return {248, 254};
  if (fill == Fill::kAllEqual) return {60, 200};  // a wider range than f32's exponents
  return {};
}

class ExpertFill {
  static constexpr WeightFormat kMxfp4{DType::kE2M1};

 public:
  ExpertFill(const ExpertGemm::Problem& p, Fill fill, ExpertGemm::Args& a, Random& random)
      : p_(p), fill_(fill), a_(a), random_(random) {}

  void all() {
    rows();
    inputs();
    if (p_.fp8_x && fill_ == Fill::kSkewed) put_x_on_grid();
    fill_floats(a_.bias, Fill::kNormal, random_, 2);
    fill_floats(a_.weights, Fill::kNormal, random_);
    if (a_.act_params.present()) {
      set_each(a_.act_params, [&](int64_t, int64_t c) {
        return c == 0 ? 1 + random_.uniform() : c == 1 ? random_.uniform() : 1 + 6 * random_.uniform();
      });
    }
    if (p_.layout != WeightLayout::kRowMajor) clear_packed();
    const WeightFormat f = ExpertGemm::format(p_);
    if (f.scaled() && f != WeightFormat{DType::kE2M1}) {
      fill_scaled_experts(p_, fill_, a_, random_);
      return;
    }
    for (int64_t e = 0; e < p_.experts; ++e)
      for (int64_t row = 0; row < ExpertGemm::weight_rows(p_); ++row) weight_row(e, row);
  }

 private:
  void rows() {
    const int64_t flat_slots = p_.slots > 0 ? p_.tokens * p_.slots : p_.rows;
    const int64_t assigned = fill_ == Fill::kEmpty ? 0 : std::min(p_.rows, flat_slots);
    place_rows(a_, p_.experts, p_.rows, assigned, fill_, random_);
  }

  void inputs() {
    if (fill_ == Fill::kTiny || fill_ == Fill::kHuge) {
      const double size = fill_ == Fill::kTiny ? 0x1p100 : 0x1p-100;
      const int64_t step = std::max<int64_t>(1, p_.width / 7);
      set_each(a_.x, [&](int64_t r, int64_t c) {
        return c == r * step % p_.width ? size * (1 + random_.uniform()) : 0.0;
      });
      return;
    }
    // Sums reach about twice the clamp, so both sides of the clamp are tested. In MXFP4 only scales can be
    // NaN.
    const double weight = p_.w == DType::kBF16 ? 0.05 : 0.12;
    const double aim = p_.limit > 0 && p_.limit < 100 ? 1.5 * p_.limit : 3;
    const double size = aim / (weight * std::sqrt(static_cast<double>(p_.width)));
    if (fill_ != Fill::kSomeNan || p_.w == DType::kBF16) return fill_rarely(a_.x, fill_, random_, size);
    // Scales hold the NaN here. NaN throughout x would hide them, so only one element of x is NaN.
    fill_floats(a_.x, Fill::kNormal, random_, size);
    set_first_nan();
  }

  // Makes rounding to FP8 exact, so that the error bound covers the products alone. Every row of x becomes multiples of its scale,
  // a power of two, and has an element of 448 times the scale.
  void put_x_on_grid() {
    const int64_t rows = a_.x.shape[0];
    for (int64_t r = 0; r < rows; ++r) {
      double largest = 0x1p-60;
      for (int64_t c = 0; c < p_.width; ++c) largest = std::max(largest, std::abs(load2(a_.x, r, c)));
      const double scale = std::exp2(std::ceil(std::log2(largest / kE4M3Max)));
      Tensor row = a_.x;
      row.data = row.as<std::byte>() + r * bytes_of(row.dtype, row.stride[0]);
      row.shape = {1, p_.width};
      set_each(row, [&](int64_t, int64_t c) {
        if (c == r % p_.width) return (r % 2 ? -1 : 1) * kE4M3Max * scale;
        return to_float(to_e4m3(static_cast<float>(load2(row, 0, c) / scale))) * scale;
      });
    }
  }

  void set_first_nan() {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    if (elements_of(a_.x) == 0) return;
    Tensor first = a_.x;
    first.shape = {1, 1};
    set_each(first, [&](int64_t, int64_t) { return nan; });
  }

  void clear_packed() {
    const int padding_scale = p_.layout == WeightLayout::kPanels16 ? 127 : 0;
    std::memset(a_.w.data, 0, static_cast<size_t>(p_.experts * ExpertGemm::packed_bytes(p_)));
    if (a_.w_scale.present())
      std::memset(a_.w_scale.data, padding_scale,
                  static_cast<size_t>(p_.experts * ExpertGemm::packed_scale_bytes(p_)));
  }

  // The output feature of a checkpoint row, and whether the row belongs to the up projection.
  std::pair<int64_t, bool> feature_of(int64_t row) const {
    if (!is_gated(p_.act)) return {row, false};
    const int64_t i = p_.gate_order == GateOrder::kInterleaved ? row / 2 : row % p_.features;
    return {i, gated_row(p_.gate_order, p_.features, i, true) == row};
  }
  FragmentRow fragment_place(int64_t row) const {
    const auto [i, up] = feature_of(row);
    return fragment_row(is_gated(p_.act), i, up);
  }

  // The panel row that holds a checkpoint row.
  PanelRow place(int64_t row) const {
    const auto [i, up] = feature_of(row);
    return panel_row(is_gated(p_.act), i, up);
  }

  void weight_row(int64_t e, int64_t row) {
    if (p_.w == DType::kBF16) return bf16_row(e, row);
    const ScaleRange range = scale_range(fill_);
    std::vector<uint8_t> codes(static_cast<size_t>(p_.width)),
        scales(static_cast<size_t>(p_.width / kMxBlock));
    uint32_t bits = 0;
    for (int64_t k = 0; k < p_.width; ++k, bits >>= 4) {
      if (k % 8 == 0) bits = fill_ == Fill::kAllEqual ? 0x2222222Au : random_.bits();
      if (k % kMxBlock == 0) {
        const bool nan = fill_ == Fill::kSomeNan && random_.integer(0, 15) == 0;
        scales[static_cast<size_t>(k / kMxBlock)] =
            static_cast<uint8_t>(nan ? 255 : random_.integer(range.low, range.high));
      }
      codes[static_cast<size_t>(k)] = static_cast<uint8_t>(bits & 15);
    }
    if (p_.layout == WeightLayout::kFragments) return fragment_fp4_row(e, row, codes, scales);
    const PanelShape s = ExpertGemm::panels(p_);
    const bool packed = p_.layout == WeightLayout::kPanels16;
    const PanelRow at = place(row);
    const int64_t flat = (e * ExpertGemm::weight_rows(p_) + row) * p_.width;
    uint8_t* to = a_.w_scale.as<uint8_t>();
    for (int64_t k = 0; k < p_.width; ++k) {
      const int64_t scale_at =
          packed ? e * s.scale_bytes(kMxfp4) + panel_scale_index(s, kMxfp4, at, k) : (flat + k) / kMxBlock;
      to[scale_at] = scales[static_cast<size_t>(k / kMxBlock)];
      const NibbleAt n =
          packed ? panel_mxfp4_nibble(s, at, k) : NibbleAt{(flat + k) / 2, static_cast<int>(k % 2 * 4)};
      uint8_t& byte = a_.w.as<uint8_t>()[(packed ? e * s.code_bytes(kMxfp4) : 0) + n.byte];
      byte = static_cast<uint8_t>((byte & ~(15 << n.shift)) | codes[static_cast<size_t>(k)] << n.shift);
    }
  }

  // The fragment layout stores scales relative to the row's largest, and zeros under a NaN scale.
  void fragment_fp4_row(int64_t e, int64_t row, const std::vector<uint8_t>& codes,
                        const std::vector<uint8_t>& scales) {
    const FragmentShape s = ExpertGemm::fragments(p_);
    const FragmentRow at = fragment_place(row);
    uint8_t* to_scales = a_.w_scale.as<uint8_t>() + e * s.scale_bytes(kMxfp4);
    auto* words = reinterpret_cast<uint32_t*>(a_.w.as<uint8_t>() + e * s.code_bytes(kMxfp4));
    uint8_t top = 0;
    for (uint8_t scale : scales) top = scale != 255 ? std::max(top, scale) : top;
    to_scales[fragment_top_index(s, at)] = top;
    for (int64_t k = 0; k < p_.width; ++k) {
      const uint8_t scale = scales[static_cast<size_t>(k / kMxBlock)];
      to_scales[fragment_scale_index(s, at, k)] = fragment_stored_scale(scale, top);
      const uint32_t code = scale == 255 ? 0 : codes[static_cast<size_t>(k)];
      const FragmentCode c = fragment_code(s, at, k);
      words[c.word] ^= fragment_word(fragment_pair_of(c.half ? 0 : code, c.half ? code : 0), c.pair);
    }
  }

  void bf16_row(int64_t e, int64_t row) {
    std::vector<BF16> values(static_cast<size_t>(p_.width));
    const bool extreme = fill_ == Fill::kTiny || fill_ == Fill::kHuge || fill_ == Fill::kInfinite;
    fill_rarely(make_tensor(values.data(), DType::kBF16, {1, p_.width}), extreme ? Fill::kNormal : fill_,
                random_, 0.05);
    const PanelShape s = ExpertGemm::panels(p_);
    for (int64_t k = 0; k < p_.width; ++k) {
      const BF16 v = values[static_cast<size_t>(k)];
      if (p_.layout == WeightLayout::kRowMajor) {
        a_.w.as<BF16>()[(e * ExpertGemm::weight_rows(p_) + row) * p_.width + k] = v;
      } else if (p_.layout == WeightLayout::kFragments) {
        const FragmentShape f = ExpertGemm::fragments(p_);
        BF16* expert = reinterpret_cast<BF16*>(a_.w.as<uint8_t>() + e * f.code_bytes({}));
        expert[fragment_bf16_index(f, fragment_place(row), k)] = v;
      } else {
        BF16* expert = reinterpret_cast<BF16*>(a_.w.as<uint8_t>() + e * s.code_bytes({}));
        expert[panel_bf16_index(s, place(row), k)] = v;
      }
    }
  }

  const ExpertGemm::Problem& p_;
  Fill fill_;
  ExpertGemm::Args& a_;
  Random& random_;
};

template <>
struct Suite<ExpertGemm> {
  using P = ExpertGemm::Problem;
  static constexpr DType kF = DType::kF32, kB = DType::kBF16;
  static constexpr WeightLayout kLayouts[] = {WeightLayout::kPanels16, WeightLayout::kRowMajor,
                                              WeightLayout::kFragments};

  // gpt-oss's first product at a given size.
  static P gate_up(int64_t tokens, int64_t experts, int64_t features, int64_t width) {
    return {.rows = tokens * 4,
            .experts = experts,
            .features = features,
            .width = width,
            .tokens = tokens,
            .slots = 4,
            .act = Activation::kSwiGluClamped,
            .alpha = 1.702,
            .beta = 1,
            .limit = 7,
            .bias = true};
  }
  // Rows that are already gathered, with activation `act` and MXFP4 panels.
  static P rows_of(int64_t rows, Activation act) {
    return {.rows = rows, .experts = 3, .features = 18, .width = 64, .act = act, .limit = 2};
  }

  // Returns a changed copy: with(problem, [](P& p) { p.x = ...; }).
  template <class F>
  static P with(P p, F change) {
    change(p);
    return p;
  }

  // Adds a case in every layout. All other cases set their layout themselves.
  struct InAllLayouts {
    std::vector<Case<ExpertGemm>>* out;
    void operator()(P p, const char* why, Fill fill = Fill::kNormal,
                    Spread spread = Spread::kContiguous) const {
      for (WeightLayout layout : kLayouts) {
        p.layout = layout;
        out->push_back({p, why, fill, spread});
      }
    }
  };

  static std::vector<Case<ExpertGemm>> cases() {
    std::vector<Case<ExpertGemm>> out;
    add_models(&out);
    add_activations(&out);
    add_edges({&out});
    for (const WeightFormat& f : kScaledFormats) add_format({&out}, f);
    ExpertGemmTiles::add(&out);
    // Strided rows are unaligned here; the fuzzer covers aligned strided rows.
    for (auto& test : out) test.problem.x_unaligned = test.spread == Spread::kStridedRows;
    return out;
  }
  static void add_models(std::vector<Case<ExpertGemm>>* out) {
    const InAllLayouts each{out};
    each(gate_up(1, 2, 360, 2880), "gpt-oss-120b on eight tensor-parallel ranks: decode, gate and up");
    each({.rows = 4, .experts = 2, .features = 720, .width = 1440, .bias = true},
         "a part of gpt-oss-120b's down");
    each(gate_up(13, 6, 50, 96), "a small batch, features that no tile divides");
    each(with(gate_up(3, 4, 33, 64),
              [](P& p) {
                p.limit = 10, p.alpha = 1, p.beta = 0, p.bias = false, p.gate_order = GateOrder::kGateFirst,
                p.slots = 6, p.rows = 18;
              }),
         "DeepSeek V4: top 6, clamp at 10, gates first");
    each(with(gate_up(5, 3, 20, 32), [](P& p) { p.gate_order = GateOrder::kUpFirst, p.b = kF; }),
         "ups first, f32 bias");
    each(with(gate_up(4, 3, 17, 64), [](P& p) { p.per_expert = true; }), "activation parameters per expert");
    each(with(gate_up(4, 3, 17, 64), [](P& p) { p.limit = std::numeric_limits<double>::infinity(); }),
         "no clamp");
    each({.rows = 5,
          .experts = 4,
          .features = 35,
          .width = 77,
          .tokens = 5,
          .slots = 1,
          .w = kB,
          .gate_order = GateOrder::kGateFirst,
          .act = Activation::kSwiGlu,
          .weighted = true},
         "Llama 4: router weights on the input; bf16 with an odd width");
    each({.rows = 12,
          .experts = 5,
          .features = 48,
          .width = 40,
          .tokens = 6,
          .slots = 2,
          .w = kB,
          .act = Activation::kRelu2},
         "Nemotron: relu squared, no gate");
    // silu is never below -0.279, so only a limit below that distinguishes a clamp on both sides from a clamp
    // of the upper side.
    each(with(rows_of(40, Activation::kSwiGluStep), [](P& p) { p.limit = 0.1, p.y = kF; }),
         "the gate of kSwiGluStep is clamped only from above");
  }
  static void add_activations(std::vector<Case<ExpertGemm>>* out) {
    for (int a = 0; a <= static_cast<int>(Activation::kGeGluTanh); ++a) {
      for (WeightLayout layout : {kLayouts[a % 2], WeightLayout::kFragments}) {
        P p = rows_of(7, static_cast<Activation>(a));
        p.layout = layout;
        p.x = a % 3 ? kB : kF, p.y = a % 3 ? kF : kB;
        out->push_back({p, "every activation"});
        out->push_back({p, "every activation of infinities", Fill::kInfinite});
        p.w = kB, p.width = 37, p.bias = true, p.gate_order = GateOrder::kGateFirst;
        out->push_back({p, "every activation, bf16, a width that no tile divides"});
        out->push_back({p, "every activation of NaN", Fill::kSomeNan});
      }
    }
  }
  static void add_edges(const InAllLayouts& each) {
    each(with(gate_up(33, 4, 40, 64), [](P& p) { p.slots = 1, p.rows = 33; }), "33 rows of one expert",
         Fill::kSkewed);
    each(with(rows_of(150, Activation::kIdentity), [](P& p) { p.features = 8, p.experts = 2; }),
         "150 rows of one expert", Fill::kSkewed);
    each(with(gate_up(6, 5, 20, 64), [](P& p) { p.rows += 30; }), "unused rows between experts",
         Fill::kNormal, Spread::kStridedRows);
    for (const Activation act : {Activation::kIdentity, Activation::kSwiGlu})
      each(with(rows_of(12, act), [](P& p) { p.features = 21; }),
           "aligned rows of y whose length is no multiple of 16 bytes", Fill::kSkewed, Spread::kStridedRows);
    each(with(gate_up(2, 40, 8, 32), [](P& p) { p.x = p.y = kF; }), "most experts empty");
    each(gate_up(3, 4, 20, 64), "every expert empty", Fill::kEmpty);
    each(gate_up(0, 4, 20, 64), "no tokens");
    each(with(gate_up(2, 4, 20, 64), [](P& p) { p.slots = 1; }), "more rows than token slots");
    each({.rows = 0, .experts = 4, .features = 20, .width = 64}, "no rows");
    each({.rows = 1, .experts = 1, .features = 1, .width = 1, .w = kB}, "the smallest sizes");
    each(with(rows_of(9, Activation::kIdentity), [](P& p) { p.x = p.y = kF; }), "scales from 0", Fill::kTiny);
    each(with(rows_of(9, Activation::kIdentity), [](P& p) { p.x = p.y = kF; }), "scales to 254", Fill::kHuge);
    each(with(rows_of(9, Activation::kIdentity), [](P& p) { p.y = kF; }), "scales from 0, bf16 x",
         Fill::kTiny);
    each(with(rows_of(9, Activation::kIdentity), [](P& p) { p.y = kF; }), "scales to 254, bf16 x",
         Fill::kHuge);
    each(with(rows_of(9, Activation::kIdentity), [](P& p) { p.y = kF, p.width = 160; }),
         "very different scales in one row", Fill::kAllEqual);
    each(with(rows_of(49, Activation::kIdentity), [](P& p) { p.experts = 1; }), "49 rows: 32 + 17");
    each(with(rows_of(300, Activation::kSwiGlu), [](P& p) { p.experts = 1, p.features = 5, p.width = 320; }),
         "more rows of one expert than one pass over decoded weights takes");
    each(with(rows_of(9, Activation::kIdentity), [](P& p) { p.y = kF, p.width = 160; }),
         "some scales are NaN", Fill::kSomeNan);
    each(with(gate_up(9, 3, 96, 192), [](P& p) { p.gate_order = GateOrder::kGateFirst; }),
         "a whole number of 64 x 64 blocks, gates first");
    each({.rows = 20, .experts = 3, .features = 96, .width = 1440, .bias = true},
         "features and width end with half a block of 64");
    each({.rows = 20,
          .experts = 3,
          .features = 80,
          .width = 192,
          .w = kB,
          .gate_order = GateOrder::kUpFirst,
          .act = Activation::kSwiGlu},
         "bf16 in 64 x 64 blocks, the last one a half");
  }

  // A format other than bf16 and MXFP4.
  static void add_format(const InAllLayouts& each, WeightFormat f) {
    const auto of = [&](P p) { return p.w = f.w, p.scales = f.scales, p; };
    each(of(gate_up(1, 2, 360, 2880)), "decode, gate and up");
    each(of({.rows = 20, .experts = 3, .features = 96, .width = 1440, .bias = true}),
         "half a block of 64 at both ends");
    each(of(with(gate_up(9, 3, 96, 192), [](P& p) { p.gate_order = GateOrder::kGateFirst; })),
         "whole blocks, gates first");
    each(of(with(gate_up(13, 6, 50, 96), [](P& p) { p.gate_order = GateOrder::kUpFirst, p.b = kF; })),
         "features that no tile divides, ups first");
    each(of(with(gate_up(6, 3, 40, 64), [](P& p) { p.x = p.y = kF, p.weighted = true; })),
         "x in f32, weighted");
    each(of(with(rows_of(30, Activation::kRelu2), [](P& p) { p.width = 160, p.y = kF; })),
         "NaN codes and scales", Fill::kSomeNan);
    each(of(with(rows_of(9, Activation::kIdentity), [](P& p) { p.y = kF, p.width = 320; })),
         "very different scales in one row", Fill::kAllEqual);
    each(of(with(rows_of(300, Activation::kSwiGlu),
                 [](P& p) { p.experts = 1, p.features = 70, p.width = 320; })),
         "many rows of one expert");
    each(of(gate_up(3, 4, 20, 64)), "every expert empty", Fill::kEmpty);
    if (f.scales == WeightScales::kMx) {
      each(of(with(rows_of(9, Activation::kIdentity), [](P& p) { p.y = kF; })), "scales from 0", Fill::kTiny);
      each(of(with(rows_of(9, Activation::kIdentity), [](P& p) { p.y = kF; })), "scales to 254", Fill::kHuge);
    }
    if (f.width_step() == 1)
      each(of({.rows = 7, .experts = 2, .features = 33, .width = 77, .y = kF}), "an odd width");
    for (const int64_t slots : {0, 2})
      for (const int64_t rows : {24, 56, 80, 112, 200})
        each.out->push_back({of({.rows = rows,
                                 .rows_expected = rows,
                                 .experts = 2,
                                 .features = 72,
                                 .width = 264 / f.width_step() * f.width_step(),
                                 .tokens = slots > 0 ? rows / slots : 0,
                                 .slots = slots,
                                 .layout = WeightLayout::kFragments,
                                 .gate_order = GateOrder::kGateFirst,
                                 .act = Activation::kSwiGlu}),
                             "tiles of many widths, one expert has all rows", Fill::kSkewed});
    for (const int64_t k_blocks : {1, 3, 4, 5, 8, 9})
      each.out->push_back({of({.rows = 30,
                               .experts = 5,
                               .features = 300,
                               .width = 64 * k_blocks,
                               .layout = WeightLayout::kFragments,
                               .settled = true}),
                           "short sums"});
  }

  static void fill(const P& p, Fill fill, HostArgs<ExpertGemm>& host, Random& random) {
    ExpertFill(p, fill, host.args(), random).all();
  }

  static P random(Random& r) {
    const WeightFormat format = random_format(r);
    P p{.experts = r.integer(1, 9), .features = r.integer(1, 40), .w = format.w, .scales = format.scales};
    p.width =
        format.width_step() == 1 ? r.integer(1, 100) : r.integer(1, 4) * 32 + (r.integer(0, 9) == 0 ? 8 : 0);
    p.slots = coin(r) ? r.integer(1, 5) : 0;
    p.tokens = p.slots > 0 ? r.integer(0, 12) : 0;
    p.rows = (p.slots > 0 ? p.tokens * p.slots : r.integer(0, 40)) + r.integer(0, 1) * r.integer(0, 20);
    p.x = any_float(r), p.b = any_float(r), p.y = any_float(r);
    p.layout = kLayouts[r.integer(0, 2)];
    p.gate_order = static_cast<GateOrder>(r.integer(0, 2));
    p.act = static_cast<Activation>(r.integer(0, static_cast<int64_t>(Activation::kGeGluTanh)));
    p.alpha = 0.5 + 2 * r.uniform(), p.beta = r.uniform() - 0.5, p.limit = r.integer(0, 9) * r.uniform();
    p.bias = coin(r), p.weighted = r.integer(0, 3) == 0, p.per_expert = r.integer(0, 3) == 0;
    p.settled = coin(r), p.x_unaligned = coin(r), p.fp8_x = r.integer(0, 3) == 0;
    return p;
  }
};

}  // namespace sluice::test
