// Converts MXFP4 codes in the layout `fragments` (ops/fragment_layout.h) to the A operand of an FP8 wgmma of 32 values of k
// (wgmma_registers.cuh): four words, each with the codes of one row at four values of k. The layout gives a thread the same values of
// k in e2m1 and e4m3, so the columns of x have the same order for both (fragment_column8()).
#pragma once
#include <cstdint>

#include "ops/fragment_layout.h"

namespace sluice::cuda::tile {

// Byte 1 of `lower`, byte 1 of `upper`, and their bytes 3: the high bytes of their halves, in the order of fragment_column8().
SLUICE_HOST_DEVICE constexpr uint32_t high_bytes(uint32_t lower, uint32_t upper) {
#ifdef __CUDA_ARCH__
  return __byte_perm(lower, upper, 0x7351);
#else
  return (lower >> 8 & 0xff) | (upper & 0xff00) | (lower >> 8 & 0xff0000) | (upper & 0xff000000);
#endif
}

// Two pairs of bf16 as e5m2. A bf16 with the exponent field E below 32 becomes the e5m2 with the same field and the two highest bits
// of the mantissa, which is its value times 2^112, for subnormal numbers too. NaN (0x7fff) stays NaN.
SLUICE_HOST_DEVICE constexpr uint32_t e5m2_bytes(uint32_t lower, uint32_t upper) {
  // Bit 7 of the magnitudes is 0, but for NaN, whose sign does not matter.
  return (high_bytes(lower, upper) & 0x80808080) | high_bytes(lower << 3, upper << 3);
}

}  // namespace sluice::cuda::tile
