// Converts sixty-four rows in host memory to and from one row block of fragments (ops/fragment_layout.h):
// the inner loops of packing on a CPU.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "ops/fragment_layout.h"

namespace sluice {

// The rows of a block in the layout's order, without alignment; null: padding, packed as zeros and skipped by unpacking.
using FragmentRows = std::array<const std::byte*, kFragmentRows>;
using FragmentRowsOut = std::array<std::byte*, kFragmentRows>;

// The parts of one row block in an expert's packed bytes.
struct FragmentBlock {
  std::byte* codes;   // [k blocks][2048]; bf16: [k blocks][8192]
  std::byte* scales;  // [k blocks][128]
  std::byte* top;     // [64]
};
// Locates row block `block` of an expert whose weights and scales (null for bf16) begin at these addresses.
FragmentBlock fragment_block(const FragmentShape& shape, std::byte* w, std::byte* scales, int64_t block);

// e2m1: `codes` are rows of width / 2 bytes, `scales` rows of width / 32 bytes; width % 32 == 0. Packing
// writes every byte of the block. Codes under a NaN scale are stored as zeros, so unpacking gives zeros
// there; all other bits are restored.
void pack_fragment_rows(const FragmentRows& codes, const FragmentRows& scales, int64_t width,
                        const FragmentBlock& to);
void unpack_fragment_rows(const FragmentBlock& from, int64_t width, const FragmentRowsOut& codes,
                          const FragmentRowsOut& scales);
// bf16: any width >= 1.
void pack_fragment_rows_bf16(const FragmentRows& rows, int64_t width, std::byte* to);
void unpack_fragment_rows_bf16(const std::byte* from, int64_t width, const FragmentRowsOut& rows);

}  // namespace sluice
