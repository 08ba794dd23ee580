// TMA tensor maps (tile/tensor_copy.cuh), made on the host.
#pragma once
#include <cuda.h>

#include "base/status.h"
#include "base/tensor.h"
#include "ops/fragment_layout.h"

namespace sluice::cuda::tile {

// row strides of a map are multiples of this
constexpr int64_t kMapStrideBytes = 16;

// A map of a bf16 or f32 [rows, columns] tensor: boxes of `box_rows` <= 256 rows by 128 bytes (64 or 32 columns), swizzled
// (swizzle.cuh), zeros out of bounds. The first element and the row stride are 16-byte aligned. kDevice if the driver has no tensor maps or
// refuses this one; the message has the tensor and the driver's error number.
Status map_rows(CUtensorMap& map, const Tensor& tensor, int box_rows);

// A map of the bf16 weights of heads [heads * head_dim, columns] whose elements turn in halves: boxes of 2 * pairs rows by 128 bytes,
// `pairs` (4 or 8) rows of the first half of a head and those that turn with them, swizzled as those of map_rows(). Coordinates: {column,
// 0, 0, which of the boxes of a head, head}. head_dim is a multiple of 2 * pairs. Errors as above.
Status map_halves(CUtensorMap& map, const Tensor& tensor, int64_t head_dim, int pairs);

// The same weights by sixteen pairs: boxes of 32 rows by 128 bytes, four eights of rows. Eight j has, of the half heads from row r on, rows
// 2 j, 2 j + 1, 2 j + 8 and 2 j + 9, and those that turn with them: so a thread that has two adjacent columns of each eight has eight
// adjacent rows. Coordinates: {column, 0, 0, 0, r / 2}, r a multiple of 16. head_dim is a multiple of 32. Errors as above.
Status map_pairs(CUtensorMap& map, const Tensor& tensor, int64_t head_dim);

// Maps of the e2m1 codes and the scales of `experts` matrices in the layout `fragments`, in 4-byte words: boxes of a slab of 16
// rows in `box_blocks` k blocks, 512 and 32 bytes per k block, contiguous, zeros after the last k block. Coordinates:
// {128 * slab (codes) or 8 * slab (scales), k block, row block, expert}. Errors as above.
Status map_slabs(CUtensorMap& codes, CUtensorMap& scales, const Tensor& w, const Tensor& w_scale,
                 const FragmentShape& shape, int64_t experts, int box_blocks);

}  // namespace sluice::cuda::tile
