// Copies of boxes of a 2-D tensor into shared memory by the copy engine (TMA), along a map from tensor_map.h.
//
// Each counts its whole box at a barrier, rows and columns beyond the tensor included: those arrive as zeros. Called by
// every lane of a converged warp with the same arguments; one lane issues. The election stands inside the assembly because
// a copy under `if (lane == 0)` compiles to a loop that costs several times as much. The destination is aligned to 1024
// bytes for maps that swizzle. Before shared memory is copied into again, whoever read it must have arrived somewhere that
// the calling warp has waited for.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "backends/cuda/tile/cluster.cuh"

namespace sluice::cuda::tile {

// Fetches the map itself, ahead of its first copy.
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void copy_box(uint32_t to_shared, const CUtensorMap& map, int column, int row,
                                         uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];\n"
      "}" ::"r"(to_shared),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap& map, int column, int row,
                                         uint64_t* barrier) {
  copy_box(shared_address(to), map, column, row, shared_address(barrier));
}

// The same of a tensor of four dimensions, the innermost coordinate first.
__device__ __forceinline__ void copy_box(uint32_t to_shared, const CUtensorMap& map, int x, int y, int z,
                                         int w, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3, %4, %5}], [%6];\n"
      "}" ::"r"(to_shared),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
      : "memory");
}

// The same into every block of the cluster whose rank has a bit in `blocks`: to the same place in each, counted at the same place in
// each, so all of them lay out their memory alike, run, and have nobody left who reads what comes to be overwritten.
__device__ __forceinline__ void copy_box_to(uint32_t blocks, uint32_t to_shared, const CUtensorMap& map,
                                            int column, int row, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;\n"
      "}" ::"r"(to_shared),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(static_cast<uint16_t>(blocks))
      : "memory");
}
__device__ __forceinline__ void copy_box_to(uint32_t blocks, void* to, const CUtensorMap& map, int column,
                                            int row, uint64_t* barrier) {
  copy_box_to(blocks, shared_address(to), map, column, row, shared_address(barrier));
}

}  // namespace sluice::cuda::tile
