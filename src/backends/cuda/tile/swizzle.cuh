// The 128-byte swizzle of a tile of 128-byte rows in shared memory: chunk c (16 bytes) of row r is stored at chunk c ^ (r % 8).
// Neither rows nor columns of chunks have bank conflicts. TMA maps with swizzle 128B write this order, and the descriptors of
// wgmma.cuh read it. Tiles begin at multiples of 1024 bytes.
#pragma once
#include <cstdint>

namespace sluice::cuda::tile {

constexpr int kSwizzledRowBytes = 128;

// The offset in the tile of byte `byte` of row `row`.
__host__ __device__ constexpr uint32_t swizzled(uint32_t row, uint32_t byte) {
  return row * kSwizzledRowBytes + (byte ^ ((row % 8) * 16));
}

}  // namespace sluice::cuda::tile
