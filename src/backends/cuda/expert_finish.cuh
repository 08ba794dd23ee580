// From the sums of a warpgroup of an expert GEMM to rows of y, without shared memory.
//
// A thread holds sums of two weight rows, 8 apart (tile/wgmma.cuh). Gated, these are gate and up of one feature, so bias and
// activation happen where the sums are. As bf16 a square of 8 features x 8 columns is then transposed within the warp, which
// leaves each thread two neighbouring features of a row of y.
#pragma once
#include "backends/cuda/expert_gemm.cuh"
#include "backends/cuda/tile/activation.cuh"
#include "backends/cuda/tile/mxfp4.cuh"
#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda {

#ifdef __CUDACC__

// An 8 x 8 square of bf16, lane l with elements (l / 4, 2 * (l % 4)) and the next, as its transpose. Whole warps call it.
__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

// kEach sums of row block b, from number kEach * c on; zeros beyond N. A switch, so that the code behind it stands once.
template <int N, int kBlocks, int kEach>
__device__ __forceinline__ void pick_sums(const float (&d)[kBlocks][N / 2], int b, int c,
                                          float (&out)[kEach]) {
  constexpr int kPieces = (N / 2 + kEach - 1) / kEach;
  static_assert(kBlocks * kPieces <= 48, "cases below");
#pragma unroll
  for (int i = 0; i < kEach; ++i) out[i] = 0;
  switch (b * kPieces + c) {
#define SLUICE_CASE(I)                                                                                \
  case I:                                                                                             \
    if constexpr (I < kBlocks * kPieces) {                                                            \
      _Pragma("unroll") for (int i = 0; i < kEach; ++i) if (I % kPieces * kEach + i < N / 2) out[i] = \
          d[I / kPieces][I % kPieces * kEach + i];                                                    \
    }                                                                                                 \
    break;
    SLUICE_CASE(0)
    SLUICE_CASE(1)
    SLUICE_CASE(2)
    SLUICE_CASE(3)
    SLUICE_CASE(4)
    SLUICE_CASE(5)
    SLUICE_CASE(6)
    SLUICE_CASE(7)
    SLUICE_CASE(8)
    SLUICE_CASE(9)
    SLUICE_CASE(10)
    SLUICE_CASE(11)
    SLUICE_CASE(12)
    SLUICE_CASE(13)
    SLUICE_CASE(14)
    SLUICE_CASE(15)
    SLUICE_CASE(16)
    SLUICE_CASE(17)
    SLUICE_CASE(18)
    SLUICE_CASE(19)
    SLUICE_CASE(20)
    SLUICE_CASE(21)
    SLUICE_CASE(22)
    SLUICE_CASE(23)
    SLUICE_CASE(24)
    SLUICE_CASE(25)
    SLUICE_CASE(26)
    SLUICE_CASE(27)
    SLUICE_CASE(28)
    SLUICE_CASE(29)
    SLUICE_CASE(30)
    SLUICE_CASE(31)
    SLUICE_CASE(32)
    SLUICE_CASE(33)
    SLUICE_CASE(34)
    SLUICE_CASE(35)
    SLUICE_CASE(36)
    SLUICE_CASE(37)
    SLUICE_CASE(38)
    SLUICE_CASE(39)
    SLUICE_CASE(40)
    SLUICE_CASE(41)
    SLUICE_CASE(42)
    SLUICE_CASE(43)
    SLUICE_CASE(44)
    SLUICE_CASE(45)
    SLUICE_CASE(46)
    SLUICE_CASE(47)
#undef SLUICE_CASE
    default:
      break;
  }
}

// What a lane does with the sums of its two rows of a row block.
template <bool kGated>
struct RowsFinish {
  // Columns that are finished at once: four numbers a thread. With more, registers run short beside the sums.
  static constexpr int kColumns = kGated ? 16 : 8;
  static constexpr int kGroups = kColumns / 8, kSums = kColumns / 2, kOuts = 4;

