// Products on tensor cores of operands that are loaded directly from global memory (operand.cuh).
#pragma once
#include <cstdint>

#include "backends/cuda/tile/mma.cuh"
#include "backends/cuda/tile/operand.cuh"

namespace sluice::cuda::tile {

// acc += x * w^T over 32 values of k: kRows (8 or a multiple of 16) rows of x by kColumns rows of
// w. A lane has 8 values of every eighth row (mma.cuh). An f32 operand is a sum of bf16 terms;
// every pair of terms is a product, except pairs whose product is at most 2^-24 of the largest.
template <class X, class W, int kRows, int kColumns>
__device__ __forceinline__ void multiply_terms(float (&acc)[(kRows + 8) / 16][kColumns / 8][4],
                                               const Eight<X> (&x)[kRows / 8],
                                               const Eight<W> (&w)[kColumns / 8]) {
  Terms<X> xt[kRows / 8];
#pragma unroll
  for (int m = 0; m < kRows / 8; ++m) to_terms(xt[m], x[m]);
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    Terms<W> wt;
    to_terms(wt, w[n]);
#pragma unroll
    for (int i = 0; i < Terms<X>::kCount; ++i) {
#pragma unroll
      for (int j = 0; j < Terms<W>::kCount; ++j) {
        if (i + j > 2) continue;
#pragma unroll
        for (int half = 0; half < 4; half += 2) {
          const uint32_t b[2] = {wt.term[j][half], wt.term[j][half + 1]};
#pragma unroll
          for (int m = 0; m < (kRows + 8) / 16; ++m) {
            const auto& low = xt[2 * m].term[i];
            uint32_t a[4] = {low[half], 0, low[half + 1], 0};
            if constexpr (kRows >= 16) {
              a[1] = xt[2 * m + 1].term[i][half];
              a[3] = xt[2 * m + 1].term[i][half + 1];
            }
            mma(acc[m][n], a, b);
          }
        }
      }
    }
  }
}

}  // namespace sluice::cuda::tile
