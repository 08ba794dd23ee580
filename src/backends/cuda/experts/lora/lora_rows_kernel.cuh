// The kernel of expert_lora_rows_sm90.cu, whose head describes it.
#pragma once
#include "backends/cuda/experts/lora/lora_mma.cuh"
#include "backends/cuda/tile/bulk_copy.cuh"
#include "backends/cuda/tile/mbarrier.cuh"

namespace sluice::cuda::lora_mma {

// Offsets in shared memory: x bf16[columns], a bf16[inner][columns], b bf16[rows][rank], this CTA's part of A x f32[inner], scale * A x
// f32[inner], and B A x f32[rows]. Rows are in the order of b; if gates and ups are apart there, the CTA's ups follow its gates.
struct RowPlaces {
  int x, a, b, part, inner, delta;
};

struct RowParameters : MmaParameters {
  int columns, slice;  // columns of x, and features, of a CTA; the last CTAs may have fewer
  RowPlaces at;
};

// As lora_row(), for one row and all lanes.
__device__ __forceinline__ LoraRow one_row(const LoraParameters& p, int row) {
  const int lane = threadIdx.x % 32;
  int begun = 0;  // experts that begin at or before the row
#pragma unroll 4
  for (int e = 0; e < p.experts; e += 32)
    begun += __popc(__ballot_sync(~0u, e + lane < p.experts && p.row_begin[e + lane] <= row));
  LoraRow out;
  const int expert = begun - 1;
  if (expert < 0 || row >= p.row_begin[expert] + p.row_count[expert]) return out;
  const int token = p.order[row] / p.slots, adapter = p.adapter[token];
  out.expert = expert;
  out.x_row = p.gathers ? token : row;
  if (adapter >= 0 && adapter < p.adapters) out.pair = adapter * p.experts + expert;
  return out;
}

__device__ __forceinline__ void unpack(const uint4& v, float (&out)[8]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    out[2 * i] = __uint_as_float(words[i] << 16), out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
}

// One row's part of a CTA.
template <bool kGated>
struct RowWork {
  static constexpr int kHalves = kGated ? 2 : 1;
  const RowParameters& p;
  LoraRow row;
  uint32_t base;  // of shared memory
  int first_column, columns, first_feature, features;

  __device__ RowWork(const RowParameters& of, int index, int block, uint32_t shared)
      : p(of), row(one_row(of, index)), base(shared) {
    first_column = min(block * p.columns, p.width), columns = min(p.columns, p.width - first_column);
    first_feature = min(block * p.slice, p.features), features = min(p.slice, p.features - first_feature);
  }
  __device__ __forceinline__ bool apart() const { return kGated && p.row_step == 1; }
  // The row of a feature's gate or up among the CTA's rows of B; feature: counted from first_feature.
  __device__ __forceinline__ int b_row(int feature, bool up) const {
    if (!kGated) return feature;
    return apart() ? feature + (up ? features : 0)
                   : 2 * feature + static_cast<int>(up ? p.up_row : p.gate_row);
  }

  // Requests x and A (counted at barrier 0) and B (at barrier 1). Called by one warp.
  __device__ __forceinline__ void fetch() const {
    const int lane = threadIdx.x % 32;
    const uint32_t of_columns = 2 * columns, of_b = 2 * kHalves * features * p.rank;
    if (lane == 0) {
      if (columns > 0) tile::barrier_expect(base, (p.inner + 1) * of_columns);
      if (features > 0) tile::barrier_expect(base + 8, of_b);
    }
    __syncwarp();
    const auto* a = static_cast<const B16*>(p.a) + (int64_t{row.pair} * p.inner * p.width + first_column);
    if (columns > 0) {
      for (int k = lane; k < p.inner; k += 32)
        tile::copy_bulk_of_lane(base + p.at.a + k * of_columns, a + int64_t{k} * p.width, of_columns, base);
      const auto* x = static_cast<const B16*>(p.x) + (row.x_row * p.x_stride + first_column);
      if (lane == 31) tile::copy_bulk_of_lane(base + p.at.x, x, of_columns, base);
    }
    const auto* b = static_cast<const B16*>(p.b) + int64_t{row.pair} * p.product_rows * p.rank;
    const int parts = apart() ? 2 : 1;
    if (features > 0 && lane < parts) {
      const int64_t first =
          apart() ? first_feature + (lane == 1 ? p.up_row : p.gate_row) : kHalves * first_feature;
      tile::copy_bulk_of_lane(base + p.at.b + lane * (of_b / parts), b + first * p.rank, of_b / parts,
                              base + 8);
    }
  }

