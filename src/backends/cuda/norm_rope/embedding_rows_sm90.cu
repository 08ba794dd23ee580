// Embedding: a CTA copies one row of the table, each thread eight columns.
//
// Wins    always: it is the only kernel of Embedding. It moves each byte once.
// Loses   to a lookup fused with the first norm, which would save one launch per step; there is no such
//         kernel.
// Limits  none beyond the contract; 16-byte accesses where hidden, row strides and addresses allow them.
// Source  original; the contract is ops/embedding.h.
#include "backends/cuda/card.h"
#include "ops/embedding.h"

namespace sluice::cuda {
namespace {

Refusal supports(const Embedding::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

struct Launcher {
  static Status enqueue(const Embedding::Problem&, const Embedding::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<Embedding> embedding_rows_sm90 = {
    .name = "cuda.embedding.rows_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<Embedding>,
    .workspace_bytes = no_workspace<Embedding>,
    .enqueue = enqueue_of<Embedding, Launcher>(),
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

constexpr int kWide = 8, kWarp = 32, kThreadsMax = 512;

struct Parameters {
  const int32_t* ids;
  const void* table;
  void* y;
  int64_t y_stride;  // elements between rows
  int64_t vocab;
  int hidden;
};

// N: adjacent columns per thread.
template <int N, class W, class Y>
__global__ void __launch_bounds__(kThreadsMax) embedding(const __grid_constant__ Parameters p) {
  const int64_t token = blockIdx.x;
  Y* const y = static_cast<Y*>(p.y) + token * p.y_stride;
  tile::release_next();
  tile::wait_for_previous();
  const int64_t id = p.ids[token];
  const bool known = id >= 0 && id < p.vocab;
  const W* const row = static_cast<const W*>(p.table) + (known ? id : 0) * p.hidden;
  for (int column = static_cast<int>(threadIdx.x) * N; column < p.hidden;
       column += static_cast<int>(blockDim.x) * N) {
    float values[N] = {};
    if (known) tile::load(values, row + column);
    tile::store(y + column, values);
  }
}

using Kernel = void (*)(Parameters);

template <int N, class W>
Kernel kernel_for(DType y) {
  return y == DType::kBF16 ? embedding<N, W, __nv_bfloat16> : embedding<N, W, float>;
}
template <int N>
Kernel kernel_for(const Embedding::Problem& p) {
  return p.table == DType::kBF16 ? kernel_for<N, __nv_bfloat16>(p.y) : kernel_for<N, float>(p.y);
}

// True if every row is aligned to 16 bytes.
bool wide(const Tensor& t) {
  constexpr int64_t kBytes = 16;
  return reinterpret_cast<uintptr_t>(t.data) % kBytes == 0 && bytes_of(t.dtype, t.stride[0]) % kBytes == 0;
}

Status Launcher::enqueue(const Embedding::Problem& p, const Embedding::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  const Parameters parameters{.ids = a.ids.as<const int32_t>(),
                              .table = a.table.data,
                              .y = a.y.data,
                              .y_stride = a.y.stride[0],
                              .vocab = p.vocab,
                              .hidden = static_cast<int>(p.hidden)};
  const bool all_wide = p.hidden % kWide == 0 && wide(a.table) && wide(a.y);
  const int64_t groups = all_wide ? p.hidden / kWide : p.hidden;
  const int64_t threads = std::min<int64_t>((groups + kWarp - 1) / kWarp * kWarp, kThreadsMax);
  const Launch how{.grid = {static_cast<unsigned>(p.tokens), 1, 1},
                   .block = {static_cast<unsigned>(threads), 1, 1}};
  return launch(embedding_rows_sm90.name, all_wide ? kernel_for<kWide>(p) : kernel_for<1>(p), how, stream,
                parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
