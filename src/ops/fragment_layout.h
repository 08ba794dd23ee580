// WeightLayout::kFragments: weights in the order in which Hopper kernels load wgmma operands. Packing, kernels and
// references use these functions.
//
// Blocks     The matrix of one expert, padded with zeros to multiples of 64 rows and 64 columns, is stored as
//            [row blocks][k blocks], each block 64 rows x 64 columns.
// Rows       Not gated: row rho of block rb is feature 64 rb + rho. A gated layer of n features has 2n rows: block
//            rb holds features 32 rb .. 32 rb + 31, and its slab s of 16 rows holds the gates of features
//            32 rb + 8 s + 0..7 and then their ups, regardless of the checkpoint's order. So one thread's wgmma accumulators
//            hold gate and up of the same feature (rows r and r + 8).
// e2m1       A block is 2048 bytes: four 32-bit words for each of 128 threads. Word j is the thread's A operand of k step j, a wgmma
//            m64nNk16. A word holds four pairs of codes, one for each 32-bit register; its bits are placed so that two or
//            three instructions turn a pair into bf16: fragment_pair().
// e4m3       A block is 4096 bytes, in two planes of two k steps. In a plane each thread has four words: the codes of the first step of a row and
//            of the row 8 below it, and the same for the second step. They are the A operand of an FP8 wgmma m64nNk32, if the
//            columns of x are in the order of fragment_column8(). fragment_pair8() turns a pair into bf16.
// Scales     of mx: [row blocks][k blocks][128] bytes, one 32-bit word for each row pair (r, r + 8) of a block, and then
//            [row blocks][64] bytes `top`: the row's largest scale that is not NaN (0 if all are NaN). A scale
//            is stored relative to `top`, as the exponent field of a bf16: 254 + scale - top, 0 to 254; 255 for NaN,
//            whose 32 codes are stored as 0 (0 * infinity is NaN, so kernels need no check). Padding is 0.
//            So a pair times the bf16 with that exponent field is code * 2^(scale - top + 1), and the kernel multiplies a
//            row's sum by 2^(top - 128): every legal scale decodes with one multiplication per weight. For e4m3 the two numbers are code *
//            2^(scale - top + 7) and 2^(top - 134). A NaN code of e4m3 is stored as a NaN scale.
//            of nv: [row blocks][k blocks][256] bytes, one 64-bit word for each row pair, with a byte for each step and
//            row: the e4m3 scale as 5 bits of exponent, biased by 22, and its 3 bits of mantissa, so that subnormal scales
//            become normal. A zero scale is stored as 0, a NaN or negative scale as 248; the codes of both are stored as 0.
//            A pair times the bf16 of fragment_nv_multiplier() is code * scale * 2^-7.
//            of blocks: [row blocks][k blocks] of eight f32. Four scales: two for rows 0..31 of the block and two for rows 32..63; in each half
//            the first is for rows r (gate), the second for rows r + 8 (up); a gated block has the same scales in both halves. Then four
//            factors, by which a kernel multiplies the sum over the previous k blocks: the previous block's scale divided by
//            this one, 1 in the first k block.
//            A scale must have a magnitude from 2^-60 to 2^60. Any other scale makes its rows NaN and is stored as 1.
//            nv, blocks and rows end with f32[row blocks][64], the factor of a row's sum: the row's f32 times 2^7 (nv), 1
//            (blocks), the row's f32 (rows). The factor is NaN if the row has a NaN code or an invalid scale.
// bf16       A block is 8192 bytes, [64 rows][64 k], with the 16-byte chunk c of row rho at chunk c ^ (rho % 8): the
//            128-byte swizzle of shared memory, so that one bulk copy loads what wgmma's descriptor expects.
#pragma once
#include <cstdint>

#include "ops/weight_layout.h"