  // This CTA's part of A x. A warp sums two rows of A at a time.
  __device__ __forceinline__ void multiply_a() const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (columns > 0) tile::barrier_wait(base, 0);
    const uint32_t row_bytes = 2 * columns;
#pragma unroll 1
    for (int k = 2 * warp; k < p.inner; k += 2 * kLoraWarps) {  // inner is even
      float sum[2] = {};
#pragma unroll 2
      for (uint32_t at = 16 * lane; at < row_bytes; at += 16 * 32) {
        float x[8];
        unpack(tile::load_shared(base + p.at.x + at), x);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float a[8];
          unpack(tile::load_shared(base + p.at.a + (k + i) * row_bytes + at), a);
#pragma unroll
          for (int j = 0; j < 8; ++j) sum[i] = fmaf(a[j], x[j], sum[i]);
        }
      }
#pragma unroll
      for (int step = 16; step > 0; step /= 2)
#pragma unroll
        for (float& s : sum) s += __shfl_xor_sync(~0u, s, step);
      if (lane < 2)
        tile::store_shared_word(base + p.at.part + 4 * (k + lane),
                                __float_as_uint(lane == 0 ? sum[0] : sum[1]));
    }
  }

  // scale * A x, from the parts of all CTAs of the cluster.
  __device__ __forceinline__ void add_parts() const {
    __syncthreads();
    if (p.blocks > 1) tile::cluster_publish(), tile::cluster_wait();
    const float scale = p.scale[row.pair / p.experts];
    for (int k = static_cast<int>(threadIdx.x); k < p.inner; k += kLoraThreads) {
      const uint32_t part = base + p.at.part + 4 * k;
      float sum = 0;
#pragma unroll 4
      for (int j = 0; j < p.blocks; ++j)
        sum += p.blocks > 1 ? tile::load_remote(tile::remote_address(part, j))
                            : __uint_as_float(tile::load_shared_word(part));
      tile::store_shared_word(base + p.at.inner + 4 * k, __float_as_uint(sum * scale));
    }
    __syncthreads();
    if (p.blocks > 1) tile::cluster_publish();  // no CTA exits while another CTA reads its shared memory
  }

  // B times scale * A x. A thread has rows of B. Lanes begin at different chunks of 16 bytes, so that eight lanes read all banks.
  __device__ __forceinline__ void multiply_b() const {
    if (features > 0) tile::barrier_wait(base + 8, 0);
    const int chunks = p.rank / 8, lane = threadIdx.x % 32;
    const int turn = (chunks < 8 ? lane * chunks / 8 : lane) % chunks;
#pragma unroll 1
    for (int r = static_cast<int>(threadIdx.x); r < kHalves * features; r += kLoraThreads) {
      const bool up = kGated && (apart() ? r >= features : r % 2 == static_cast<int>(p.up_row));
      const uint32_t u = base + p.at.inner + (p.split && up ? 4 * p.rank : 0),
                     b = base + p.at.b + 2 * r * p.rank;
      float sum = 0;
#pragma unroll 2
      for (int i = 0, c = turn; i < chunks; ++i, c = c + 1 == chunks ? 0 : c + 1) {
        float of_b[8];
        unpack(tile::load_shared(b + 16 * c), of_b);
        const uint4 low = tile::load_shared(u + 32 * c), high = tile::load_shared(u + 32 * c + 16);
        const uint32_t of_u[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) sum = fmaf(of_b[j], __uint_as_float(of_u[j]), sum);
      }
      tile::store_shared_word(base + p.at.delta + 4 * r, __float_as_uint(sum));
    }
    __syncthreads();
  }

  // Writes y. A thread has kTogether pairs of adjacent features at a time.
  __device__ __forceinline__ void write(int index) const {
    constexpr int kTogether = 2;
    const RowAt at(p, index, row.expert);
#pragma unroll 1
    for (int first = 2 * static_cast<int>(threadIdx.x); first < features;
         first += 2 * kTogether * kLoraThreads) {
      Before before[kTogether][kHalves];
#pragma unroll
      for (int n = 0; n < kTogether; ++n)
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
          before[n][h].template load<kGated>(p, at, first_feature + first + 2 * n * kLoraThreads, h == 1);
      float more[kTogether][kHalves][2] = {};
      if (row.pair >= 0) {
#pragma unroll
        for (int n = 0; n < kTogether; ++n) {
          const int f = first + 2 * n * kLoraThreads;
          if (f >= features) break;
#pragma unroll
          for (int h = 0; h < kHalves; ++h)
#pragma unroll
            for (int i = 0; i < 2; ++i)
              more[n][h][i] =
                  __uint_as_float(tile::load_shared_word(base + p.at.delta + 4 * b_row(f + i, h == 1)));
        }
      }
      complete<kGated>(p, at, before, more, first_feature + first, 2 * kLoraThreads,
                       first_feature + features);
    }
  }
};

template <bool kGated>
__global__ void __launch_bounds__(kLoraThreads, 5) expert_lora_rows(const __grid_constant__ RowParameters p) {
  extern __shared__ __align__(128) uint8_t parts[];
  const uint32_t base = tile::shared_address(parts);
  const int block = static_cast<int>(blockIdx.x) % p.blocks, index = static_cast<int>(blockIdx.x) / p.blocks;
  if (threadIdx.x == 0) {
    tile::barrier_init(base, 1), tile::barrier_init(base + 8, 1);
    tile::barrier_visible();
  }
  __syncthreads();
  if (!p.settled) tile::wait_for_previous();
  const RowWork<kGated> work(p, index, block, base);
  const bool adapted = work.row.pair >= 0;  // the same for all threads of the cluster
  if (adapted) {
    if (threadIdx.x < 32) work.fetch();
    work.multiply_a();
    work.add_parts();
    work.multiply_b();
  }
  if (p.settled) tile::wait_for_previous();  // for z, and before the first write
  tile::release_next();  // after the wait: the next product's groups may be settled (tile/dependent.cuh)
  if (work.row.expert >= 0) work.write(index);
  __syncwarp();
  if (adapted && p.blocks > 1) tile::cluster_wait();
}

}  // namespace sluice::cuda::lora_mma
