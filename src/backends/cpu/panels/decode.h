// Converts e2m1 codes to bf16 pairs. panel_mxfp4_nibble (ops/weight_layout.h) defines the order of the bits.
#pragma once
#include <bit>

#include "backends/cpu/panels/job.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace sluice::cpu {

// All sixteen values as bf16, twice. A lookup reads five bits of a half word, and the fifth
// bit belongs to the adjacent code. With two equal halves no code needs a mask. The code -0
// gives +0: the sum is the same, and subtracting an exponent from +0 with saturation gives +0.
struct alignas(64) E2M1Table {
  uint16_t bits[32];
};
inline constexpr E2M1Table kE2M1Table = [] {
  E2M1Table table{};
  for (int i = 0; i < 32; ++i)
    table.bits[i] = static_cast<uint16_t>(i % 8 ? std::bit_cast<uint32_t>(kE2M1Values[i % 16]) >> 16 : 0);
  return table;
}();
SLUICE_AVX512BF16 inline __m512i e2m1_table() { return _mm512_load_si512(kE2M1Table.bits); }

// The pair (k, k + 1) of 16 rows in the low bits of the half words.
SLUICE_AVX512BF16 inline __m512i e2m1_pair(__m512i words, __m512i table) {
  return _mm512_permutexvar_epi16(words, table);
}

// A shift by 8 as a shuffle, because shifts share a port with the dot product and shuffles do not.
SLUICE_AVX512BF16 inline __m512i next_byte(__m512i words) { return _mm512_bsrli_epi128(words, 1); }

}  // namespace sluice::cpu
#endif