  int feature;  // of the row; where not gated the other row has the eighth behind it
  float factor[2], bias[2];

  RowsFinish() = default;
  // Of a block that is not there nothing is read. warp: 0..3 of the warpgroup; tops: of the row block's rows, or null.
  __device__ __forceinline__ RowsFinish(const ExpertParameters& p, int expert, int block, int warp,
                                        const uint8_t* tops) {
    const int row = warp * 16 + static_cast<int>(threadIdx.x % 32) / 4;
    feature = static_cast<int>(fragment_feature(kGated, {block, row}).feature);
    const int64_t rows = static_cast<int64_t>(expert) * (kGated ? 2 * p.features : p.features);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = kGated ? feature : feature + 8 * i;
      factor[i] = tops ? tile::row_factor(tops[row + 8 * i]) : 1.f;
      bias[i] = 0;
      if (!p.bias || at >= p.features) continue;
      bias[i] = load_bias(p, rows + (kGated ? gated_row(p.gate_order, p.features, at, i == 1) : at));
    }
  }

  // sums: of columns `column` on; the tile's first `t.rows` columns are real. Whole warps call it.
  __device__ __forceinline__ void write(const ExpertParameters& p, const tile::ActivationValues& act,
                                        const ExpertTile& t, int column, const float (&sums)[kSums]) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    // Of columns 8 g + 2 (lane % 4) + i: gated x[2 g + i] and u of the same, else x[4 g + i] and x[4 g + 2 + i].
    float x[kOuts], u[kGated ? kOuts : 1];
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float in = 1;
        if (p.weights) {
          const int at = column + 8 * g + 2 * (lane % 4) + i;
          if (at < t.rows) in = p.weights[p.order[t.row + at]];
        }
        const float first = fmaf(sums[4 * g + i] * factor[0], in, bias[0]);
        const float second = fmaf(sums[4 * g + 2 + i] * factor[1], in, bias[1]);
        if constexpr (kGated) {
          x[2 * g + i] = first, u[2 * g + i] = second;
        } else {
          x[4 * g + i] = first, x[4 * g + 2 + i] = second;
        }
      }
    if constexpr (kGated) {
      tile::activate_gated(act, x, u);
    } else {
      tile::activate_plain(act, x);
    }
    constexpr int kSquares = kGated ? 1 : 2;
    if (p.y_f32) {
      float* y = static_cast<float*>(p.y) + feature;
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
#pragma unroll
        for (int q = 0; q < kSquares; ++q)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int at = column + 8 * g + 2 * (lane % 4) + i;
            if (at < t.rows && feature + 8 * q < p.features)
              y[(t.row + at) * p.y_stride + 8 * q] = x[2 * (kSquares * g + q) + i];
          }
      return;
    }
    constexpr int kPairs = kOuts / 2;
    uint32_t out[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const __nv_bfloat162 both = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
      out[i] = transposed(*reinterpret_cast<const uint32_t*>(&both));
    }
    const int from = feature - lane / 4 + 2 * (lane % 4);  // of the transposed square's features
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int at = column + 8 * (i / kSquares) + lane / 4, first = from + 8 * (i % kSquares);
      if (at >= t.rows) continue;
      __nv_bfloat16* y = static_cast<__nv_bfloat16*>(p.y) + (t.row + at) * p.y_stride + first;
      if (p.y_wide && first + 1 < p.features) {
        *reinterpret_cast<uint32_t*>(y) = out[i];
        continue;
      }
      const auto halves = *reinterpret_cast<const __nv_bfloat162*>(&out[i]);
      if (first < p.features) y[0] = halves.x;
      if (first + 1 < p.features) y[1] = halves.y;
    }
  }
};

