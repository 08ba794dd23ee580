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

}  // namespace sluice::cuda::tile
