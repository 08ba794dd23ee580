// WeightLayout::kFragments: weights in the order that Hopper's tensor cores read. Packing, kernels and references use these
// functions.
//
// Blocks     The matrix of one expert, padded with zeros to multiples of 64 rows and 64 columns, is stored as
//            [row blocks][k blocks], each block 64 rows x 64 columns.
// Rows       Not gated: row rho of block rb is feature 64 rb + rho. A gated layer of n features has 2n rows: block
//            rb holds features 32 rb .. 32 rb + 31, and its slab s of 16 rows holds the gates of features
//            32 rb + 8 s + 0..7 and then their ups, regardless of the checkpoint's order. So one thread of
//            wgmma's result holds gate and up of the same feature (rows r and r + 8).
// e2m1       A block is 2048 bytes: 16 for each of 128 threads, which are the thread's A operands of four
//            wgmma m64nNk16 (word j: step j). A word holds four pairs of codes, one for each 32-bit register;
//            its bits are placed so that two or three instructions turn a pair into bf16: fragment_pair().
// Scales     [row blocks][k blocks][128] bytes, one 32-bit word for each row pair (r, r + 8) of a block, and then
//            [row blocks][64] bytes `top`: the row's largest scale that is not NaN (0 if all are NaN). A scale
//            is stored relative to `top`, as the exponent field of a bf16: 254 + scale - top, 0 to 254; 255 for NaN,
//            whose 32 codes are stored as 0 (0 * infinity is NaN, so kernels need no check). Padding is 0.
//            So a pair times its scales' exponent fields is code * 2^(scale - top + 1), and a row's sum
//            is correct after * 2^(top - 128): every legal scale decodes with one multiplication per weight.
// bf16       A block is 8192 bytes, [64 rows][64 k], with the 16-byte chunk c of row rho at chunk c ^ (rho % 8): the
//            128-byte swizzle of shared memory, so that one bulk copy loads what wgmma's descriptor expects.
#pragma once
#include <cstdint>

#include "ops/weight_layout.h"