// The common case without a loop or a branch: no input weights, y in bf16 with aligned rows, every feature of the block
// there, and the activations below. Loops over registers become switches, and their branches took longer than the sums'.
template <bool kGated>
__device__ __forceinline__ bool finishes_straight(const ExpertParameters& p,
                                                  const tile::ActivationValues& act, int block) {
  constexpr int kFeatures = static_cast<int>(kGated ? kFragmentRows / 2 : kFragmentRows);
  const bool known = kGated ? act.which == Activation::kSwiGlu || act.which == Activation::kSwiGluClamped
                            : act.which == Activation::kIdentity || act.which == Activation::kRelu2;
  return known && !p.weights && !p.y_f32 && p.y_wide && (block + 1) * kFeatures <= p.features;
}

template <int N, bool kGated>
__device__ __forceinline__ void finish_straight(const float (&d)[N / 2], const ExpertParameters& p,
                                                const tile::ActivationValues& act, const ExpertTile& t,
                                                const RowsFinish<kGated>& at) {
  const int lane = static_cast<int>(threadIdx.x % 32), column = lane / 4;
  const bool squares = act.which == Activation::kRelu2;
  auto* y = static_cast<__nv_bfloat16*>(p.y) + (t.row + column) * p.y_stride + at.feature - lane / 4 +
            2 * (lane % 4);
  const int64_t next = 8 * p.y_stride;
#pragma unroll
  for (int j = 0; j < N / 8; ++j, y += next) {
    float x[2], u[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[i] = fmaf(d[4 * j + i], at.factor[0], at.bias[0]);
      u[i] = fmaf(d[4 * j + 2 + i], at.factor[1], at.bias[1]);
      if constexpr (kGated) {
        x[i] = tile::swish(tile::at_most(x[i], act.limit), act.alpha) *
               (tile::within(u[i], act.limit) + act.beta);
      } else if (squares) {
        x[i] = x[i] < 0 ? 0.f : x[i] * x[i];
        u[i] = u[i] < 0 ? 0.f : u[i] * u[i];
      }
    }
    const __nv_bfloat162 first = __floats2bfloat162_rn(x[0], x[1]);
    const uint32_t out = transposed(*reinterpret_cast<const uint32_t*>(&first));
    const bool real = 8 * j + column < t.rows;
    if (real) *reinterpret_cast<uint32_t*>(y) = out;
    if constexpr (!kGated) {
      const __nv_bfloat162 second = __floats2bfloat162_rn(u[0], u[1]);
      const uint32_t more = transposed(*reinterpret_cast<const uint32_t*>(&second));
      if (real) *reinterpret_cast<uint32_t*>(y + 8) = more;
    }
  }
}

// Writes a warpgroup's share of a tile: row blocks first_block to first_block + kBlocks - 1 of the expert's, those of them
// that there are. at: of each.
template <int N, int kBlocks, bool kGated>
__device__ __forceinline__ void finish_tile(const float (&d)[kBlocks][N / 2], const ExpertParameters& p,
                                            const ExpertTile& t, int first_block,
                                            const RowsFinish<kGated> (&at)[kBlocks]) {
  const tile::ActivationValues act = activation_of(p, t.expert);
  const int blocks = min(kBlocks, p.row_blocks - first_block);
  if (finishes_straight<kGated>(p, act, first_block + blocks - 1)) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      if (b < blocks) finish_straight<N, kGated>(d[b], p, act, t, at[b]);
    return;
  }
#pragma unroll 1
  for (int b = 0; b < blocks; ++b) {
    RowsFinish<kGated> mine = at[0];
    if (kBlocks > 1 && b > 0) mine = at[kBlocks - 1];
#pragma unroll 1
    for (int c = 0; RowsFinish<kGated>::kColumns * c < t.rows; ++c) {
      float sums[RowsFinish<kGated>::kSums];
      pick_sums<N>(d, b, c, sums);
      mine.write(p, act, t, RowsFinish<kGated>::kColumns * c, sums);
    }
  }
}

#endif

}  // namespace sluice::cuda
