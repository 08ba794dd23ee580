// Epilogue of an expert GEMM through shared memory, one subtile (a few columns) at a time. A subtile has
// the features of all four warps, so that a lane writes 16 bytes of y, and a warp writes whole cache lines.
//
// For CTAs whose shared memory has room for larger subtiles than
// StraightEpilogue uses. epilogue.cuh has the epilogues for all other cases.
#pragma once
#include "backends/cuda/experts/tile/epilogue.cuh"
#include "backends/cuda/tile/mbarrier.cuh"

namespace sluice::cuda {

#ifdef __CUDACC__

// The staging memory of a warpgroup's subtiles.
struct StagedRows {
  uint32_t address;  // in shared memory, aligned to 128
  int warp;          // 0 to 3
  int barrier;       // named barrier of this warpgroup's 128 threads
};

// True if this epilogue applies: no input weights, y in bf16 with aligned rows, no padding in the row block, and one of three activations.
template <bool kGated>
__device__ __forceinline__ bool has_epilogue_by_rows(const ExpertParameters& p,
                                                     const tile::ActivationValues& act, int block) {
  constexpr int kFeatures = static_cast<int>(kGated ? kFragmentRows / 2 : kFragmentRows);
  const bool known = kGated ? act.which == Activation::kSwiGlu
                            : act.which == Activation::kIdentity || act.which == Activation::kRelu2;
  return known && !p.weights && !p.y_f32 && p.y_wide && (block + 1) * kFeatures <= p.features;
}

// Adds bias, applies the activation and rounds the sums from `column` on, two columns per register:
// 32 columns if gated, otherwise 16 columns of the thread's two rows. Columns past N are zero.
template <int N, Activation kAct>
__device__ __forceinline__ void epilogue_squares(const float (&d)[N / 2], int column, const float (&bias)[2],
                                                 uint32_t (&out)[4]) {
  constexpr bool kGated = kAct == Activation::kSwiGlu;
#pragma unroll
  for (int g = 0; g < (kGated ? 4 : 2); ++g) {
    float x[2] = {}, u[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = (column + 8 * g) / 2 + i;
      if (column + 8 * g >= N) break;
      x[i] = d[at] + bias[0];
      u[i] = d[at + 2] + bias[1];
      if constexpr (kGated) {
        x[i] = tile::swish(x[i], 1.f) * u[i];
      } else if constexpr (kAct == Activation::kRelu2) {
        x[i] = x[i] < 0 ? 0.f : x[i] * x[i];
        u[i] = u[i] < 0 ? 0.f : u[i] * u[i];
      }
    }
    const __nv_bfloat162 first = __floats2bfloat162_rn(x[0], x[1]);
    out[kGated ? g : 2 * g] = *reinterpret_cast<const uint32_t*>(&first);
    if constexpr (!kGated) {
      const __nv_bfloat162 second = __floats2bfloat162_rn(u[0], u[1]);
      out[2 * g + 1] = *reinterpret_cast<const uint32_t*>(&second);
    }
  }
}

// Writes row block `block` of a tile of up to N columns, N a multiple of 16. Columns that the tile does not
// have are skipped without cost, so one copy of this code is enough for tiles of all widths; copies for four
// widths overflowed the instruction cache. bias: as in EpilogueRows. A subtile has kBytes / 128 columns of 64
// features (not gated), or twice as many of 32 (gated). Bitwise equal to StraightEpilogue with factors of 1.
template <int N, Activation kAct, int kBytes>
__device__ __forceinline__ void epilogue_by_rows(const float (&d)[N / 2], const ExpertParameters& p,
                                                 const ExpertTile& t, int block, const float (&bias)[2],
                                                 const StagedRows& at) {
  constexpr bool kGated = kAct == Activation::kSwiGlu;
  constexpr int kRowBytes = kGated ? 64 : 128, kColumns = kBytes / kRowBytes, kFeatures = kRowBytes / 2;
  constexpr int kTake = kGated ? 32 : 16;  // columns that one stmatrix of four squares writes
  // Lanes that write one row together; rows that the warpgroup writes at once.
  constexpr uint32_t kLanes = kRowBytes / 16, kRows = 128 / kLanes;
  static_assert(kColumns % kTake == 0 && kColumns % kRows == 0);
  const uint32_t lane = threadIdx.x % 32, warp = static_cast<uint32_t>(at.warp);
  // The 16-byte chunks of a row are swizzled, so that equal chunk indices in eight rows touch all banks.
  uint32_t to =
      at.address + (kGated ? lane * 64 + (warp ^ lane % 8 / 2) * 16
                           : (lane / 16 * 8 + lane % 8) * 128 + ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16);
  const uint32_t row = warp * (32 / kLanes) + lane / kLanes, place = lane % kLanes;
  uint32_t from = at.address + row * kRowBytes + (place ^ (kGated ? row % 8 / 2 : row % 8)) * 16;
  asm volatile("" : "+r"(to), "+r"(from));  // otherwise computed again for every subtile
  auto* y = static_cast<__nv_bfloat16*>(p.y) + (t.row + row) * p.y_stride + block * kFeatures + place * 8;
  const int64_t next = kRows * p.y_stride;
  const int rows = t.rows - static_cast<int>(row);
#pragma unroll
  for (int first = 0; first < N; first += kColumns) {
    if (first >= t.rows) break;
    tile::sync_threads<128>(at.barrier);  // all threads have read the subtile before this one
#pragma unroll
    for (int j = 0; j < kColumns; j += kTake) {
      if (first + j >= N) break;
      uint32_t out[4];
      epilogue_squares<N, kAct>(d, first + j, bias, out);
      tile::store_squares_transposed(to + j * kRowBytes, out);
    }
    tile::sync_threads<128>(at.barrier);
#pragma unroll
    for (int i = 0; i < kColumns; i += kRows, y += next) {
      if (first + i >= N) break;
      const uint4 chunk = tile::load_shared(from + i * kRowBytes);
      if (first + i < rows) store_16(y, chunk);
    }
  }
}

#endif

}  // namespace sluice::cuda
