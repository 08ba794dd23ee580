// The first and the third launch of latent_attention_mma_sm90.cu: products with the
// weights of a head. Both load weights before the wait for the previous launch.
#pragma once
#include "backends/cuda/attention/rows.cuh"
#include "backends/cuda/latent/latent_attention_mma_call.cuh"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mma.cuh"
#include "backends/cuda/tile/swizzle.cuh"

namespace sluice::cuda::latent_mma {

constexpr int kAbsorbThreads = 128, kAbsorbColumns = 128, kAbsorbRows = 64;  // per CTA
constexpr int kTokens = 16;                                                  // tokens per product
constexpr int kNopeRows = 256;  // maximum rows of K_h in shared memory: 64 KiB

// Shared memory of absorb(): two panels of 64 columns of K_h, and kTokens rows of a (queries), which are padded by 16 bytes.
constexpr size_t absorb_bytes(int64_t nope) {
  return static_cast<size_t>(nope) * 2 * tile::kSwizzledRowBytes +
         kTokens * (static_cast<size_t>(nope) + 8) * 2;
}

// Computes a K_h, rounded to bf16. A CTA handles 128 columns of one head; the CTA of the first columns
// also copies b (the rope part) to the columns after the last one. Grid: heads along x, columns along y,
// rows along z.
__global__ void __launch_bounds__(kAbsorbThreads) absorb(const __grid_constant__ Parameters p, int rank) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const int own = static_cast<int>(threadIdx.x), lane = own % kWarp, warp = own / kWarp;
  const int head = static_cast<int>(blockIdx.x), first_column = static_cast<int>(blockIdx.y) * kAbsorbColumns;
  const int panel_bytes = p.nope * tile::kSwizzledRowBytes, width = rank + kRopeColumns;
  const uint32_t keys = tile::shared_address(shared), a = keys + 2 * panel_bytes;
  const int pitch = (p.nope + 8) * 2;  // bytes of a row of a
  const auto place_of = [&](int row, int chunk) {
    return keys + chunk / 8 * panel_bytes +
           tile::swizzled(static_cast<uint32_t>(row), static_cast<uint32_t>(chunk % 8 * 16));
  };
  tile::release_next();
  const Bf16* const weights =
      p.kv_b + static_cast<int64_t>(head) * (p.nope + p.v_dim) * rank + first_column + own % 16 * 8;
#pragma unroll 4
  for (int i = own / 16; i < p.nope; i += kAbsorbThreads / 16)
    tile::copy_16(place_of(i, own % 16), weights + static_cast<int64_t>(i) * rank);
  tile::end_copies();
  tile::wait_for_previous();
  const int64_t begin = static_cast<int64_t>(blockIdx.z) * kAbsorbRows,
                end = min(begin + kAbsorbRows, p.rows);
  for (int64_t first = begin; first < end; first += kTokens) {
    const int tokens = static_cast<int>(min(end - first, int64_t{kTokens}));
    const Bf16* const q = p.q + (p.first + first) * p.q_stride + head * (p.nope + p.rope);
    __syncthreads();  // the rows of a may be overwritten
    for (int t = warp; t < kTokens; t += kAbsorbThreads / kWarp) {
      Bf16* const a_row = reinterpret_cast<Bf16*>(shared + 2 * panel_bytes + t * pitch);
      for (int k = lane; k < p.nope; k += kWarp)
        a_row[k] = t < tokens ? q[t * p.q_stride + k] : __float2bfloat16_rn(0.f);
    }
    Bf16* const to = p.queries + (first * p.heads + head) * width;
    if (first_column == 0) {
      for (int i = own; i < tokens * kRopeColumns; i += kAbsorbThreads) {
        const int t = i / kRopeColumns, k = i % kRopeColumns;
        to[static_cast<int64_t>(t) * p.heads * width + rank + k] =
            k < p.rope ? q[t * p.q_stride + p.nope + k] : __float2bfloat16_rn(0.f);
      }
    }
    tile::wait_copies<0>();
    __syncthreads();
    float sum[4][4] = {};  // for 8 columns each
    for (int k = 0; k < p.nope; k += 16) {
      const uint32_t at = a + lane / 4 * pitch + 2 * k + lane % 4 * 4;
      const uint32_t rows[4] = {tile::load_shared_word(at), tile::load_shared_word(at + 8 * pitch),
                                tile::load_shared_word(at + 16), tile::load_shared_word(at + 8 * pitch + 16)};
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        uint32_t b[4];
        tile::load_matrices_transposed(b,
                                       place_of(k + lane / 8 % 2 * 8 + lane % 8, warp * 4 + n + lane / 16));
        tile::mma(sum[n], rows, {b[0], b[1]});
        tile::mma(sum[n + 1], rows, {b[2], b[3]});
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int t = lane / 4 + 8 * r;
      if (t >= tokens) break;
      Bf16* const row =
          to + static_cast<int64_t>(t) * p.heads * width + first_column + warp * 32 + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < 4; ++n)
        *reinterpret_cast<uint32_t*>(row + 8 * n) = attention::pack(sum[n][2 * r], sum[n][2 * r + 1]);
    }
  }
}

