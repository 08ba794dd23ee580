// Converts sixty-four rows in host memory to and from one row block of fragments (ops/fragment_layout.h):
// the inner loops of packing on a CPU.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "ops/fragment_layout.h"

namespace sluice {

// The rows of a block in the layout's order, at any alignment; null: padding, packed as zeros and skipped by unpacking.
using FragmentRows = std::array<const std::byte*, kFragmentRows>;
using FragmentRowsOut = std::array<std::byte*, kFragmentRows>;

// The parts of one row block in an expert's packed bytes.
struct FragmentBlock {
  std::byte* codes;   // [k blocks][fragment_code_bytes()]
  std::byte* scales;  // [k blocks][fragment_scale_bytes()]
  std::byte* top;     // [64]: each row's largest scale (u8) or factor (f32)
};
// Locates row block `block` of an expert whose weights and scales (null for bf16) begin at these addresses.
FragmentBlock fragment_block(const FragmentShape& shape, WeightFormat format, std::byte* w, std::byte* scales,
                             int64_t block);

// e2m1 and e4m3: `codes` are rows of codes, `scales` rows of scales (ops/weight_format.h); gated: whether the block has gate and
// up rows. Packing writes every byte of the block. NaN codes and scales are stored as in ops/pack_experts.h; all other bits
// survive a round trip.
void pack_fragment_rows(WeightFormat format, bool gated, const FragmentRows& codes,
                        const FragmentRows& scales, int64_t width, const FragmentBlock& to);
void unpack_fragment_rows(WeightFormat format, const FragmentBlock& from, int64_t width,
                          const FragmentRowsOut& codes, const FragmentRowsOut& scales);
// bf16: any width >= 1.
void pack_fragment_rows_bf16(const FragmentRows& rows, int64_t width, std::byte* to);
void unpack_fragment_rows_bf16(const std::byte* from, int64_t width, const FragmentRowsOut& rows);

}  // namespace sluice
