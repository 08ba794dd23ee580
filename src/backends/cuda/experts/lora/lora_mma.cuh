// The kernel of expert_lora_mma_sm90.cu, whose head describes it.
#pragma once
#include "backends/cuda/experts/lora/lora_rows.cuh"
#include "backends/cuda/experts/lora/lora_tile.h"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/operand_products.cuh"

namespace sluice::cuda::lora_mma {

using B16 = __nv_bfloat16;

struct MmaParameters : LoraParameters {
  int tile;           // rows per tile
  int blocks, units;  // CTAs per cluster; units of a row of x per warp
  int pitch;
  uint32_t zero;  // always 0, but unknown to the compiler
  bool settled, prefetches;
  // The rows of b of feature f: f * row_step + gate_row, and + up_row.
  uint32_t row_step, gate_row, up_row;
  bool y_pairs;  // two adjacent elements in bf16 are one aligned word
};

// All but the fields of a configuration.
inline MmaParameters mma_parameters(const ExpertLora::Problem& p, const ExpertLora::Args& a) {
  MmaParameters out{};
  static_cast<LoraParameters&>(out) = lora_parameters(p, a);
  out.settled = p.settled;
  const auto row_of = [&](int64_t feature, bool up) {
    return static_cast<uint32_t>(is_gated(p.act) ? gated_row(p.gate_order, p.features, feature, up)
                                                 : feature);
  };
  out.gate_row = row_of(0, false), out.up_row = row_of(0, true);
  out.row_step = row_of(1, false) - out.gate_row;
  out.y_pairs = a.y.dtype == DType::kBF16 && reinterpret_cast<uintptr_t>(a.y.data) % 4 == 0 &&
                a.y.stride[0] % 2 == 0 && p.features % 2 == 0;
  return out;
}

// The rows of a tile, one per lane, and the lanes grouped by pair.
struct TileRows {
  LoraRow mine;
  uint32_t same;      // lanes whose row has the same pair
  uint32_t leaders;   // the first lane of each pair
  uint32_t existing;  // lanes whose row belongs to an expert