constexpr int kProjectThreads = 512, kProjectRows = 8, kValueRows = 128;  // kValueRows: rows of V_h per pass
constexpr int kPartsAtOnce = 8;

// Shared memory of project(). Row pitches are 64 bytes (latents) and 16 bytes (sums) modulo the 128 bytes of all banks.
template <int kRank>
struct ProjectScratch {
  Bf16 latent[2][kProjectRows][kRank + kPanel / 2];  // as a sum of two bf16 terms
  float sum[2][kProjectRows][kValueRows + 4];        // [half]: the sum over this half of the rank
  float share[kProjectRows][kRowSplits];             // factor on a split's latent
  uint32_t some[kProjectRows];                       // mask of the splits with keys
  int owned[kProjectRows];                           // true if the row belongs to a sequence
};

// Computes the factors on the splits of one row and head. Called by a warp; a lane handles a split.
template <int kRank>
__device__ __forceinline__ void weigh_splits(const Parameters& p, int64_t row, int head, int slot,
                                             ProjectScratch<kRank>& scratch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Part part{0, 0, kNobody, 0};
  if (row < p.rows && lane < p.splits) part = p.parts[(row * p.heads + head) * p.splits + lane];
  const bool some = part.state == kSomeKeys;
  float largest = some ? part.largest : attention::kNothing;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
  const float factor = some ? attention::exp2_of(part.largest - attention::base_of(largest)) : 0.f;
  float total = some ? factor * part.sum : 0.f;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
  const uint32_t with_keys = __ballot_sync(kAllLanes, some),
                 owned = __ballot_sync(kAllLanes, part.state != kNobody);
  if (lane < kRowSplits) scratch.share[slot][lane] = some ? factor / total : 0.f;
  if (lane == 0) scratch.some[slot] = with_keys, scratch.owned[slot] = owned != 0;
}

