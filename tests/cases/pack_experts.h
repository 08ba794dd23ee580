#pragma once
#include <cstring>

#include "cases/expert_gemm_scaled.h"
#include "harness/cases.h"
#include "ops/pack_experts.h"

namespace sluice::test {

template <>
struct Suite<PackExperts> {
  using P = PackExperts::Problem;

  static std::vector<Case<PackExperts>> cases() {
    constexpr DType kB = DType::kBF16;
    std::vector<Case<PackExperts>> out;
    const auto both = [&](P p, const char* why, Fill fill = Fill::kNormal) {
      for (bool unpack : {false, true}) {
        p.unpack = unpack;
        out.push_back({p, why, fill});
      }
    };
    both({.experts = 2, .features = 64, .width = 128}, "whole blocks");
    both({.experts = 2, .features = 45, .width = 2880}, "gpt-oss's width; a last block of 26 rows");
    both({.experts = 1, .features = 96, .width = 1440, .gated = false},
         "half a block of rows, half a block of width");
    both({.experts = 3, .features = 33, .width = 96, .gate_order = GateOrder::kGateFirst}, "gates first");
    both({.experts = 3, .features = 33, .width = 96, .gate_order = GateOrder::kUpFirst}, "ups first");
    both({.experts = 3, .features = 70, .width = 160, .gate_order = GateOrder::kUpFirst}, "NaN scales",
         Fill::kSomeNan);
    both({.experts = 1, .features = 64, .width = 8192, .gated = false}, "every pair of a code and a scale",
         Fill::kAllEqual);
    both({.experts = 2, .features = 5, .width = 64}, "all scales NaN", Fill::kEmpty);
    both({.experts = 1, .features = 1, .width = 32, .gated = false}, "the smallest sizes");
    both({.experts = 0, .features = 64, .width = 64}, "no experts");
    for (const WeightFormat& f : kScaledFormats) {
      const auto of = [&](P p) { return p.w = f.w, p.scales = f.scales, p; };
      both(of({.experts = 2, .features = 64, .width = 128}), "whole blocks");
      both(of({.experts = 2, .features = 45, .width = 2880}), "a last block of 26 rows");
      both(of({.experts = 3, .features = 100, .width = 96, .gated = false}), "a last block of 36 rows");
      both(of({.experts = 3, .features = 33, .width = 160, .gate_order = GateOrder::kUpFirst}),
           "NaN codes and scales", Fill::kSomeNan);
      both(of({.experts = 1, .features = 64, .width = 1024, .gated = false}), "a wide range of scales",
           Fill::kAllEqual);
      if (f.width_step() == 1) both(of({.experts = 2, .features = 33, .width = 77}), "an odd width");
    }
    both({.experts = 2, .features = 45, .width = 2880, .w = kB}, "bf16, gpt-oss's width");
    both({.experts = 3, .features = 33, .width = 77, .gate_order = GateOrder::kGateFirst, .w = kB},
         "bf16, an odd width");
    both({.experts = 3, .features = 65, .width = 84, .gate_order = GateOrder::kUpFirst, .w = kB},
         "bf16, rows of 8 bytes");
    both({.experts = 2, .features = 100, .width = 72, .gated = false, .w = kB},
         "bf16, rows of 16 bytes, one past a block");
    both({.experts = 2, .features = 1, .width = 1, .gated = false, .w = kB}, "bf16, the smallest sizes");
    return out;
  }

  static void scaled(const P& p, Fill fill, PackExperts::Args& a, Random& random) {
    const int64_t rows = PackExperts::weight_rows(p);
    for (int64_t e = 0; e < p.experts; ++e) {
      ScaledRows one = scaled_rows(PackExperts::format(p), rows, p.width, fill, random);
      const auto row_of = [&](int64_t feature, bool up) {
        return p.gated ? gated_row(p.gate_order, p.features, feature, up) : feature;
      };
      if (p.scales == WeightScales::kBlocks)
        fill_block_scales(p.features, p.gated ? 2 : 1, p.width, fill, row_of, &one, random);
      std::copy(one.codes.begin(), one.codes.end(),
                a.rows.as<uint8_t>() + e * static_cast<int64_t>(one.codes.size()));
      std::copy(one.scales.begin(), one.scales.end(),
                a.row_scales.as<uint8_t>() + e * static_cast<int64_t>(one.scales.size()));
    }
  }

  // Arbitrary bytes as codes; scales according to the fill.
  static void rows(const P& p, Fill fill, PackExperts::Args& a, Random& random) {
    const WeightFormat f = PackExperts::format(p);
    if (f.scaled() && f != WeightFormat{DType::kE2M1}) return scaled(p, fill, a, random);
    const int64_t bytes = elements_of(a.rows), scales = p.w == DType::kE2M1 ? elements_of(a.row_scales) : 0;
    const int64_t blocks = p.width / kMxBlock;
    for (int64_t i = 0; i < bytes; ++i)
      a.rows.as<uint8_t>()[i] = static_cast<uint8_t>(fill == Fill::kAllEqual ? i : random.bits());
    for (int64_t i = 0; i < scales; ++i) {
      int64_t scale = random.integer(100, 130);
      if (fill == Fill::kSomeNan && random.integer(0, 4) == 0) scale = 255;
      if (fill == Fill::kEmpty) scale = 255;
      if (fill == Fill::kTiny) scale = random.integer(0, 3);
      if (fill == Fill::kHuge) scale = random.integer(250, 254);
      if (fill == Fill::kAllEqual) scale = (i % blocks + i / blocks) % 256;
      a.row_scales.as<uint8_t>()[i] = static_cast<uint8_t>(scale);
    }
  }

  static void fill(const P& p, Fill fill, HostArgs<PackExperts>& host, Random& random) {
    if (!p.unpack) return rows(p, fill, host.args(), random);
    P packing = p;
    packing.unpack = false;
    HostArgs<PackExperts> from(packing, Spread::kContiguous);
    rows(packing, fill, from.args(), random);
    for (const Expected& e : reference(packing, from.args())) {
      auto* to = host.find(e.slot)->view().as<uint8_t>();
      for (size_t i = 0; i < e.value.size(); ++i) to[i] = static_cast<uint8_t>(e.value[i]);
    }
  }

  static P random(Random& r) {
    const WeightFormat f = random_format(r);
    return {.experts = r.integer(0, 4),
            .features = r.integer(1, 140),
            .width = f.width_step() == 1 ? r.integer(1, 300)
                                         : 32 * r.integer(1, 12) + (r.integer(0, 9) == 0 ? 8 : 0),
            .gated = coin(r),
            .gate_order = static_cast<GateOrder>(r.integer(0, 2)),
            .w = f.w,
            .scales = f.scales,
            .unpack = coin(r)};
  }
};

}  // namespace sluice::test
