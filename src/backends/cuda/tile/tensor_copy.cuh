// TMA loads and stores of boxes of a tensor, with the tensor maps of tensor_map.h.
//
// A load counts the bytes of its whole box at an mbarrier, including out-of-bounds rows and columns,
// which are filled with zeros. Every lane of a converged warp calls it with the same arguments, and one
// lane issues it. The election is in the assembly, because a copy under `if (lane == 0)` compiles to a loop
// that costs several times as much. If the map swizzles, the destination is aligned to 1024 bytes. Before a
// stage is refilled, its readers must have released it at a barrier for which the calling warp has waited.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "backends/cuda/tile/cluster.cuh"

namespace sluice::cuda::tile {

// Prefetches the tensor map, so that the first copy does not wait for it.
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
// copy_box() with an L2 policy (l2_policy.cuh).
__device__ __forceinline__ void copy_box_by(uint64_t policy, uint32_t to_shared, const CUtensorMap& map,
                                            int column, int row, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;\n"
      "}" ::"r"(to_shared),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}

// Stores the in-bounds part of a box from shared memory, as one bulk group (stores_have_read() and
// stores_are_done() in bulk_copy.cuh). The threads that wrote the box must have called fence_for_async().
__device__ __forceinline__ void store_box(const CUtensorMap& map, int column, int row, uint32_t from_shared) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
      "}" ::"l"(&map),
      "r"(column), "r"(row), "r"(from_shared)
      : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// copy_box_by() for a 4-D tensor; coordinates are innermost first.
__device__ __forceinline__ void copy_box_by(uint64_t policy, uint32_t to_shared, const CUtensorMap& map,
                                            int x, int y, int z, int w, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;\n"
      "}" ::"r"(to_shared),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier), "l"(policy)
      : "memory");
}

// copy_box_by() with a map of map_halves(). k: first column. box: index of the box in the head.
__device__ __forceinline__ void copy_box_by(uint64_t policy, uint32_t to_shared, const CUtensorMap& map,
                                            int k, int box, int head, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, 0, 0, %3, %4}], [%5], %6;\n"
      "}" ::"r"(to_shared),
      "l"(&map), "r"(k), "r"(box), "r"(head), "r"(barrier), "l"(policy)
      : "memory");
}

// copy_box_by() with a map of map_pairs(). k: first column. half_row: half of the box's first row.
__device__ __forceinline__ void copy_box_of_pairs(uint64_t policy, uint32_t to_shared, const CUtensorMap& map,
                                                  int k, int half_row, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, 0, 0, 0, %3}], [%4], %5;\n"
      "}" ::"r"(to_shared),
      "l"(&map), "r"(k), "r"(half_row), "r"(barrier), "l"(policy)
      : "memory");
}

// copy_box() to every CTA of the cluster whose rank has a bit in `blocks`: to the same shared
// memory offset, counted at the mbarrier at the same offset. All these CTAs must be running,
// with the same shared memory layout, and must have released what the box overwrites.
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

}  // namespace sluice::cuda::tile
