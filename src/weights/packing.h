// One expert's (or dense layer's) weights between the checkpoint's layout and a packed one (ops/weight_layout.h and
// ops/fragment_layout.h say where each weight lies).
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
  bool gated = false;               // 2 * features rows, in gate_order
  GateOrder gate_order = GateOrder::kInterleaved;
  DType w = DType::kBF16;                         // or kE2M1, with scales and width % 32 == 0
  WeightLayout layout = WeightLayout::kPanels16;  // or kFragments
};

// The two forms of one matrix. `scales` is absent for bf16.
struct RowMajorWeights {
  Tensor w;       // bf16 or e2m1 [rows, width]
  Tensor scales;  // u8 [rows, width / 32], e8m0
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

// Every byte of `to` is written: padding gets zeros, and in panels16 127 as its scale. unpack inverts pack bit by bit and
// never reads padding; only what a NaN scale covers comes back from fragments as zeros. kInvalidArgument names the tensor,
// what was wanted and what was found; nothing is written then.
Status pack_matrix(const PackedMatrix& matrix, const RowMajorWeights& from, const PackedWeights& to);
Status unpack_matrix(const PackedMatrix& matrix, const PackedWeights& from, const RowMajorWeights& to);

// The same matrix as a checkpoint holds it: spans one below the other, features rows in all. `gate_order` plays no part.
struct MatrixSource {
  std::vector<RowSpan> rows;  // every row, or the gates of a gated matrix
  std::vector<RowSpan> ups;   // of a gated matrix
};
// Weights that are no finite numbers: e8m0 scales of 255, NaN and infinities in bf16 (FP8 as it is read, with its scales).
enum class NoNumbers : uint8_t {
  kKeep,
  kRefuse,  // kCorrupt names tensor, expert, row, and block or column
};
struct PackOptions {
  int threads = 1;  // 0: one for each processor
  NoNumbers no_numbers = NoNumbers::kRefuse;
};
// Packs straight from the checkpoint's bytes and returns their fingerprint: a hash of the rows as they are read, in the
// layout's order. Besides the packed bytes it needs at most 128 * width bytes for each thread. kInvalidArgument as
// pack_matrix; after kCorrupt the contents of `to` are undefined.
Result<uint64_t> pack_rows(const PackedMatrix& matrix, const MatrixSource& from, const PackedWeights& to,
                           const PackOptions& options);

// Rows on their way to a device that packs them itself (layout fragments): row blocks `first` .. first + blocks - 1, on the
// caller's thread. Row r of the result is row 64 * first + r of the matrix as if its gates and ups alternated, whatever order
// the checkpoint has.
struct RowBlocks {
  int64_t first = 0, blocks = 0;
  std::byte* w = nullptr;       // [rows, bytes of width weights]
  std::byte* scales = nullptr;  // [rows, width / 32] (e2m1)
  uint64_t* hashes = nullptr;   // [blocks]
};
// How many row blocks a matrix has, and how many rows `blocks` of them have from `first` on.
int64_t row_block_count(const PackedMatrix& matrix);
int64_t rows_in_blocks(const PackedMatrix& matrix, int64_t first, int64_t blocks);
// Copies and hashes them. kInvalidArgument as pack_rows; kCorrupt as pack_rows with NoNumbers::kRefuse.
Status gather_row_blocks(const PackedMatrix& matrix, const MatrixSource& from, const RowBlocks& to);
// What pack_rows returns, from the hashes of all row blocks in their order.
uint64_t fingerprint_of(std::span<const uint64_t> hashes);

// kCorrupt as pack_rows with NoNumbers::kRefuse, without packing.
Status check_weights(const PackedMatrix& matrix, const MatrixSource& from, int threads);
// What pack_rows returned, computed from the packed bytes: differs if a byte of a weight or scale has changed since (or, in
// fragments, if a NaN scale was kept).
Result<uint64_t> fingerprint(const PackedMatrix& matrix, const PackedWeights& packed, int threads);

}  // namespace sluice
