// Converts one expert's (or dense layer's) weights between the checkpoint's layout and a packed layout
// (defined in ops/weight_layout.h and ops/fragment_layout.h).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/tensor.h"
#include "ops/weight_layout.h"
#include "weights/parallel.h"
#include "weights/row_span.h"

namespace sluice {

struct PackedMatrix {
  int64_t features = 0, width = 0;  // columns of y, columns of x
  bool gated = false;               // true: 2 * features rows, in gate_order
  GateOrder gate_order = GateOrder::kInterleaved;
  DType w = DType::kBF16;                         // or kE2M1 or kE4M3, which have scales
  WeightLayout layout = WeightLayout::kPanels16;  // or kFragments
  WeightScales scales = WeightScales::kMx;

  WeightFormat format() const { return {w, scales}; }
};

// The same matrix before and after packing. `scales` is absent for bf16.
struct RowMajorWeights {
  Tensor w;       // [rows, width]
  Tensor scales;  // u8 [rows, bytes of a row's scales] (ops/weight_format.h)
};
struct PackedWeights {
  Tensor w;       // u8 [packed_sizes().code_bytes]
  Tensor scales;  // u8 [packed_sizes().scale_bytes]
};
// Bytes of one packed matrix; no scales for bf16.
struct PackedSizes {
  int64_t code_bytes, scale_bytes;
};
PackedSizes packed_sizes(const PackedMatrix& matrix);

// Packing writes every byte of `to`. Padding becomes zeros, except that in panels16 an e8m0 scale of padding
// becomes 127. Unpacking never reads padding and restores all bits, except that fragments do not keep the
// bits of NaN weights (ops/pack_experts.h). kInvalidArgument names the tensor, what was wanted and what was
// found; in that case nothing is written.
Status pack_matrix(const PackedMatrix& matrix, const RowMajorWeights& from, const PackedWeights& to);
Status unpack_matrix(const PackedMatrix& matrix, const PackedWeights& from, const RowMajorWeights& to);

// The same matrix as a checkpoint stores it: stacked spans whose rows add up to `features`. Ignores
// gate_order.
struct MatrixSource {
  std::vector<RowSpan> rows;  // all rows, or the gate rows of a gated matrix
  std::vector<RowSpan> ups;   // the up rows of a gated matrix
};
// How to treat weights that are not finite: NaN codes and scales, infinities, and (in every layout) scales
// that fragments cannot represent (ops/fragment_layout.h). In bf16 converted from FP8, the checked value is
// the code times its scale.
enum class NoNumbers : uint8_t {
  kKeep,
  kRefuse,  // kCorrupt names tensor, expert, row, and block or column
};
struct PackOptions {
  int threads = 1;  // 0: one per processor
  NoNumbers no_numbers = NoNumbers::kRefuse;
};
// Packs directly from the checkpoint's bytes and returns their fingerprint: a hash of the rows that
// read_row() returns (weights/row_span.h), in the layout's order. A scale of 0 is replaced as in read_row().
// Allocates at most 128 * width bytes per thread. kInvalidArgument as in pack_matrix; after kCorrupt the
// content of `to` is undefined.
Result<uint64_t> pack_rows(const PackedMatrix& matrix, const MatrixSource& from, const PackedWeights& to,
                           const PackOptions& options);

// Rows for a device that packs them itself (layout fragments): row blocks `first` .. first + blocks - 1. Row
// r is row 64 * first + r of the matrix with alternating gates and ups, regardless of the checkpoint's order.
struct RowBlocks {
  int64_t first = 0, blocks = 0;
  std::byte* w = nullptr;       // [rows, bytes of width weights]
  std::byte* scales = nullptr;  // [rows, bytes of a row's scales]
  uint64_t* hashes = nullptr;   // [blocks]
};
// The number of row blocks of a matrix, and the number of rows in `blocks` row blocks from `first` on.
int64_t row_block_count(const PackedMatrix& matrix);
int64_t rows_in_blocks(const PackedMatrix& matrix, int64_t first, int64_t blocks);
// Copies and hashes the rows on the caller's thread. kInvalidArgument as in pack_rows; kCorrupt as in
// pack_rows with NoNumbers::kRefuse.
Status gather_row_blocks(const PackedMatrix& matrix, const MatrixSource& from, const RowBlocks& to);
// The fingerprint that pack_rows returns, computed from the hashes of all row blocks in order.
uint64_t fingerprint_of(std::span<const uint64_t> hashes);

// Checks the weights without packing them: kCorrupt as in pack_rows with NoNumbers::kRefuse.
Status check_weights(const PackedMatrix& matrix, const MatrixSource& from, int threads);
// The fingerprint that pack_rows returned, recomputed from the packed bytes. It differs from pack_rows' result if a
// byte of a weight or scale has changed since packing, and in fragments also differs if packing kept a NaN scale.
Result<uint64_t> fingerprint(const PackedMatrix& matrix, const PackedWeights& packed, int threads);

}  // namespace sluice