  template <int kRows>
  __device__ static TileRows find(const MmaParameters& p, int first) {
    TileRows out;
    out.mine = lora_row<kRows>(p, first, p.tile);
    out.same = __match_any_sync(~0u, out.mine.pair);
    out.leaders =
        __ballot_sync(~0u, out.mine.pair >= 0 && __ffs(out.same) - 1 == static_cast<int>(threadIdx.x % 32));
    out.existing = __ballot_sync(~0u, out.mine.expert >= 0);
    return out;
  }
  // Calls f(pairs, masks of their rows) for kTogether pairs at a time; the mask of a missing pair is 0. Called by all lanes of a warp.
  template <int kTogether, class F>
  __device__ __forceinline__ void each_pairs(F f) const {
#pragma unroll 1
    for (uint32_t rest = leaders; rest != 0;) {
      int pair[kTogether];
      uint32_t members[kTogether];
#pragma unroll
      for (int q = 0; q < kTogether; ++q) {
        const int leader = rest != 0 ? __ffs(rest) - 1 : 0;
        pair[q] = __shfl_sync(~0u, mine.pair, leader);
        const uint32_t all = __shfl_sync(~0u, same, leader);
        members[q] = rest != 0 ? all : 0;
        rest &= rest - 1;
      }
      f(pair, members);
    }
  }
  template <class F>
  __device__ __forceinline__ void each_pair(F f) const {
    each_pairs<1>([&](const int(&pair)[1], const uint32_t(&members)[1]) { f(pair[0], members[0]); });
  }
};

// Stores this warp's part of A x, sums[row][k], for the rows in `members`, which have pair `pair`. Loops over kColumns rows of A at a time.
template <int kRows, int kColumns, int kFlight>
__device__ __forceinline__ void multiply_a(const MmaParameters& p, const int (&x_row)[kRows / 8], int slice,
                                           int pair, uint32_t members, float* sums) {
  constexpr int kRowGroups = kRows / 8, kColumnGroups = kColumns / 8;
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int begin = min(slice * p.units * kLoraUnit, p.width),
            end = min(begin + p.units * kLoraUnit, p.width);
#pragma unroll 1
  for (int r0 = 0; r0 < p.inner; r0 += kColumns) {
    const B16 *a[kColumnGroups], *x[kRowGroups];
#pragma unroll
    for (int n = 0; n < kColumnGroups; ++n)
      a[n] = static_cast<const B16*>(p.a) +
             ((int64_t{pair} * p.inner + min(r0 + 8 * n + g, p.inner - 1)) * p.width + begin + 8 * c);
#pragma unroll
    for (int m = 0; m < kRowGroups; ++m)
      x[m] = static_cast<const B16*>(p.x) + (x_row[m] * p.x_stride + begin + 8 * c);
    float acc[(kRows + 8) / 16][kColumnGroups][4] = {};
#pragma unroll 1
    for (int left = end - begin - 8 * c, k = begin; k < end;
         k += kFlight * kLoraUnit, left -= kFlight * kLoraUnit) {
      tile::Eight<B16> av[kFlight][kColumnGroups], xv[kFlight][kRowGroups];
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
#pragma unroll
        for (int n = 0; n < kColumnGroups; ++n)
          tile::load_weights(av[i][n], a[n] + i * kLoraUnit, i * kLoraUnit < left);
#pragma unroll
        for (int m = 0; m < kRowGroups; ++m)
          tile::load_inputs(xv[i][m], x[m] + i * kLoraUnit,
                            i * kLoraUnit < left && (members >> (8 * m + g) & 1), true);
      }
      // This zero depends on all loads, so no product starts before the last load has been issued. Without it the compiler moves each load
      // next to its use, which serializes the loads.
      uint32_t any = 0;
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
#pragma unroll
        for (int n = 0; n < kColumnGroups; ++n) any |= av[i][n].word[0].x;
#pragma unroll
        for (int m = 0; m < kRowGroups; ++m) any |= xv[i][m].word[0].x;
      }
      const float zero = __uint_as_float(any & p.zero);
#pragma unroll
      for (int n = 0; n < kColumnGroups; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[0][n][i] += zero;
#pragma unroll
      for (int i = 0; i < kFlight; ++i) tile::multiply_terms<B16, B16, kRows, kColumns>(acc, xv[i], av[i]);
#pragma unroll
      for (int n = 0; n < kColumnGroups; ++n) a[n] += kFlight * kLoraUnit;
#pragma unroll
      for (int m = 0; m < kRowGroups; ++m) x[m] += kFlight * kLoraUnit;
    }
#pragma unroll
    for (int m = 0; m < kRowGroups; ++m) {
      const int row = 8 * m + g;
#pragma unroll
      for (int n = 0; n < kColumnGroups; ++n) {
        const float(&d)[4] = acc[0][n];
        const int r =
            r0 + 8 * n + 2 * c;  // p.inner is a multiple of 8, so r and r + 1 are both inside or both outside
        if ((members >> row & 1) && r < p.inner)
          *reinterpret_cast<float2*>(sums + row * p.pitch + r) =
              m == 0 ? make_float2(d[0], d[1]) : make_float2(d[2], d[3]);
      }
    }
  }
}

// scale * A x as two bf16 terms, whose sum has 16 bits: [term][row][pitch] after the sums of the warps.
struct Inner {
  B16* terms;
  int term;  // elements of one term
  int pitch;

  __device__ Inner(const MmaParameters& p, int rows, float* from)
      : terms(reinterpret_cast<B16*>(from)), term(rows * p.pitch), pitch(p.pitch) {}
  __device__ __forceinline__ void store(int at, float value) const {
    const B16 high = __float2bfloat16_rn(value);
    const float left = value - tile::to_f32(high);
    terms[at] = high;
    terms[term + at] =
        __float2bfloat16_rn(isfinite(tile::to_f32(high)) ? left : 0.f);  // not x minus infinity
  }
  __device__ __forceinline__ void load(tile::Eight<B16>& out, int of_term, int row, int k) const {
    out.word[0] = *reinterpret_cast<const uint4*>(terms + of_term * term + row * pitch + k);
  }
};

