#pragma once
#include "ops/fragment_layout.h"
#include "ops/op.h"

namespace sluice {

// Converts experts' weights from a checkpoint's order into the layout that kernels read, or back.
//
//   packed[e], packed_scales[e] = rows[e], row_scales[e] in layout fragments          unpack = false
//   rows[e], row_scales[e] = the inverse                                              unpack = true
//
// Shapes     A matrix has `features` rows, or twice as many if it is gated, in the order gate_order. All tensors are bytes:
//            rows u8[experts, rows, bytes of width weights], little-endian bf16, e4m3, or e2m1 with the even code in the
//            low nibble; row_scales u8[experts, rows, bytes of a row's scales] (ops/weight_format.h). packed
//            u8[experts, bytes] and packed_scales u8[experts, bytes], sizes from fragment_shape. experts from 0 to 2048,
//            features and width from 1 to 65536, width % 32 == 0 for e2m1 and for scales mx. With scales blocks, the gate
//            rows of each 32 features must have equal scales, and so must their up rows.
// Bytes      reads one form and writes the other; padding is written as zeros and never read.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  equal to the reference, byte by byte. NaN weights are packed as ops/fragment_layout.h says: codes under a NaN
//            scale or under a zero scale of nv become zeros; invalid scales, and the scales of NaN codes, are not restored.
// Source     ops/fragment_layout.h.
struct PackExperts {
  static constexpr std::string_view kName = "pack_experts";
  static constexpr std::string_view kSummary =
      "converts experts' weights from a checkpoint's order into fragments, or back";
  struct Problem {
    int64_t experts = 1, features = 2880, width = 2880;
    bool gated = true;
    GateOrder gate_order = GateOrder::kInterleaved;
    DType w = DType::kE2M1;
    WeightScales scales = WeightScales::kMx;
    bool unpack = false;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("experts", p.experts, "matrices");
      v("features", p.features, "output features of a matrix");
      v("width", p.width, "columns of a matrix");
      v("gated", p.gated, "a matrix has a gate and an up row for each feature");
      v("gate_order", p.gate_order, "order of gate and up in the checkpoint");
      v("w", p.w, "type of the weights");
      v("scales", p.scales, "scales of e2m1 or e4m3 weights");
      v("unpack", p.unpack, "from fragments to the checkpoint's order");
    }
  };
  struct Args {
    Tensor rows, row_scales, packed, packed_scales;
  };
  static int64_t weight_rows(const Problem& p) { return p.gated ? 2 * p.features : p.features; }
  static FragmentShape shape(const Problem& p) { return fragment_shape(p.features, p.gated, p.width); }
  // Bytes of a row and of its scales.
  static int64_t row_bytes(const Problem& p) { return bytes_of(p.w, p.width); }
  SLUICE_HOST_DEVICE static constexpr WeightFormat format(const Problem& p) { return {p.w, p.scales}; }
  static int64_t row_scale_bytes(const Problem& p) { return format(p).row_scale_bytes(p.width); }
  // The checkpoint's row that is stored at `at`; -1 for padding.
  SLUICE_HOST_DEVICE static int64_t source_row(const Problem& p, FragmentRow at) {
    const FragmentFeature f = fragment_feature(p.gated, at);
    if (f.feature >= p.features) return -1;
    return p.gated ? gated_row(p.gate_order, p.features, f.feature, f.up) : f.feature;
  }
  template <class V>
  static void slots(const Problem& p, V v) {
    const bool scaled = format(p).scaled();
    const Role rows = p.unpack ? Role::kOut : Role::kIn, packed = p.unpack ? Role::kIn : Role::kOut;
    v(slot("rows", rows, DType::kU8, {p.experts, weight_rows(p), row_bytes(p)}), &Args::rows);
    v(slot("row_scales", rows, DType::kU8, {p.experts, weight_rows(p), row_scale_bytes(p)}, scaled),
      &Args::row_scales);
    v(slot("packed", packed, DType::kU8, {p.experts, shape(p).code_bytes(format(p))}), &Args::packed);
    v(slot("packed_scales", packed, DType::kU8, {p.experts, shape(p).scale_bytes(format(p))}, scaled),
      &Args::packed_scales);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem&) { return 0; }
  static Problem at_tokens(Problem p, int64_t n) { return p.experts = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.experts; }
};

Expectations reference(const PackExperts::Problem& problem, const PackExperts::Args& args);

}  // namespace sluice
