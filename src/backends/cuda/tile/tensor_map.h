// TMA tensor maps (tile/tensor_copy.cuh), encoded on the host.
#pragma once
#include <cuda.h>

#include "base/status.h"
#include "base/tensor.h"
#include "ops/fragment_layout.h"

namespace sluice::cuda::tile {

// Strides of rows must be a multiple of this.
constexpr int64_t kMapStrideBytes = 16;

// A map of a bf16 or f32 [rows, columns] tensor. A box has `box_rows` <= 256 rows of 128 bytes (64 or 32 columns), swizzled
// (swizzle.cuh), with zeros out of bounds. The first element and the row stride must be aligned to 16 bytes. Returns
// kDevice if the driver has no tensor maps or rejects this one; the message has the tensor and the driver's error number.
Status map_rows(CUtensorMap& map, const Tensor& tensor, int box_rows);

// A map of bf16 weights [heads * head_dim, columns], where elements i and i + head_dim / 2 of a head are
// rotated together. A box has 2 * pairs rows of 128 bytes: `pairs` (4 or 8) adjacent rows of the first
// half of a head, and their partners in the second half. Swizzled as in map_rows(). Coordinates: {column,
// 0, 0, box in the head, head}. head_dim must be a multiple of 2 * pairs. Errors as in map_rows().
Status map_halves(CUtensorMap& map, const Tensor& tensor, int64_t head_dim, int pairs);

// A map of the same weights whose boxes have sixteen pairs: 32 rows of 128 bytes, in four groups of eight.
// Group j has rows r + 2 j, r + 2 j + 1, r + 2 j + 8 and r + 2 j + 9 of the first half of a head, and their
// partners. So a thread with two adjacent columns of every group has eight adjacent rows. Coordinates:
// {column, 0, 0, 0, r / 2}, r a multiple of 16. head_dim must be a multiple of 32. Errors as in map_rows().
Status map_pairs(CUtensorMap& map, const Tensor& tensor, int64_t head_dim);

// Maps of the e2m1 codes and of the scales of `experts` matrices in the layout `fragments`, in 4-byte words. A box is a slab
// of 16 rows x `box_blocks` k blocks, contiguous: per k block 512 bytes of codes, or 32 bytes of scales. Zeros after the
// last k block. Coordinates: {128 * slab (codes) or 8 * slab (scales), k block, row block, expert}. Errors as in map_rows().
Status map_slabs(CUtensorMap& codes, CUtensorMap& scales, const Tensor& w, const Tensor& w_scale,
                 const FragmentShape& shape, int64_t experts, int box_blocks);

}  // namespace sluice::cuda::tile
