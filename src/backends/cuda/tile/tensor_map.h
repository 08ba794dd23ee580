// Maps of tensors for the copy engine (tile/tensor_copy.cuh), made on the host.
#pragma once
#include <cuda.h>

#include "base/status.h"
#include "base/tensor.h"

namespace sluice::cuda::tile {

// bytes from row to row that a map can have
constexpr int64_t kMapStrideBytes = 16;

// Of a bf16 [rows, columns] tensor: boxes of `box_rows` <= 256 rows by 64 columns = 128 bytes, swizzled (swizzle.cuh), zeros
// beyond its ends. The first element and the row stride are multiples of 16 bytes. kDevice if the driver does not offer
// maps or refuses this one; the message has the tensor and the driver's number.
Status map_rows(CUtensorMap& map, const Tensor& tensor, int box_rows);

// rows that a map of runs takes at a time
constexpr int kMapGroupRows = 8;

// Of the same kind of tensor with a multiple of 64 columns and of 8 rows: boxes of `box_rows` rows, a multiple of 8, by
// `run` times 64 columns. Groups of 8 rows are read one after the other, each `run` * 128 bytes along its rows, and
// lie like that: [box_rows / 8][run] tiles of 8 rows by 128 bytes, swizzled. Zeros beyond the ends.
Status map_row_runs(CUtensorMap& map, const Tensor& tensor, int box_rows, int run);

}  // namespace sluice::cuda::tile
