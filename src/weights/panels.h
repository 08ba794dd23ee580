// One expert's (or dense layer's) weights between the checkpoint's layout and panels of 16 rows
// (ops/weight_layout.h says where each weight lies).
#pragma once
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/tensor.h"
#include "ops/weight_layout.h"
#include "weights/row_span.h"

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

// The same matrix as a checkpoint holds it: spans one below the other, features rows in all. `gate_order` plays no part.
struct PanelSource {
  std::vector<RowSpan> rows;  // every row, or the gates of a gated matrix
  std::vector<RowSpan> ups;   // of a gated matrix
};
enum class NanScales : uint8_t {
  kKeep,
  kRefuse,  // an e8m0 scale of 255 is kCorrupt and names tensor, expert, row and block
};
struct PackOptions {
  int threads = 1;  // 0: one for each processor
  NanScales nan_scales = NanScales::kRefuse;
};
// Packs straight from the checkpoint's bytes and returns their fingerprint: a hash of the rows as they are read, feature by
// feature. Besides the panels it needs at most 32 * width bytes for each thread. kInvalidArgument as pack_panels16; after
// kCorrupt the panels hold nothing of use.
Result<uint64_t> pack_rows(const PanelMatrix& matrix, const PanelSource& from, const PanelWeights& to,
                           const PackOptions& options);
// kCorrupt as pack_rows with NanScales::kRefuse, without packing.
Status check_scales(const PanelMatrix& matrix, const PanelSource& from);
// What pack_rows returned, computed from the panels: differs if a byte of a weight or scale has changed since.
Result<uint64_t> fingerprint(const PanelMatrix& matrix, const PanelWeights& panels, int threads);

}  // namespace sluice
