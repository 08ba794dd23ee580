// Rope: a CTA turns all pairs of one token's row, in place; a thread holds a few adjacent pairs of one head.
//
// Wins    always so far: it moves its bytes once, and a token's part of the table is read from L1 by all heads but the first.
// Loses   to a turn inside the product that makes q and k, once there is one.
// Limits  none beyond the contract; 16-byte accesses where sizes, row strides and addresses allow them.
// Source  original; the contract is ops/rope.h.
#include "backends/cuda/card.h"
#include "ops/rope.h"

namespace sluice::cuda {
namespace {

Refusal supports(const Rope::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

struct Launcher {
  static Status enqueue(const Rope::Problem&, const Rope::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<Rope> rope_rows_sm90 = {
    .name = "cuda.rope.rows_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<Rope>,
    .workspace_bytes = no_workspace<Rope>,
    .enqueue = enqueue_of<Rope, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarp = 32, kThreadsMost = 512;

struct Parameters {
  const int32_t* positions;
  const float* table;
  void* x;
  int64_t x_stride;  // elements from row to row
  int64_t table_rows;
  int heads, head_dim, half, first;
};

// N adjacent pairs of elements. One pair is aligned to its elements alone.
template <int N, class T>
__device__ __forceinline__ void load_pairs(float (&out)[2 * N], const T* p) {
  if constexpr (N == 1)
    out[0] = tile::to_f32(p[0]), out[1] = tile::to_f32(p[1]);
  else
    tile::load(out, p);
}

// N adjacent pairs of one head, from pair i on.
template <int N, class X, RopePairs kPairs>
struct Pairs {
  X* x;  // the elements of the head that turn
  int half, i;

  __device__ __forceinline__ void load(float (&a)[N], float (&b)[N]) const {
    if constexpr (kPairs == RopePairs::kHalves) {
      tile::load(a, x + i);
      tile::load(b, x + half + i);
    } else {
      float both[2 * N];
      load_pairs<N>(both, x + 2 * i);
#pragma unroll
      for (int j = 0; j < N; ++j) a[j] = both[2 * j], b[j] = both[2 * j + 1];
    }
  }
  __device__ __forceinline__ void store(const float (&a)[N], const float (&b)[N]) const {
    if constexpr (kPairs == RopePairs::kHalves) {
      tile::store(x + i, a);
      tile::store(x + half + i, b);
    } else {
      float both[2 * N];
#pragma unroll
      for (int j = 0; j < N; ++j) both[2 * j] = a[j], both[2 * j + 1] = b[j];
      if constexpr (N == 1)
        x[2 * i] = tile::from_f32<X>(both[0]), x[2 * i + 1] = tile::from_f32<X>(both[1]);
      else
        tile::store(x + 2 * i, both);
    }
  }
};

template <int N, class X, RopePairs kPairs>
__global__ void __launch_bounds__(kThreadsMost) rope(const __grid_constant__ Parameters p) {
  const int64_t token = blockIdx.x;
  X* const row = static_cast<X*>(p.x) + token * p.x_stride + p.first;
  tile::release_next();
  tile::wait_for_previous();
  const int64_t position = p.positions[token];
  if (position < 0 || position >= p.table_rows) return;
  const float* const table = p.table + position * p.half * 2;
  const int of_head = p.half / N, groups = p.heads * of_head;
  for (int group = static_cast<int>(threadIdx.x); group < groups; group += static_cast<int>(blockDim.x)) {
    const int head = group / of_head, i = group % of_head * N;
    const Pairs<N, X, kPairs> pairs{row + head * p.head_dim, p.half, i};
    float a[N], b[N], turn[2 * N];
    pairs.load(a, b);
    load_pairs<N>(turn, table + 2 * i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float c = turn[2 * j], s = turn[2 * j + 1], u = a[j], v = b[j];
      a[j] = fmaf(u, c, -(v * s));
      b[j] = fmaf(v, c, u * s);
    }
    pairs.store(a, b);
  }
}

using Kernel = void (*)(Parameters);

template <int N, class X>
Kernel kernel_for(RopePairs pairs) {
  return pairs == RopePairs::kHalves ? rope<N, X, RopePairs::kHalves> : rope<N, X, RopePairs::kInterleaved>;
}
template <int N>
Kernel kernel_for(const Rope::Problem& p) {
  return p.x == DType::kBF16 ? kernel_for<N, __nv_bfloat16>(p.pairs) : kernel_for<N, float>(p.pairs);
}

// Whether groups of `pairs` pairs are made of 16-byte accesses.
bool wide(const Rope::Problem& p, const Rope::Args& a, int64_t pairs) {
  constexpr int64_t kBytes = 16;
  const auto whole = [&](int64_t elements) { return bytes_of(p.x, elements) % kBytes == 0; };
  const bool halves = p.pairs == RopePairs::kHalves;
  return p.rotary / 2 % pairs == 0 && reinterpret_cast<uintptr_t>(a.x.data) % kBytes == 0 &&
         reinterpret_cast<uintptr_t>(a.table.data) % kBytes == 0 && whole(a.x.stride[0]) &&
         whole(p.head_dim) && whole(p.first) && whole(halves ? p.rotary / 2 : p.rotary);
}

Status Launcher::enqueue(const Rope::Problem& p, const Rope::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  const Parameters parameters{.positions = a.positions.as<const int32_t>(),
                              .table = a.table.as<const float>(),
                              .x = a.x.data,
                              .x_stride = a.x.stride[0],
                              .table_rows = p.table_rows,
                              .heads = static_cast<int>(p.heads),
                              .head_dim = static_cast<int>(p.head_dim),
                              .half = static_cast<int>(p.rotary / 2),
                              .first = static_cast<int>(p.first)};
  // 16 bytes are eight elements of bf16: as many pairs where their halves lie apart, half as many where they are woven.
  constexpr int kApart = 8, kWoven = 4;
  const int each = p.pairs == RopePairs::kHalves && wide(p, a, kApart)        ? kApart
                   : p.pairs == RopePairs::kInterleaved && wide(p, a, kWoven) ? kWoven
                                                                              : 1;
  const Kernel kernel = each == kApart   ? kernel_for<kApart>(p)
                        : each == kWoven ? kernel_for<kWoven>(p)
                                         : kernel_for<1>(p);
  const int64_t groups = p.heads * (p.rotary / 2) / each;
  const int64_t threads = std::min<int64_t>((groups + kWarp - 1) / kWarp * kWarp, kThreadsMost);
  const Launch how{.grid = {static_cast<unsigned>(p.tokens), 1, 1},
                   .block = {static_cast<unsigned>(threads), 1, 1}};
  return launch(rope_rows_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