// Adds up the sums of the warps, and of the CTAs of the cluster, for rows with an adapter.
__device__ __forceinline__ void add_sums(const MmaParameters& p, const LoraRow& mine, int kept,
                                         const float* shared, float* part, const Inner& inner) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto each_row = [&](auto f) {
#pragma unroll 1
    for (int t = warp; t < p.tile; t += kLoraWarps) {
      const int pair = __shfl_sync(~0u, mine.pair, t);
      if (pair < 0) continue;
      const float scale = p.scale[pair / p.experts];
      for (int r = lane; r < p.inner; r += 32) f(t * p.pitch + r, scale);
    }
    __syncwarp();
  };
  each_row([&](int at, float scale) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kLoraWarps; ++j) sum += shared[j * kept + at];
    if (p.blocks > 1) {
      part[at] = sum;
    } else {
      inner.store(at, sum * scale);
    }
  });
  if (p.blocks == 1) return;
  tile::cluster_publish();
  tile::cluster_wait();
  each_row([&](int at, float scale) {
    const uint32_t here = tile::shared_address(part + at);
    float sum = 0;
#pragma unroll 4
    for (int j = 0; j < p.blocks; ++j) sum += tile::load_remote(tile::remote_address(here, j));
    inner.store(at, sum * scale);
  });
  tile::cluster_publish();  // no CTA exits while another CTA reads its shared memory
}

// Where a lane's row is: its z, the bias of its expert, and its y.
struct RowAt {
  const std::byte *z, *bias;
  std::byte* y;
  int expert;

  __device__ RowAt(const MmaParameters& p, int row, int expert)
      : z(static_cast<const std::byte*>(p.z) + row * p.z_stride * (p.z_bf16 ? 2 : 4)),
        bias(static_cast<const std::byte*>(p.bias) +
             int64_t{max(expert, 0)} * p.product_rows * (p.bias_bf16 ? 2 : 4)),
        y(static_cast<std::byte*>(p.y) + row * p.y_stride * (p.y_bf16 ? 2 : 4)),
        expert(expert) {}
};

// The row of b and of the bias for a feature's gate or up.
__device__ __forceinline__ uint32_t product_row(const MmaParameters& p, uint32_t feature, bool up) {
  return feature * p.row_step + (up ? p.up_row : p.gate_row);
}

// z and the bias of features f and f + 1 as raw bits; f is even. Loads without branches, so that those of all groups are under way
// together; value() converts later.
struct Before {
  uint32_t z[2], bias[2];

  template <bool kGated>
  __device__ __forceinline__ void load(const MmaParameters& p, const RowAt& row, uint32_t f, bool up) {
    const bool in = row.expert >= 0 && f < static_cast<uint32_t>(p.features);
    // In fragments 8 gates and their 8 ups are adjacent. The number of columns is a multiple of 8, so both columns exist.
    const uint32_t column = kGated ? (f >> 3) * 16 + (f & 7) + (up ? 8 : 0) : f;
    z[0] = z[1] = 0;
    asm volatile(
        "{\n"
        ".reg .pred p16, p32;\n"
        "setp.ne.u32 p16, %3, 0;\n"
        "setp.ne.u32 p32, %4, 0;\n"
        "@p16 ld.global.u32 %0, [%2];\n"
        "@p32 ld.global.v2.u32 {%0, %1}, [%2];\n"
        "}"
        : "+r"(z[0]), "+r"(z[1])
        : "l"(row.z + (p.z_bf16 ? 2 : 4) * column), "r"(uint32_t{in && p.z_bf16}),
          "r"(uint32_t{in && !p.z_bf16})
        : "memory");
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool has = in && p.bias != nullptr;
      const uint32_t of = product_row(p, f + i, up);
      const uint32_t half =
          tile::load_weight(reinterpret_cast<const B16*>(row.bias) + of, has && p.bias_bf16);
      const uint32_t full =
          tile::load_weight(reinterpret_cast<const float*>(row.bias) + of, has && !p.bias_bf16);
      bias[i] = half << 16 | full;  // one of them is zero
    }
  }
  __device__ __forceinline__ void value(const MmaParameters& p, float (&out)[2]) const {
    out[0] = __uint_as_float(p.z_bf16 ? z[0] << 16 : z[0]) + __uint_as_float(bias[0]);
    out[1] = __uint_as_float(p.z_bf16 ? z[0] & 0xffff0000u : z[1]) + __uint_as_float(bias[1]);
  }
};

// Stores y of features f and f + 1; f is even.
__device__ __forceinline__ void store_pair(const MmaParameters& p, const RowAt& at, uint32_t f, float first,
                                           float second) {
  if (p.y_pairs) {
    reinterpret_cast<__nv_bfloat162*>(at.y)[f / 2] = __floats2bfloat162_rn(first, second);
  } else if (p.y_bf16) {
    reinterpret_cast<B16*>(at.y)[f] = __float2bfloat16_rn(first);
    reinterpret_cast<B16*>(at.y)[f + 1] = __float2bfloat16_rn(second);
  } else {
    reinterpret_cast<float*>(at.y)[f] = first;
    reinterpret_cast<float*>(at.y)[f + 1] = second;
  }
}

