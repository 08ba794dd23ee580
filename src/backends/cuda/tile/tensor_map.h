// Maps of tensors for the copy engine (tile/tensor_copy.cuh), made on the host.
#pragma once
#include <cuda.h>

#include "base/status.h"
#include "base/tensor.h"
#include "ops/fragment_layout.h"

namespace sluice::cuda::tile {

// bytes from row to row that a map can have
constexpr int64_t kMapStrideBytes = 16;

// Of a bf16 [rows, columns] tensor: boxes of `box_rows` <= 256 rows by 64 columns = 128 bytes, swizzled (swizzle.cuh), zeros
// beyond its ends. The first element and the row stride are multiples of 16 bytes. kDevice if the driver does not offer
// maps or refuses this one; the message has the tensor and the driver's number.
Status map_rows(CUtensorMap& map, const Tensor& tensor, int box_rows);

// Of the e2m1 codes and the scales of `experts` matrices in the layout `fragments`, in words of 4 bytes: boxes of a slab of 16
// rows in `box_blocks` k blocks, 512 and 32 bytes each, one behind the other, zeros beyond the last k block. Coordinates:
// {128 * slab (codes) or 8 * slab (scales), k block, row block, expert}. Errors as above.
Status map_slabs(CUtensorMap& codes, CUtensorMap& scales, const Tensor& w, const Tensor& w_scale,
                 const FragmentShape& shape, int64_t experts, int box_blocks);

}  // namespace sluice::cuda::tile
