// Converts codes in the layout `fragments` (ops/fragment_layout.h) to the A operand of an FP8 wgmma of 32 values of k
// (wgmma_registers.cuh): four words, each with the codes of two rows at four values of k in each of two groups of eight.
//
// The layout gives a thread the k values 2 c, 2 c + 1, 8 + 2 c and 9 + 2 c of every 16 (c = t % 4). An FP8 operand has four adjacent
// values, so rows of x are stored with the pairs of every 16 values in the order of fp8_column(). Then each product meets its partner.
#pragma once
#include <cstdint>

#include "ops/fragment_layout.h"

namespace sluice::cuda::tile {

// Where column k of x is stored in its row.
SLUICE_HOST_DEVICE constexpr int64_t fp8_column(int64_t k) {
  return k / 16 * 16 + k % 8 / 2 * 4 + k % 16 / 8 * 2 + k % 2;
}

// The bytes 1 and 3 of `lower` and `upper`, then (low_bytes) 0 and 2: the high or low bytes of their halves.
SLUICE_HOST_DEVICE constexpr uint32_t high_bytes(uint32_t lower, uint32_t upper) {
#ifdef __CUDA_ARCH__
  return __byte_perm(lower, upper, 0x7531);
#else
  return (lower >> 8 & 0xff) | (lower >> 16 & 0xff00) | (upper & 0xff00) << 8 | (upper & 0xff000000);
#endif
}
SLUICE_HOST_DEVICE constexpr uint32_t low_bytes(uint32_t lower, uint32_t upper) {
  return high_bytes(lower << 8, upper << 8);
}

// The sign bits of `signs` and the other bits of `magnitudes`, byte by byte.
SLUICE_HOST_DEVICE constexpr uint32_t signed_bytes(uint32_t signs, uint32_t magnitudes) {
  return (signs & 0x80808080) | (magnitudes & 0x7f7f7f7f);
}

// Two pairs of bf16 as e5m2. A bf16 with the exponent field E below 32 becomes the e5m2 with the same field and the two highest bits
// of the mantissa, which is its value times 2^112, for subnormal numbers too. NaN (0x7fff) stays NaN.
SLUICE_HOST_DEVICE constexpr uint32_t e5m2_bytes(uint32_t lower, uint32_t upper) {
  // Bit 7 of the magnitudes is 0, but for NaN, whose sign does not matter.
  return (high_bytes(lower, upper) & 0x80808080) | high_bytes(lower << 3, upper << 3);
}

// The e4m3 codes of pair 0, then of pair 1, of two words (fragment_pair8() says where their bits are).
SLUICE_HOST_DEVICE constexpr void e4m3_bytes(uint32_t (&rows)[2], uint32_t lower, uint32_t upper) {
  const uint32_t high = high_bytes(lower, upper), low = low_bytes(lower, upper);
  rows[0] = signed_bytes(high, (high << 4 & 0x70707070) | (low >> 4 & ~0x70707070u));
  rows[1] = signed_bytes((high ^ (low >> 8 & 0x00ff00ff)) << 4, high ^ low);
}

}  // namespace sluice::cuda::tile