// Completes pairs of features of a row: adds `more` to z and the bias, applies the activation and stores y. Pair n is features
// feature + n * step and the next one; pairs from `end` on are not stored.
template <bool kGated, int kPairs, int kHalves>
__device__ __forceinline__ void complete(const MmaParameters& p, const RowAt& at,
                                         const Before (&before)[kPairs][kHalves],
                                         const float (&more)[kPairs][kHalves][2], uint32_t feature,
                                         uint32_t step, uint32_t end) {
  const tile::ActivationValues act = lora_activation(p, at.expert);
  // All elements of a row together, because the choice of the activation is a branch.
  float y[2 * kPairs], u[2 * kPairs];
#pragma unroll
  for (int n = 0; n < kPairs; ++n) {
    float z[kHalves][2];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) before[n][h].value(p, z[h]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      y[2 * n + i] = more[n][0][i] + z[0][i];
      u[2 * n + i] = more[n][kHalves - 1][i] + z[kHalves - 1][i];
    }
  }
  if constexpr (kGated) {
    tile::activate_gated(act, y, u);
  } else {
    tile::activate_plain(act, y);
  }
#pragma unroll
  for (int n = 0; n < kPairs; ++n)
    if (feature + n * step < end) store_pair(p, at, feature + n * step, y[2 * n], y[2 * n + 1]);
}

// Adds B A x of up to kTogether (adapter, expert) pairs to the sums of their rows, `value` as in multiply_b().
template <int kRows, bool kGated, int kGroups, int kTogether, int kHalves>
__device__ __forceinline__ void add_updates(const MmaParameters& p, const int (&pair)[kTogether],
                                            const uint32_t (&members)[kTogether], uint32_t feature,
                                            uint32_t step, const Inner& inner,
                                            float (&value)[kRows / 8][kGroups][kHalves][2]) {
  constexpr int kRowGroups = kRows / 8;
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll 1
  for (int r = 0; r < p.rank; r += kLoraUnit) {
    const bool in = r + 8 * c < p.rank;
    tile::Eight<B16> bv[kTogether][kGroups][kHalves][1];
#pragma unroll
    for (int q = 0; q < kTogether; ++q) {
      const B16* b = static_cast<const B16*>(p.b) + int64_t{pair[q]} * p.product_rows * p.rank + r + 8 * c;
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        const uint32_t f = feature + n * step + g;
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
          tile::load_weights(bv[q][n][h][0], b + product_row(p, f, h == 1) * p.rank,
                             in && members[q] != 0 && f < static_cast<uint32_t>(p.features));
      }
    }
#pragma unroll
    for (int q = 0; q < kTogether; ++q) {
      if (members[q] == 0) continue;
      float acc[kGroups][kHalves][1][1][4] = {};
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        tile::Eight<B16> uv[kHalves][kRowGroups];
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
#pragma unroll
          for (int m = 0; m < kRowGroups; ++m) {
            uv[h][m].word[0] = make_uint4(0, 0, 0, 0);
            if (h == 1 && !p.split) {
              uv[h][m] = uv[0][m];
            } else if (in) {
              inner.load(uv[h][m], t, 8 * m + g, (h == 1 ? p.rank : 0) + r + 8 * c);
            }
          }
#pragma unroll
        for (int n = 0; n < kGroups; ++n)
#pragma unroll
          for (int h = 0; h < kHalves; ++h)
            tile::multiply_terms<B16, B16, kRows, 8>(acc[n][h], uv[h], bv[q][n][h]);
      }
#pragma unroll
      for (int m = 0; m < kRowGroups; ++m) {
        const bool mine = members[q] >> (8 * m + g) & 1;
#pragma unroll
        for (int n = 0; n < kGroups; ++n)
#pragma unroll
          for (int h = 0; h < kHalves; ++h)
#pragma unroll
            for (int i = 0; i < 2; ++i)
              value[m][n][h][i] = mine ? value[m][n][h][i] + acc[n][h][0][0][2 * m + i] : value[m][n][h][i];
      }
    }
  }
}

