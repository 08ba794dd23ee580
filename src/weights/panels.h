// One expert's (or dense layer's) weights between the checkpoint's layout and panels of 16 rows
// (ops/weight_layout.h says where each weight lies).
#pragma once
#include <cstdint>

#include "base/status.h"
#include "base/tensor.h"
#include "ops/weight_layout.h"

namespace sluice {

struct PanelMatrix {
  int64_t features = 0, width = 0;  // columns of y, columns of x
  bool gated = false;               // 2 * features rows, in gate_order
  GateOrder gate_order = GateOrder::kInterleaved;
  DType w = DType::kBF16;  // or kE2M1, with scales and width % 32 == 0
};

// The two forms of one matrix. `scales` is absent for bf16.
struct RowMajorWeights {
  Tensor w;       // bf16 or e2m1 [rows, width]
  Tensor scales;  // u8 [rows, width / 32], e8m0
};
struct PanelWeights {
  Tensor w;       // u8 [panel_shape().code_bytes()]
  Tensor scales;  // u8 [panel_shape().scale_bytes()]
};

// Every byte of `to` is written: padding gets zeros, and 127 as its scale. unpack inverts pack bit by bit and
// never reads padding. kInvalidArgument names the tensor, what was wanted and what was found; nothing is
// written then.
Status pack_panels16(const PanelMatrix& matrix, const RowMajorWeights& from, const PanelWeights& to);
Status unpack_panels16(const PanelMatrix& matrix, const PanelWeights& from, const RowMajorWeights& to);

}  // namespace sluice