namespace sluice {

constexpr int64_t kFragmentRows = 64, kFragmentWidth = 64;  // per block
constexpr int64_t kFragmentThreads = 128;                   // threads that share a block: a warpgroup
constexpr int64_t kFragmentCodeBytes = 2048;                // per block in e2m1
constexpr int64_t kFragmentScaleBytes = 128;                // per block in e2m1
constexpr int64_t kFragmentBf16Elements = 64 * 64;          // per block in bf16
constexpr int64_t kFragmentAlignment = 128;  // an expert's scales are padded to a multiple of this
constexpr uint8_t kFragmentUnscaled = 254, kFragmentNan = 255;  // stored bytes: a scale equal to `top`; NaN

// Sizes of one expert's matrix.
struct FragmentShape {
  int64_t row_blocks, k_blocks;
  SLUICE_HOST_DEVICE constexpr int64_t blocks() const { return row_blocks * k_blocks; }
  SLUICE_HOST_DEVICE constexpr int64_t code_bytes(bool mxfp4) const {
    return blocks() * (mxfp4 ? kFragmentCodeBytes : 2 * kFragmentBf16Elements);
  }
  // mxfp4: the offset of `top` in the scales, and the size of all scales.
  SLUICE_HOST_DEVICE constexpr int64_t top_begin() const { return blocks() * kFragmentScaleBytes; }
  SLUICE_HOST_DEVICE constexpr int64_t scale_bytes() const {
    return round_up(top_begin() + row_blocks * kFragmentRows, kFragmentAlignment);
  }
};
SLUICE_HOST_DEVICE constexpr FragmentShape fragment_shape(int64_t features, bool gated, int64_t width) {
  return {round_up((gated ? 2 : 1) * features, kFragmentRows) / kFragmentRows,
          round_up(width, kFragmentWidth) / kFragmentWidth};
}

// The row block of a feature's gate (up = false; also for features without a gate) or up, and the row inside the block.
struct FragmentRow {
  int64_t block, row;
};
SLUICE_HOST_DEVICE constexpr FragmentRow fragment_row(bool gated, int64_t feature, bool up) {
  if (!gated) return {feature / kFragmentRows, feature % kFragmentRows};
  return {feature / 32, feature % 32 / 8 * 16 + (up ? 8 : 0) + feature % 8};
}
// The inverse; `feature` may lie in the padding.
struct FragmentFeature {
  int64_t feature;
  bool up;
};
SLUICE_HOST_DEVICE constexpr FragmentFeature fragment_feature(bool gated, FragmentRow r) {
  if (!gated) return {r.block * kFragmentRows + r.row, false};
  return {r.block * 32 + r.row / 16 * 8 + r.row % 8, r.row % 16 >= 8};
}

// e2m1: the 32-bit word that holds the code of row r at k, the pair in the word (which is the register of
// the operand), and the half of the pair (0: the lower k).
struct FragmentCode {
  int64_t word;
  int pair, half;
};
SLUICE_HOST_DEVICE constexpr FragmentCode fragment_code(const FragmentShape& s, FragmentRow r, int64_t k) {
  const int64_t block = r.block * s.k_blocks + k / kFragmentWidth, step = k % kFragmentWidth / 16;
  const int64_t thread = r.row / 16 * 32 + r.row % 8 * 4 + k % 8 / 2;
  return {(block * kFragmentThreads + thread) * 4 + step, static_cast<int>(r.row % 16 / 8 + k % 16 / 8 * 2),
          static_cast<int>(k % 2)};
}

// The bits of a decoded pair of codes: each half of 32 bits has a code s e1 e0 m at bits 15, 8, 7, 6. Read
// as bf16, this is the code's value times 2^-126, for subnormal codes too.
constexpr uint32_t kFragmentMask = 0x81C081C0;
SLUICE_HOST_DEVICE constexpr uint32_t fragment_pair_of(uint32_t low_code, uint32_t high_code) {
  const uint32_t both = low_code | high_code << 16;
  return (both & 0x00080008) << 12 | (both & 0x00070007) << 6;
}
SLUICE_HOST_DEVICE constexpr uint32_t fragment_code_of(uint32_t pair, int half) {
  const uint32_t bits = pair >> (16 * half);
  return (bits >> 12 & 8) | (bits >> 6 & 7);
}
// Extracts pair `pair` of a word, as kernels do. A shift or rotation extracts each of the first three
// pairs. Their bits leave no places from which one more shift could extract the fourth pair, so it is the
// exclusive or of two shifts. That mixes in bits of other pairs, which fragment_word() cancels beforehand.
SLUICE_HOST_DEVICE constexpr uint32_t fragment_pair(uint32_t word, int pair) {
  switch (pair) {
    case 0:
      return word & kFragmentMask;
    case 1:
      return word << 4 & kFragmentMask;
    case 2:
      return (word << 10 | word >> 22) & kFragmentMask;
    default:
      return (word << 6 ^ word >> 2) & kFragmentMask;
  }
}
// The inverse: the word whose pair `pair` is `bits` (of fragment_pair_of) and whose other pairs are 0. All
// of this is linear, so a whole word is the exclusive or of its four words.
SLUICE_HOST_DEVICE constexpr uint32_t fragment_word(uint32_t bits, int pair) {
  switch (pair) {
    case 0:
      return bits | (bits >> 8 & 0x00010001);
    case 1:
      return bits >> 4 | (bits << 4 & 0x04000400);
    case 2:
      return bits >> 10 | bits << 22;
    default: {
      uint32_t chain = bits >> 6 & 0x02020202;  // extraction combines each with the next higher one
      chain ^= chain >> 8;
      chain ^= chain >> 16;
      return chain | (bits >> 6 & 0x00010001) | (bits << 2 & 0x04000400);
    }
  }
}

// The offset of the scale byte of row r at k; the offset of the row's top; the scale that a stored byte and
// its top represent (unless the byte is kFragmentNan); and the stored byte of a scale.
SLUICE_HOST_DEVICE constexpr int64_t fragment_scale_index(const FragmentShape& s, FragmentRow r, int64_t k) {
  return (r.block * s.k_blocks + k / kFragmentWidth) * kFragmentScaleBytes +
         (r.row / 16 * 8 + r.row % 8) * 4 + k % kFragmentWidth / 32 * 2 + r.row % 16 / 8;
}
SLUICE_HOST_DEVICE constexpr int64_t fragment_top_index(const FragmentShape& s, FragmentRow r) {
  return s.top_begin() + r.block * kFragmentRows + r.row;
}
SLUICE_HOST_DEVICE constexpr int fragment_scale(uint8_t stored, uint8_t top) {
  return stored + top - kFragmentUnscaled;
}
SLUICE_HOST_DEVICE constexpr uint8_t fragment_stored_scale(uint8_t scale, uint8_t top) {
  return static_cast<uint8_t>(scale == 255 ? kFragmentNan : kFragmentUnscaled + scale - top);
}

// bf16: the index of the element of row r at k.
SLUICE_HOST_DEVICE constexpr int64_t fragment_bf16_index(const FragmentShape& s, FragmentRow r, int64_t k) {
  const int64_t block = r.block * s.k_blocks + k / kFragmentWidth, chunk = k % kFragmentWidth / 8 ^ r.row % 8;
  return block * kFragmentBf16Elements + r.row * kFragmentWidth + chunk * 8 + k % 8;
}

}  // namespace sluice
