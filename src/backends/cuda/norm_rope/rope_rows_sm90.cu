// Rope: a CTA rotates all pairs of one token row in place; a thread holds a few adjacent pairs of one head.
//
// Wins    always: it is the only kernel of Rope. It moves each byte once; all heads but the first read the token's part of
//         the table from L1.
// Loses   to rope_kv_write if keys go to a cache next, because that saves one launch.
// Limits  none beyond the contract; 16-byte accesses where sizes, row strides and addresses allow them.
// Source  original; the contract is ops/rope.h.
#include "backends/cuda/card.h"
#include "backends/cuda/norm_rope/rope_pairs.cuh"
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

namespace sluice::cuda {
namespace {

constexpr int kWarp = 32, kThreadsMax = 512;

struct Parameters {
  const int32_t* positions;
  const float* table;
  void* x;
  int64_t x_stride;  // elements between rows
  int64_t table_rows;
  int heads, head_dim, half, first;
};

template <int N, class X, RopePairs kPairs>
__global__ void __launch_bounds__(kThreadsMax) rope(const __grid_constant__ Parameters p) {
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
    float a[N], b[N];
    pairs.load(a, b);
    rotate_pairs(a, b, table + 2 * i);
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

bool aligned(const Rope::Args& a) {
  constexpr int64_t kBytes = 16;
  return reinterpret_cast<uintptr_t>(a.x.data) % kBytes == 0 &&
         reinterpret_cast<uintptr_t>(a.table.data) % kBytes == 0 &&
         bytes_of(a.x.dtype, a.x.stride[0]) % kBytes == 0;
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
  const int each = pairs_each(p, aligned(a));
  const Kernel kernel = each == kPairsApart   ? kernel_for<kPairsApart>(p)
                        : each == kPairsWoven ? kernel_for<kPairsWoven>(p)
                                              : kernel_for<1>(p);
  const int64_t groups = p.heads * (p.rotary / 2) / each;
  const int64_t threads = std::min<int64_t>((groups + kWarp - 1) / kWarp * kWarp, kThreadsMax);
  const Launch how{.grid = {static_cast<unsigned>(p.tokens), 1, 1},
                   .block = {static_cast<unsigned>(threads), 1, 1}};
  return launch(rope_rows_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