// Computes y of kGroups groups of 8 features from `feature` on, `step` features apart.
template <int kRows, bool kGated, int kGroups>
__device__ __forceinline__ void multiply_b(const MmaParameters& p, const TileRows& rows,
                                           const RowAt (&at)[kRows / 8], uint32_t feature, uint32_t step,
                                           const Inner& inner) {
  constexpr int kHalves = kGated ? 2 : 1, kRowGroups = kRows / 8;
  const uint32_t mine = feature + 2 * (threadIdx.x % 4);
  Before before[kRowGroups][kGroups][kHalves];
#pragma unroll
  for (int m = 0; m < kRowGroups; ++m)
#pragma unroll
    for (int n = 0; n < kGroups; ++n)
#pragma unroll
      for (int h = 0; h < kHalves; ++h)
        before[m][n][h].template load<kGated>(p, at[m], mine + n * step, h == 1);
  // The sums of the products, [row group][feature group][gate or up][column].
  float value[kRowGroups][kGroups][kHalves][2] = {};
  // Pairs are read two at a time, so that the second one's loads do not wait for the first one's products.
  constexpr int kTogether = kRows == 8 ? 2 : 1;
  rows.template each_pairs<kTogether>([&](const int(&pair)[kTogether], const uint32_t(&members)[kTogether]) {
    add_updates<kRows, kGated, kGroups>(p, pair, members, feature, step, inner, value);
  });
#pragma unroll
  for (int m = 0; m < kRowGroups; ++m)
    if (at[m].expert >= 0)
      complete<kGated>(p, at[m], before[m], value[m], mine, step, static_cast<uint32_t>(p.features));
}

// Requests B of the tile's pairs from memory, so that it arrives in L2 while A x is computed. CTAs of a cluster divide the lines.
__device__ __forceinline__ void prefetch_b(const MmaParameters& p, const TileRows& rows, int block) {
  const int64_t bytes = int64_t{2} * p.product_rows * p.rank;
  rows.each_pair([&](int pair, uint32_t) {
    const auto* b = static_cast<const std::byte*>(p.b) + pair * bytes;
    for (int64_t at = (int64_t{block} * kLoraThreads + threadIdx.x) * 128; at < bytes;
         at += int64_t{128} * kLoraThreads * p.blocks)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(b + at));
  });
}

template <int kRows, int kColumns, int kFlight, bool kGated>
__global__ void __launch_bounds__(kLoraThreads, 2) expert_lora_mma(const __grid_constant__ MmaParameters p) {
  extern __shared__ __align__(16) float shared[];
  constexpr int kGroups = kGated ? 2 : 4;
  const int block = blockIdx.x % p.blocks, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  const int first = static_cast<int>(blockIdx.x) / p.blocks * p.tile;
  const int kept = kRows * p.pitch, slice = block * kLoraWarps + warp;
  float* const part = shared + kLoraWarps * kept;
  const Inner inner(p, kRows, part + kept);
  if (!p.settled) tile::wait_for_previous();
  const TileRows rows = TileRows::find<kRows>(p, first);
  if (p.prefetches) prefetch_b(p, rows, block);
  int x_row[kRows / 8];
#pragma unroll
  for (int m = 0; m < kRows / 8; ++m) x_row[m] = __shfl_sync(~0u, rows.mine.x_row, 8 * m + g);
  if (rows.leaders != 0) {
    rows.each_pair([&](int pair, uint32_t members) {
      multiply_a<kRows, kColumns, kFlight>(p, x_row, slice, pair, members, shared + warp * kept);
    });
    __syncthreads();
    add_sums(p, rows.mine, kept, shared, part, inner);
    __syncthreads();
  }
  if (p.settled) tile::wait_for_previous();  // for z, and before the first write
  tile::release_next();  // after the wait: the next product's groups may be settled (tile/dependent.cuh)
  const auto at_row = [&](int m) {
    return RowAt(p, first + 8 * m + g, __shfl_sync(~0u, rows.mine.expert, 8 * m + g));
  };
  const int step = 8 * kLoraWarps * p.blocks;
  const auto all_features = [&](const RowAt(&at)[kRows / 8]) {
#pragma unroll 1
    for (int feature = slice * 8; feature < p.features; feature += kGroups * step)
      multiply_b<kRows, kGated, kGroups>(p, rows, at, feature, step, inner);
  };
  if (rows.existing != 0) {  // the same for all threads of the cluster
    if constexpr (kRows == 8) {
      const RowAt at[] = {at_row(0)};
      all_features(at);
    } else {
      const RowAt at[] = {at_row(0), at_row(1)};
      all_features(at);
    }
  }
  __syncwarp();
  if (rows.leaders != 0 && p.blocks > 1) tile::cluster_wait();
}

}  // namespace sluice::cuda::lora_mma
