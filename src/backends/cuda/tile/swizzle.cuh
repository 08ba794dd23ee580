// The order in which a tile of 128-byte rows lies in shared memory, so that neither rows nor columns of 16-byte pieces meet
// in a bank: piece p of row r stands where piece p ^ (r % 8) would. It is what maps of swizzle 128B write and what the
// descriptors of wgmma.cuh read; tiles begin at multiples of 1024 bytes.
#pragma once
#include <cstdint>

namespace sluice::cuda::tile {

constexpr int kSwizzledRowBytes = 128;

// Byte within the tile of byte `byte` of row `row`.
__host__ __device__ constexpr uint32_t swizzled(uint32_t row, uint32_t byte) {
  return row * kSwizzledRowBytes + (byte ^ ((row % 8) * 16));
}

}  // namespace sluice::cuda::tile
