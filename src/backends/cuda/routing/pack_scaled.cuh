// Packs and unpacks all formats except bf16 and MXFP4. A thread moves one word of codes at a time; scales are
// moved row by row. One CTA handles a whole row block, because a NaN among a row's codes changes the row's scales.
#pragma once
#include "backends/cuda/routing/pack_experts.cuh"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda::pack {

// An f32 whose four bytes are at any address.
__device__ __forceinline__ float f32_at(const uint8_t* at) {
  return __uint_as_float(at[0] | at[1] << 8 | at[2] << 16 | static_cast<uint32_t>(at[3]) << 24);
}
__device__ __forceinline__ bool is_nan8(uint8_t code) { return (code & 0x7F) == 0x7F; }

constexpr int kScaledShare = kThreads / kRows;  // adjacent threads that handle one row

// The row of this thread: its codes and scales in the checkpoint, or null.
struct ScaledRow {
  int row, first;  // row in the row block; this thread's index among the threads of the row
  const uint8_t *codes, *scales;
};
__device__ __forceinline__ ScaledRow scaled_row(const Parameters& p, const RowBlock& at,
                                                const Shared& shared) {
  const int row = threadIdx.x / kScaledShare, from = shared.row[row];
  return {row, static_cast<int>(threadIdx.x) % kScaledShare,
          from < 0 ? nullptr : at.rows + from * p.row_bytes,
          from < 0 ? nullptr : at.row_scales + static_cast<int64_t>(from) * p.blocks};
}
__device__ __forceinline__ int most_of_row(int value) {
#pragma unroll
  for (int step = kScaledShare / 2; step > 0; step /= 2)
    value = max(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}
// True if some code of the row is the NaN of e4m3.
__device__ __forceinline__ bool has_nan8(const Parameters& p, const ScaledRow& r) {
  int nan = 0;
  if (r.codes && p.problem.w == DType::kE4M3)
    for (int64_t k = r.first; k < p.problem.width; k += kScaledShare) nan |= is_nan8(r.codes[k]);
  return most_of_row(nan) != 0;
}

// The scale of a group of mx codes; 255 if one of the codes is NaN.
__device__ __forceinline__ int mx_scale(const ScaledRow& r, int group) {
  int nan = 0;
  for (int k = 0; k < kMxBlock; ++k) nan |= is_nan8(r.codes[group * kMxBlock + k]);
  return nan ? 255 : r.scales[group];
}
__device__ inline void pack_mx8(const Parameters& p, const RowBlock& at, const ScaledRow& r) {
  const int groups = r.codes ? static_cast<int>(p.problem.width / kMxBlock) : 0;
  int top = 0;
  for (int g = r.first; g < groups; g += kScaledShare)
    if (const int scale = mx_scale(r, g); scale != 255) top = max(top, scale);
  top = most_of_row(top);
  if (r.first == 0) at.top[r.row] = static_cast<uint8_t>(top);
  for (int g = r.first; g < at.shape.k_blocks * 2; g += kScaledShare)
    at.scales[fragment_scale_index({1, at.shape.k_blocks}, {0, r.row}, g * kMxBlock)] =
        g < groups ? fragment_stored_scale(static_cast<uint8_t>(mx_scale(r, g)), static_cast<uint8_t>(top))
                   : 0;
}

__device__ inline void pack_nv(const Parameters& p, const RowBlock& at, const ScaledRow& r) {
  const int groups = r.codes ? static_cast<int>(p.problem.width / kNvBlock) : 0;
  for (int g = r.first; g < at.shape.k_blocks * 4; g += kScaledShare)
    at.scales[fragment_nv_index({1, at.shape.k_blocks}, {0, r.row}, g * kNvBlock)] =
        g < groups ? fragment_nv_stored(r.scales[g]) : 0;
  if (r.first != 0) return;
  float factor = r.codes ? 128 * f32_at(r.scales + groups) : 0;
  if (isnan(factor)) factor = __uint_as_float(0x7fc00000u);
  reinterpret_cast<float*>(at.top)[r.row] = factor;
}

// Writes the block scales of a row's features. Several rows may
// write the scales of the same features; then the values are equal.
__device__ inline void pack_blocks(const Parameters& p, const RowBlock& at, const ScaledRow& r,
                                   bool nan_code) {
  int bad = nan_code;
  const int groups = static_cast<int>(at.shape.k_blocks);
  auto* scales = reinterpret_cast<float*>(at.scales);
  const auto scale_at = [&](int g, int* is_bad) {
    const float scale = f32_at(r.scales + 4 * g);
    if (is_block_scale(scale)) return scale;
    *is_bad = 1;
    return 1.f;
  };
  int of_row = 0;
  for (int g = r.first; r.codes && g < groups; g += kScaledShare) {
    const float scale = scale_at(g, &of_row);
    int unused = 0;
    const float factor = g == 0 ? 1.f : __fdiv_rn(scale_at(g - 1, &unused), scale);
    for (int other = 0; other < (p.problem.gated ? 2 : 1); ++other) {
      float* to =
          scales + fragment_block_scale_index({1, at.shape.k_blocks}, {0, (r.row + 32 * other) % kRows},
                                              int64_t{g} * kScaleColumns);
      to[0] = scale, to[4] = factor;
    }
  }
  bad |= most_of_row(of_row);
  if (r.first == 0)
    reinterpret_cast<float*>(at.top)[r.row] = !r.codes ? 0.f : bad ? __uint_as_float(0x7fc00000u) : 1.f;
}

__device__ inline void pack_row_scale(const RowBlock& at, const ScaledRow& r, bool nan_code) {
  if (r.first != 0) return;
  reinterpret_cast<float*>(at.top)[r.row] = !r.codes   ? 0.f
                                            : nan_code ? __uint_as_float(0x7fc00000u)
                                                       : f32_at(r.scales);
}

// True if the codes of a row at column k are stored as zeros, because their scale is NaN or 0.
__device__ __forceinline__ bool hides(const Parameters& p, const RowBlock& at, int row, int64_t k) {
  const FragmentShape one{1, at.shape.k_blocks};
  if (p.problem.scales == WeightScales::kMx)
    return at.scales[fragment_scale_index(one, {0, row}, k)] == kFragmentNan;
  if (p.problem.scales != WeightScales::kNv) return false;
  const uint8_t stored = at.scales[fragment_nv_index(one, {0, row}, k)];
  return stored == 0 || stored == kFragmentNvNan;
}

// The place of a pair in a word of packed codes of e2m1: its row, and the first of its two columns.
struct PairAt {
  int row;
  int64_t k;
};
__device__ __forceinline__ PairAt pair_at(int64_t word, int pair) {
  const int in_block = static_cast<int>(word % (kFragmentCodeBytes / 4)), thread = in_block / 4,
            step = in_block % 4;
  return {thread / 32 * 16 + thread % 32 / 4 + 8 * (pair % 2),
          word / (kFragmentCodeBytes / 4) * kFragmentWidth + step * 16 + pair / 2 * 8 + thread % 4 * 2};
}

template <bool kUnpack>
__device__ inline void move_codes_of_e2m1(const Parameters& p, const RowBlock& at, const Shared& shared) {
  const int64_t words = at.shape.k_blocks * kFragmentCodeBytes / 4;
  auto* packed = reinterpret_cast<uint32_t*>(at.codes);
  for (int64_t i = threadIdx.x; i < words; i += kThreads) {
    uint32_t word = kUnpack ? packed[i] : 0;
    for (int pair = 0; pair < 4; ++pair) {
      const PairAt here = pair_at(i, pair);
      if (shared.row[here.row] < 0 || here.k >= p.problem.width) continue;
      uint8_t& two = at.rows[shared.row[here.row] * p.row_bytes + here.k / 2];
      if constexpr (kUnpack) {
        const uint32_t bits = fragment_pair(word, pair);
        two = static_cast<uint8_t>(fragment_code_of(bits, 0) | fragment_code_of(bits, 1) << 4);
      } else if (!hides(p, at, here.row, here.k)) {
        word ^= fragment_word(fragment_pair_of(two & 15, two >> 4), pair);
      }
    }
    if (!kUnpack) packed[i] = word;
  }
}

template <bool kUnpack>
__device__ inline void move_codes_of_e4m3(const Parameters& p, const RowBlock& at, const Shared& shared) {
  const int64_t words = at.shape.k_blocks * kFragmentCode8Bytes / 4;
  auto* packed = reinterpret_cast<uint32_t*>(at.codes);
  for (int64_t i = threadIdx.x; i < words; i += kThreads) {
    // The word's row, and its first column.
    const int in_block = static_cast<int>(i % (kFragmentCode8Bytes / 4)),
              thread = in_block / 4 % kGroupThreads,
              row = thread / 32 * 16 + thread % 32 / 4 + in_block % 2 * 8;
    const int64_t first = i / (kFragmentCode8Bytes / 4) * kFragmentWidth +
                          in_block / (4 * kGroupThreads) * 32 + in_block % 4 / 2 * 16 + thread % 4 * 2;
    uint32_t word = kUnpack ? packed[i] : 0;
    for (int b = 0; b < 4 && shared.row[row] >= 0; ++b) {
      const int64_t k = first + b % 2 * 8 + b / 2;
      if (k >= p.problem.width) continue;
      uint8_t& code = at.rows[shared.row[row] * p.row_bytes + k];
      if constexpr (kUnpack) {
        code = static_cast<uint8_t>(word >> 8 * b);
      } else if (!hides(p, at, row, k)) {
        word |= static_cast<uint32_t>(code) << 8 * b;
      }
    }
    if (!kUnpack) packed[i] = word;
  }
}

template <bool kUnpack>
__device__ inline void move_scaled_codes(const Parameters& p, const RowBlock& at, const Shared& shared) {
  if (p.problem.w == DType::kE4M3) {
    move_codes_of_e4m3<kUnpack>(p, at, shared);
  } else {
    move_codes_of_e2m1<kUnpack>(p, at, shared);
  }
}

inline __global__ void __launch_bounds__(kThreads, 1) pack_scaled(const __grid_constant__ Parameters p) {
  __shared__ Shared shared;
  tile::release_next();
  tile::wait_for_previous();
  const RowBlock at = row_block(p);
  find_rows(p, at.block, &shared);
  const int64_t scale_bytes = at.shape.k_blocks * fragment_scale_bytes(PackExperts::format(p.problem));
  for (int64_t i = threadIdx.x; i < scale_bytes; i += kThreads) at.scales[i] = 0;
  clear_behind(p, at);
  __syncthreads();
  const ScaledRow row = scaled_row(p, at, shared);
  switch (p.problem.scales) {
    case WeightScales::kMx:
      pack_mx8(p, at, row);
      break;
    case WeightScales::kNv:
      pack_nv(p, at, row);
      break;
    case WeightScales::kBlocks:
      pack_blocks(p, at, row, has_nan8(p, row));
      break;
    case WeightScales::kRows:
      pack_row_scale(at, row, has_nan8(p, row));
      break;
  }
  __syncthreads();  // the scales are complete; they decide which codes are stored as zeros
  move_scaled_codes<false>(p, at, shared);
}

__device__ inline void put_f32(uint8_t* to, float value) {
  const uint32_t bits = __float_as_uint(value);
  for (int i = 0; i < 4; ++i) to[i] = static_cast<uint8_t>(bits >> (8 * i));
}

inline __global__ void __launch_bounds__(kThreads, 1) unpack_scaled(const __grid_constant__ Parameters p) {
  __shared__ Shared shared;
  tile::release_next();
  tile::wait_for_previous();
  const RowBlock at = row_block(p);
  find_rows(p, at.block, &shared);
  move_scaled_codes<true>(p, at, shared);
  const WeightFormat f = PackExperts::format(p.problem);
  const FragmentShape one{1, at.shape.k_blocks};
  const int row = threadIdx.x / kScaledShare, first = threadIdx.x % kScaledShare;
  if (shared.row[row] < 0) return;
  uint8_t* to = at.row_scales + static_cast<int64_t>(shared.row[row]) * p.blocks;
  const int64_t columns = f.columns(), groups = f.column_scales(p.problem.width);
  for (int64_t g = first; g < groups; g += kScaledShare) {
    if (f.scales == WeightScales::kMx) {
      const uint8_t stored = at.scales[fragment_scale_index(one, {0, row}, g * columns)];
      to[g] = static_cast<uint8_t>(stored == kFragmentNan ? 255 : fragment_scale(stored, at.top[row]));
    } else if (f.scales == WeightScales::kNv) {
      to[g] = fragment_nv_scale(at.scales[fragment_nv_index(one, {0, row}, g * columns)]);
    } else {
      put_f32(to + 4 * g, reinterpret_cast<const float*>(
                              at.scales)[fragment_block_scale_index(one, {0, row}, g * columns)]);
    }
  }
  if (first != 0 || !f.has_row_scale()) return;
  float scale = reinterpret_cast<const float*>(at.top)[row];
  if (f.scales == WeightScales::kNv) scale = isnan(scale) ? __uint_as_float(0x7fc00000u) : scale / 128;
  put_f32(to + groups, scale);
}

}  // namespace sluice::cuda::pack