namespace sluice {

constexpr int64_t kFragmentRows = 64, kFragmentWidth = 64;  // per block
constexpr int64_t kFragmentThreads = 128;                   // threads that share a block: a warpgroup
constexpr int64_t kFragmentCodeBytes = 2048;                // per block in e2m1
constexpr int64_t kFragmentCode8Bytes = 4096;               // per block in e4m3
constexpr int64_t kFragmentScaleBytes = 128;                // per block, scales mx
constexpr int64_t kFragmentBf16Elements = 64 * 64;          // per block in bf16
constexpr int64_t kFragmentAlignment = 128;  // an expert's scales are padded to a multiple of this
constexpr uint8_t kFragmentUnscaled = 254, kFragmentNan = 255;  // stored bytes: a scale equal to `top`; NaN

// Bytes of a block's codes, of a block's scales, and of a row block's `top` or factors.
SLUICE_HOST_DEVICE constexpr int64_t fragment_code_bytes(DType w) {
  return w == DType::kE2M1   ? kFragmentCodeBytes
         : w == DType::kE4M3 ? kFragmentCode8Bytes
                             : 2 * kFragmentBf16Elements;
}
SLUICE_HOST_DEVICE constexpr int64_t fragment_scale_bytes(WeightFormat f) {
  if (!f.scaled() || f.scales == WeightScales::kRows) return 0;
  return f.scales == WeightScales::kMx   ? kFragmentScaleBytes
         : f.scales == WeightScales::kNv ? 2 * kFragmentScaleBytes
                                         : 32;
}
SLUICE_HOST_DEVICE constexpr int64_t fragment_top_bytes(WeightFormat f) {
  return !f.scaled() ? 0 : f.scales == WeightScales::kMx ? kFragmentRows : 4 * kFragmentRows;
}

// Sizes of one expert's matrix.
struct FragmentShape {
  int64_t row_blocks, k_blocks;
  SLUICE_HOST_DEVICE constexpr int64_t blocks() const { return row_blocks * k_blocks; }
  SLUICE_HOST_DEVICE constexpr int64_t code_bytes(WeightFormat f) const {
    return blocks() * fragment_code_bytes(f.w);
  }
  // The offset of the `top` bytes or factors in the scales, and the size of all scales.
  SLUICE_HOST_DEVICE constexpr int64_t top_begin(WeightFormat f) const {
    return blocks() * fragment_scale_bytes(f);
  }
  SLUICE_HOST_DEVICE constexpr int64_t scale_bytes(WeightFormat f) const {
    return round_up(top_begin(f) + row_blocks * fragment_top_bytes(f), kFragmentAlignment);
  }
};
SLUICE_HOST_DEVICE constexpr FragmentShape fragment_shape(int64_t features, bool gated, int64_t width) {
  return {round_up((gated ? 2 : 1) * features, kFragmentRows) / kFragmentRows,
          round_up(width, kFragmentWidth) / kFragmentWidth};
}

// The row block, and the row inside it, of a feature's gate or up. up = false: the gate, or the feature itself if there is no gate.
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

// e2m1: the 32-bit word that holds the code of row r at k, the pair in the word (which is also the operand's register),
// and the half of the pair (0: the lower k).
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

// The bits of a decoded pair of codes: each 16-bit half has a code s e1 e0 m at bits 15, 8, 7, 6. Read as bf16, this is
// the code's value times 2^-126, for subnormal codes too.
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
// pairs. Their bits leave no room for a fourth pair that a single shift could extract, so the fourth pair is the
// exclusive or of two shifts. The second shift mixes in bits of other pairs, which fragment_word() cancels beforehand.
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
// The inverse: the word whose pair `pair` is `bits` (of fragment_pair_of) and whose other pairs are 0. Both functions are
// linear over exclusive or, so a full word is the exclusive or of the words of its four pairs.
SLUICE_HOST_DEVICE constexpr uint32_t fragment_word(uint32_t bits, int pair) {
  switch (pair) {
    case 0:
      return bits | (bits >> 8 & 0x00010001);
    case 1:
      return bits >> 4 | (bits << 4 & 0x04000400);
    case 2:
      return bits >> 10 | bits << 22;
    default: {
      uint32_t chain = bits >> 6 & 0x02020202;  // extraction xors each of these bits with the next higher one
      chain ^= chain >> 8;
      chain ^= chain >> 16;
      return chain | (bits >> 6 & 0x00010001) | (bits << 2 & 0x04000400);
    }
  }
}

// e4m3: the place of column k of x among the columns that a word's bytes have, and the offset of the code of row r at k.
// A thread has columns 2 c, 8 + 2 c, 2 c + 1 and 9 + 2 c of every 16 (c = thread % 4), in this order.
SLUICE_HOST_DEVICE constexpr int64_t fragment_column8(int64_t k) {
  return k / 16 * 16 + k % 8 / 2 * 4 + k % 2 * 2 + k % 16 / 8;
}
SLUICE_HOST_DEVICE constexpr int64_t fragment_code8_index(const FragmentShape& s, FragmentRow r, int64_t k) {
  const int64_t block = r.block * s.k_blocks + k / kFragmentWidth,
                column = fragment_column8(k % kFragmentWidth);
  const int64_t plane = column / 32, step = column / 16 % 2,
                thread = r.row / 16 * 32 + r.row % 8 * 4 + column / 4 % 4;
  return block * kFragmentCode8Bytes + (plane * kFragmentThreads + thread) * 16 + step * 8 +
         r.row % 16 / 8 * 4 + column % 4;
}
// Pair `pair` of a word: its bytes 0 and 2, or 1 and 3. Each 16-bit half has a code s e3..e0 m2..m0 at bits 15 and 10 to 4.
// Read as bf16, this is the code's value times 2^-120, for subnormal codes too.
SLUICE_HOST_DEVICE constexpr uint32_t fragment_pair8(uint32_t word, int pair) {
  constexpr uint32_t kNumbers = 0x07F007F0;
  const uint32_t signs = word & 0x80808080;
  return pair == 0 ? (word << 4 & kNumbers) | (signs << 8 & ~kNumbers)
                   : (word >> 4 & kNumbers) | (signs & ~kNumbers);
}

// nv: the offset of the scale byte of row r at k, the stored byte of an e4m3 scale and its inverse, and the multiplier of a
// stored byte as bf16: scale * 2^119, infinity for NaN, and an arbitrary number for zero.
constexpr uint8_t kFragmentNvNan = 248;
SLUICE_HOST_DEVICE constexpr int64_t fragment_nv_index(const FragmentShape& s, FragmentRow r, int64_t k) {
  return (r.block * s.k_blocks + k / kFragmentWidth) * (2 * kFragmentScaleBytes) +
         (r.row / 16 * 8 + r.row % 8) * 8 + k % kFragmentWidth / kNvBlock * 2 + r.row % 16 / 8;
}
SLUICE_HOST_DEVICE constexpr uint8_t fragment_nv_stored(uint8_t scale) {
  if (scale >= 0x7F) return kFragmentNvNan;  // NaN, or a negative number
  if (scale >= 8 || scale == 0) return static_cast<uint8_t>(scale == 0 ? 0 : scale + 120);
  const int place = scale >= 4 ? 2 : scale >= 2 ? 1 : 0;
  return static_cast<uint8_t>((place + 13) << 3 | ((scale << (3 - place)) & 7));
}
SLUICE_HOST_DEVICE constexpr uint8_t fragment_nv_scale(uint8_t stored) {
  if (stored == 0) return 0;
  if (stored == kFragmentNvNan) return 0x7F;
  if (stored >= 128) return static_cast<uint8_t>(stored - 120);
  return static_cast<uint8_t>((8 | (stored & 7)) >> (3 - ((stored >> 3) - 13)));
}
SLUICE_HOST_DEVICE constexpr uint16_t fragment_nv_multiplier(uint8_t stored) {
  return static_cast<uint16_t>(stored << 4 | 0x7000);
}
// blocks: the index of the f32 scale of row r at k; its factor is four elements later.
SLUICE_HOST_DEVICE constexpr int64_t fragment_block_scale_index(const FragmentShape& s, FragmentRow r,
                                                                int64_t k) {
  return (r.block * s.k_blocks + k / kFragmentWidth) * 8 + r.row / 32 * 2 + r.row % 16 / 8;
}
constexpr float kBlockScaleMin = 0x1p-60f, kBlockScaleMax = 0x1p60f;
SLUICE_HOST_DEVICE constexpr bool is_block_scale(float scale) {
  const float size = scale < 0 ? -scale : scale;
  return size >= kBlockScaleMin && size <= kBlockScaleMax;  // false for NaN
}
// The f32 factor of a row, as an offset in bytes.
SLUICE_HOST_DEVICE constexpr int64_t fragment_factor_index(const FragmentShape& s, WeightFormat f,
                                                           FragmentRow r) {
  return s.top_begin(f) + (r.block * kFragmentRows + r.row) * 4;
}

// mx: the offset of the scale byte of row r at k; the offset of the row's top; the scale that a stored byte and
// its top represent (unless the byte is kFragmentNan); and the stored byte of a scale.
SLUICE_HOST_DEVICE constexpr int64_t fragment_scale_index(const FragmentShape& s, FragmentRow r, int64_t k) {
  return (r.block * s.k_blocks + k / kFragmentWidth) * kFragmentScaleBytes +
         (r.row / 16 * 8 + r.row % 8) * 4 + k % kFragmentWidth / 32 * 2 + r.row % 16 / 8;
}
SLUICE_HOST_DEVICE constexpr int64_t fragment_top_index(const FragmentShape& s, FragmentRow r) {
  return s.blocks() * kFragmentScaleBytes + r.block * kFragmentRows + r.row;
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
