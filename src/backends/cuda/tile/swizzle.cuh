// The 128-byte swizzle of a tile of 128-byte rows in shared memory: 16-byte chunk c of row r is at chunk c ^ (r
// % 8). Then neither the chunks of a row nor equal chunks of eight rows have bank conflicts. TMA maps with a
// 128-byte swizzle write this layout, and the descriptors of wgmma.cuh read it. Tiles are aligned to 1024 bytes.
#pragma once
#include <cstdint>

namespace sluice::cuda::tile {

constexpr int kSwizzledRowBytes = 128;

// The offset in the tile of byte `byte` of row `row`.
__host__ __device__ constexpr uint32_t swizzled(uint32_t row, uint32_t byte) {
  return row * kSwizzledRowBytes + (byte ^ ((row % 8) * 16));
}

}  // namespace sluice::cuda::tile