// Adds up the splits' latents for all rows; zeros for rows without keys.
template <int kRank>
__device__ __forceinline__ void join_splits(const Parameters& p, int64_t first, int head,
                                            ProjectScratch<kRank>& scratch) {
  constexpr int kChunks = kRank / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kProjectRows * kChunks; i += kProjectThreads) {
    const int slot = i / kChunks, chunk = i % kChunks;
    const uint32_t some = scratch.some[slot];
    const Bf16* const latents = p.latents + ((first + slot) * p.heads + head) * p.splits * kRank + 8 * chunk;
    float sum[8] = {};
    for (int s = 0; s < p.splits && some >> s != 0; s += kPartsAtOnce) {
      uint4 part[kPartsAtOnce];
#pragma unroll
      for (int j = 0; j < kPartsAtOnce; ++j) {
        part[j] = make_uint4(0, 0, 0, 0);
        if (some >> (s + j) & 1)
          part[j] = *reinterpret_cast<const uint4*>(latents + static_cast<int64_t>(s + j) * kRank);
      }
#pragma unroll
      for (int j = 0; j < kPartsAtOnce; ++j) {
        const float share = scratch.share[slot][s + j];
        const uint32_t pair[4] = {part[j].x, part[j].y, part[j].z, part[j].w};
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          sum[2 * n] = fmaf(share, attention::low_of(pair[n]), sum[2 * n]);
          sum[2 * n + 1] = fmaf(share, attention::high_of(pair[n]), sum[2 * n + 1]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const uint32_t high = attention::pack(sum[2 * n], sum[2 * n + 1]);
      const uint32_t low =
          attention::pack(sum[2 * n] - attention::low_of(high), sum[2 * n + 1] - attention::high_of(high));
      const int column = stored_column(chunk, n);
      *reinterpret_cast<uint32_t*>(&scratch.latent[0][slot][column]) = high;
      *reinterpret_cast<uint32_t*>(&scratch.latent[1][slot][column]) = low;
    }
  }
}

// Loads weights, but not by ld.global.nc, which ptxas would move after the wait for the previous launch.
__device__ __forceinline__ uint4 load_weights(const Bf16* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// Multiplies V_h by the latents of 8 rows. A CTA handles one head and loops over V_h, 128 rows at
// a time; a warp handles 16 of these rows and half of the rank. Grid: heads along x, rows along y.
template <int kPanels>
__global__ void __launch_bounds__(kProjectThreads, 1) project(const __grid_constant__ Parameters p) {
  constexpr int kRank = 2 * kPanels * kPanel, kLoads = 2 * kPanels;  // loads of 32 columns for half of a row
  __shared__ __align__(16) ProjectScratch<kRank> scratch;
  const int own = static_cast<int>(threadIdx.x), lane = own % kWarp, warp = own / kWarp, half = warp / 8;
  const int head = static_cast<int>(blockIdx.x), value_row = warp % 8 * 16 + lane / 4;
  const int column = half * kPanels * kPanel + lane % 4 * 8;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kProjectRows;
  const Bf16* const values =
      p.kv_b + (static_cast<int64_t>(head) * (p.nope + p.v_dim) + p.nope) * kRank + column;
  uint4 v[2][kLoads];
  const auto load_pass = [&](int begin) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int d = begin + value_row + 8 * r;
#pragma unroll
      for (int j = 0; j < kLoads; ++j)
        v[r][j] = d < p.v_dim ? load_weights(values + static_cast<int64_t>(d) * kRank + 32 * j)
                              : make_uint4(0, 0, 0, 0);
    }
  };
  tile::release_next();
  load_pass(0);
  tile::wait_for_previous();
  if (warp < kProjectRows) weigh_splits(p, first + warp, head, warp, scratch);
  __syncthreads();
  join_splits(p, first, head, scratch);
  __syncthreads();
  for (int begin = 0; begin < p.v_dim; begin += kValueRows) {
    float sum[2][4] = {};
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
#pragma unroll
      for (int term = 0; term < 2; ++term) {
        const uint4 x = *reinterpret_cast<const uint4*>(&scratch.latent[term][lane / 4][column + 32 * j]);
        tile::mma(sum[0], {v[0][j].x, v[1][j].x, v[0][j].y, v[1][j].y}, {x.x, x.y});
        tile::mma(sum[1], {v[0][j].z, v[1][j].z, v[0][j].w, v[1][j].w}, {x.z, x.w});
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      scratch.sum[half][lane % 4 * 2 + i % 2][value_row + i / 2 * 8] = sum[0][i] + sum[1][i];
    __syncthreads();
    if (begin + kValueRows < p.v_dim) load_pass(begin + kValueRows);
    for (int i = own; i < kProjectRows * kValueRows; i += kProjectThreads) {
      const int slot = i / kValueRows, d = i % kValueRows;
      if (!scratch.owned[slot] || begin + d >= p.v_dim) continue;
      p.y[(p.first + first + slot) * p.y_stride + static_cast<int64_t>(head) * p.v_dim + begin + d] =
          // Without keys the result is zero, even if an infinite weight would give NaN.
          __float2bfloat16_rn(scratch.some[slot] ? scratch.sum[0][slot][d] + scratch.sum[1][slot][d] : 0.f);
    }
    __syncthreads();  // scratch.sum may be overwritten
  }
}

}  // namespace sluice::cuda::latent_mma
