// Latent attention in three launches: queries times the key matrices; partial results for fixed splits of the keys; the sums of the
// partial results times the value matrices. A CTA of the second launch handles sixteen heads of one row, which share a tile of latents.
//
// Wins    problems that latent_attention_mma_sm90 refuses. From 4096 keys on, one row of 128 heads has 128 CTAs.
// Loses   wherever latent_attention_mma_sm90 accepts, because all products are f32 FMAs.
// Limits  none beyond the contract; 16-byte accesses if sizes and addresses allow them. The workspace has room for 64 MiB of rows, so
//         many rows take several calls. The splits depend only on the number of keys that the pages of a sequence can hold.
// Source  original; the online softmax is Milakov and Gimelshein (2018). The contract is ops/latent_attention.h.
#include "backends/cuda/card.h"
#include "ops/latent_attention.h"

namespace sluice::cuda {
namespace {

using Problem = LatentAttention::Problem;

constexpr int64_t kTile = 32;  // keys

// How the keys of a sequence, and the rows of the problem, are divided. A partial
// result is a latent, the largest score, the sum of weights, and the number of keys.
struct Splits {
  int64_t keys, count;       // keys per split; splits per row
  int64_t row_floats, rows;  // workspace per row; rows per call
};
constexpr int64_t kScalarsOfPart = 3;

Splits splits_of(const Problem& p) {
  constexpr int64_t kMax = 16, kFewestKeys = 256, kFloats = int64_t{16} << 20;
  const int64_t room = p.pages_per_seq * p.page_size;
  const int64_t each = std::max(kFewestKeys, (room + kMax - 1) / kMax);
  Splits s{.keys = (each + kTile - 1) / kTile * kTile, .count = 0, .row_floats = 0, .rows = 0};
  s.count = (room + s.keys - 1) / s.keys;
  s.row_floats = p.heads * (p.rank + p.rope + s.count * (p.rank + kScalarsOfPart));
  s.rows = std::clamp<int64_t>(kFloats / s.row_floats, 1,
                               std::max<int64_t>(std::min<int64_t>(p.tokens, 65535), 1));
  return s;
}

Refusal supports(const Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

// A model that is not fitted: the second launch multiplies at about a third of the SMs' f32 rate.
double cost_us(const Problem& p, const DeviceInfo& d) {
  const double calls = std::ceil(static_cast<double>(p.tokens) / static_cast<double>(splits_of(p).rows));
  return calls * 3 * kRampUs + LatentAttention::bytes(p) / d.mem_bytes_per_us +
         LatentAttention::flops(p) / (0.3 * d.f32_flops_per_us);
}

size_t workspace_bytes(const Problem& p, const DeviceInfo&) {
  const Splits s = splits_of(p);
  return static_cast<size_t>(s.rows * s.row_floats) * sizeof(float);
}

struct Launcher {
  static Status enqueue(const Problem&, const LatentAttention::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<LatentAttention> latent_attention_splits_sm90 = {
    .name = "cuda.latent_attention.splits_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue_of<LatentAttention, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/latent/latent_attention_attend.cuh"
#include "backends/cuda/launch.h"

namespace sluice::cuda {
namespace {

using namespace latent;

constexpr int kRows = 4;  // rows that share loads of weights

// Computes a K_h for kRows rows, and copies b (the rope part) after it. A CTA handles one head; rows of threads divide
// the rows of K_h. N: adjacent columns per thread. Shared memory: the rows of a (queries), then the sums of all threads.
template <int N, class X, class W>
__global__ void __launch_bounds__(kThreads) absorb(const __grid_constant__ Parameters p) {
  extern __shared__ uint4 shared[];
  const int own = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x);
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kRows;
  const int width = p.rank + p.rope, groups = (p.rank + N - 1) / N;
  float *const a = reinterpret_cast<float*>(shared), *const sums = a + kRows * p.nope;
  tile::release_next();
  tile::wait_for_previous();
  for (int i = own; i < kRows * (p.nope + p.rope); i += kThreads) {
    const int r = i / (p.nope + p.rope), k = i % (p.nope + p.rope);
    const bool there = first + r < p.rows;
    const X* const q =
        static_cast<const X*>(p.q) + (p.first + first + r) * p.q_stride + head * (p.nope + p.rope);
    const float value = there ? tile::to_f32(q[k]) : 0.f;
    if (k < p.nope) {
      a[r * p.nope + k] = value;
    } else if (there) {
      p.queries[((first + r) * p.heads + head) * width + p.rank + k - p.nope] = value;
    }
  }
  __syncthreads();
  const W* const keys =
      static_cast<const W*>(p.kv_b) + static_cast<int64_t>(head) * (p.nope + p.v_dim) * p.rank;
  int columns = 1;  // threads per row of threads; they handle adjacent columns
  while (columns < groups && columns < kThreads) columns *= 2;
  const int lanes = kThreads / columns, lane = own / columns;
  for (int begin = 0; begin < groups; begin += columns) {
    const int column = (begin + own % columns) * N;
    float sum[kRows][N] = {};
    if (column < p.rank) {
#pragma unroll 4
      for (int i = lane; i < p.nope; i += lanes) {
        float w[N];
        tile::load(w, keys + static_cast<int64_t>(i) * p.rank + column);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int j = 0; j < N; ++j) sum[r][j] = fmaf(a[r * p.nope + i], w[j], sum[r][j]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      __syncthreads();
#pragma unroll
      for (int j = 0; j < N; ++j) sums[j * kThreads + own] = sum[r][j];
      __syncthreads();
      if (lane > 0 || column >= p.rank || first + r >= p.rows) continue;
      float* const to = p.queries + ((first + r) * p.heads + head) * width + column;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        float total = 0;
        for (int l = 0; l < lanes; ++l) total += sums[j * kThreads + l * columns + own];
        to[j] = total;
      }
    }
  }
}

// Shared memory of finish(), besides the latents [kRows][rank].
struct Joined {
  int64_t sequence[kRows];
  float total[kRows];  // sum of weights; 0 if there are no keys
};

// Adds up the splits of kRows rows of one head; zeros for rows without a sequence.
__device__ __forceinline__ void join(const Parameters& p, int64_t first, int head, Joined& joined,
                                     float* latents) {
  for (int r = 0; r < kRows; ++r) {
    if (joined.sequence[r] < 0) {
      for (int k = static_cast<int>(threadIdx.x); k < p.rank; k += kThreads) latents[r * p.rank + k] = 0;
      continue;
    }
    const int64_t part = ((first + r) * p.heads + head) * p.splits;
    const float* const scalars = p.scalars + part * kScalars;
    float largest = -INFINITY, sum = 0;
    for (int s = 0; s < p.splits; ++s)
      if (scalars[s * kScalars + 2] > 0) largest = fmaxf(largest, scalars[s * kScalars]);
    for (int k = static_cast<int>(threadIdx.x); k < p.rank; k += kThreads) {
      float latent = 0;
      for (int s = 0; s < p.splits; ++s)
        if (scalars[s * kScalars + 2] > 0)
          latent = fmaf(expf(scalars[s * kScalars] - largest), p.latents[(part + s) * p.rank + k], latent);
      latents[r * p.rank + k] = latent;
    }
    for (int s = 0; s < p.splits; ++s)
      if (scalars[s * kScalars + 2] > 0)
        sum = fmaf(expf(scalars[s * kScalars] - largest), scalars[s * kScalars + 1], sum);
    if (threadIdx.x == 0) joined.total[r] = sum;
  }
}

// Multiplies V_h by the latents of kRows rows. A CTA handles one head; a warp handles one row of V_h. N: adjacent columns per thread.
template <int N, class X, class W>
__global__ void __launch_bounds__(kThreads, 2) finish(const __grid_constant__ Parameters p) {
  extern __shared__ uint4 shared[];
  Joined& joined = *reinterpret_cast<Joined*>(shared);
  float* const latents = reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(shared) + sizeof(Joined));
  static_assert(sizeof(Joined) % 16 == 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int head = static_cast<int>(blockIdx.x);
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kRows;
  tile::release_next();
  tile::wait_for_previous();
  for (int r = 0; r < kRows; ++r)
    sequence_of(p, first + r < p.rows ? p.first + first + r : -1, joined.sequence + r);
  join(p, first, head, joined, latents);
  __syncthreads();
  const W* const values =
      static_cast<const W*>(p.kv_b) + (static_cast<int64_t>(head) * (p.nope + p.v_dim) + p.nope) * p.rank;
  for (int d = warp; d < p.v_dim; d += kWarps) {
    float sum[kRows] = {};
    for (int k = lane * N; k < p.rank; k += kWarp * N) {
      float v[N];
      tile::load(v, values + static_cast<int64_t>(d) * p.rank + k);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float latent[N];
        tile::load(latent, latents + r * p.rank + k);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[r] = fmaf(v[j], latent[j], sum[r]);
      }
    }
    float y = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float of_row = warp_sum(sum[r]);
      if (lane == r) y = of_row;
    }
    if (lane >= kRows || joined.sequence[lane] < 0) continue;
    const float total = joined.total[lane];
    static_cast<X*>(p.y)[(p.first + first + lane) * p.y_stride + head * p.v_dim + d] =
        tile::from_f32<X>(total == 0 ? 0.f : __fdividef(y, total));
  }
}

using Kernel = void (*)(Parameters);
struct Kernels {
  Kernel absorb, attend, finish;
};

template <int N, class X, class W>
Kernels kernels_for(const Problem& p) {
  const bool narrow = p.rank <= 2 * kThreads;
  return {absorb<N, X, W>, narrow ? attend<1, X> : attend<2, X>, finish<N, X, W>};
}
template <class X>
Kernels kernels_for(const Problem& p, bool wide) {
  constexpr int kWide = 8;
  if (p.w == DType::kBF16)
    return wide ? kernels_for<kWide, X, __nv_bfloat16>(p) : kernels_for<1, X, __nv_bfloat16>(p);
  return wide ? kernels_for<kWide, X, float>(p) : kernels_for<1, X, float>(p);
}

Status launch_rows(const Problem& p, const Parameters& parameters, const Kernels& kernels, bool wide,
                   Stream stream) {
  const auto kName = latent_attention_splits_sm90.name;
  const auto heads = static_cast<unsigned>(p.heads), rows = static_cast<unsigned>(parameters.rows),
             tiles = static_cast<unsigned>((parameters.rows + kRows - 1) / kRows);
  const auto each = static_cast<size_t>(wide ? 8 : 1), padded = static_cast<size_t>(parameters.padded),
             nope = static_cast<size_t>(p.nope), rank = static_cast<size_t>(p.rank);
  const Launch absorb{.grid = {heads, tiles, 1},
                      .block = {kThreads, 1, 1},
                      .shared_bytes = (kRows * nope + each * kThreads) * sizeof(float)};
  SLUICE_TRY(launch(kName, kernels.absorb, absorb, stream, parameters));
  const Launch attend{
      .grid = {static_cast<unsigned>(parameters.splits), (heads + kHeads - 1) / kHeads, rows},
      .block = {kThreads, 1, 1},
      .shared_bytes =
          kScratchBytes + padded * (kHeads * sizeof(float) + kKeys * static_cast<size_t>(bits_of(p.q) / 8))};
  SLUICE_TRY(launch(kName, kernels.attend, attend, stream, parameters));
  const Launch finish{.grid = {heads, tiles, 1},
                      .block = {kThreads, 1, 1},
                      .shared_bytes = sizeof(Joined) + kRows * rank * sizeof(float)};
  return launch(kName, kernels.finish, finish, stream, parameters);
}

Status Launcher::enqueue(const Problem& p, const LatentAttention::Args& a, Workspace w, Stream stream) {
  if (p.tokens == 0) return {};
  constexpr int64_t kWide = 8, kBytes = 16, kPair = 2 * kWarp;
  const auto aligned = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % kBytes == 0; };
  static_assert(kTile == kKeys && kScalarsOfPart == kScalars);
  const Splits s = splits_of(p);
  const int64_t width = p.rank + p.rope;
  auto* const queries = reinterpret_cast<float*>(w.data);
  float* const latents = queries + s.rows * p.heads * width;
  Parameters parameters{.q = a.q.data,
                        .kv_b = a.kv_b.data,
                        .cache = a.cache.data,
                        .page_table = a.page_table.as<const int32_t>(),
                        .q_begin = a.q_begin.as<const int32_t>(),
                        .kv_len = a.kv_len.as<const int32_t>(),
                        .y = a.y.data,
                        .q_stride = a.q.stride[0],
                        .y_stride = a.y.stride[0],
                        .first = 0,
                        .rows = 0,
                        .sequences = p.sequences,
                        .pages = p.pages,
                        .page_size = p.page_size,
                        .pages_per_seq = p.pages_per_seq,
                        .heads = static_cast<int>(p.heads),
                        .rank = static_cast<int>(p.rank),
                        .nope = static_cast<int>(p.nope),
                        .rope = static_cast<int>(p.rope),
                        .v_dim = static_cast<int>(p.v_dim),
                        .padded = static_cast<int>((width + kPair - 1) / kPair * kPair),
                        .split_keys = s.keys,
                        .splits = static_cast<int>(s.count),
                        .scale = static_cast<float>(p.scale),
                        .queries = queries,
                        .latents = latents,
                        .scalars = latents + s.rows * p.heads * s.count * p.rank,
                        .wide_cache = aligned(a.cache) && bytes_of(p.q, width) % kBytes == 0};
  const bool wide = p.rank % kWide == 0 && aligned(a.kv_b);
  const Kernels kernels =
      p.q == DType::kBF16 ? kernels_for<__nv_bfloat16>(p, wide) : kernels_for<float>(p, wide);
  for (; parameters.first < p.tokens; parameters.first += s.rows) {
    parameters.rows = std::min(s.rows, p.tokens - parameters.first);
    SLUICE_TRY(launch_rows(p, parameters, kernels, wide, stream));
  }
  return {};
}

}  // namespace

}  // namespace sluice::cuda
#endif
