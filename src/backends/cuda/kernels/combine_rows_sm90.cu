// Combine: a thread owns a few adjacent columns of one token and sums the experts' rows in the order of the slots.
//
// Wins    always so far: it moves its bytes once.
// Loses   to a combine inside the expert GEMM, once there is one.
// Limits  none beyond the contract; 16-byte accesses where hidden, row strides and addresses allow them.
// Source  original; the contract, order of the sum included, is ops/combine.h.
#include "backends/cuda/card.h"
#include "ops/combine.h"

namespace sluice::cuda {
namespace {

Refusal supports(const Combine::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  r.need(p.tokens <= 65535, "tokens <= 65535 (CTAs along one dimension of a grid)", "tokens", p.tokens);
  return r;
}

struct Launcher {
  static Status enqueue(const Combine::Problem&, const Combine::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<Combine> combine_rows_sm90 = {
    .name = "cuda.combine.rows_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<Combine>,
    .workspace_bytes = no_workspace<Combine>,
    .enqueue = enqueue_of<Combine, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/combine_rows.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 128, kSlotsMost = 64;

struct Parameters {
  const void *g, *bias, *shared, *residual;
  void* y;
  const int32_t *position, *ids;
  const float* weights;
  int64_t g_stride, shared_stride, residual_stride, y_stride;  // elements from row to row
  int hidden, slots;
  int64_t rows, experts;
  float scale;
  int settled, by_slot;  // by_slot: row s of g belongs to slot s, and `position` holds ids
};

// A slot's row; row < 0: the slot is empty.
struct Slot {
  int64_t row, expert;
  float weight;
};

// kAtOnce: slots whose loads are in flight together.
template <int N, int kAtOnce, class G, class B, class Y>
__global__ void __launch_bounds__(kThreads) combine(const __grid_constant__ Parameters p) {
  __shared__ Slot slots[kSlotsMost];
  const int64_t token = blockIdx.y;
  const int column = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * N;
  tile::release_next();
  if (!p.settled) tile::wait_for_previous();
  if (threadIdx.x < p.slots) {
    const int64_t flat = token * p.slots + threadIdx.x;
    const int64_t at = p.position[flat], row = !p.by_slot ? at : at >= 0 && at < p.experts ? flat : -1;
    const int64_t expert = p.ids ? p.ids[flat] : -1;
    slots[threadIdx.x] = {.row = row < p.rows ? row : -1,
                          .expert = expert < p.experts ? expert : -1,
                          .weight = p.weights ? p.weights[flat] : 1.f};
  }
  if (p.settled) tile::wait_for_previous();
  __syncthreads();
  if (column >= p.hidden) return;
  float sum[N] = {};
  for (int k = 0; k < p.slots; k += kAtOnce) {
    float value[kAtOnce][N];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t row = k + j < p.slots ? slots[k + j].row : -1;
      if (row >= 0) tile::load(value[j], static_cast<const G*>(p.g) + row * p.g_stride + column);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (k + j >= p.slots) break;
      const Slot slot = slots[k + j];
      if (slot.row < 0) continue;
      if (slot.expert >= 0) {
        float bias[N];
        tile::load(bias, static_cast<const B*>(p.bias) + slot.expert * p.hidden + column);
#pragma unroll
        for (int i = 0; i < N; ++i) value[j][i] += bias[i];
      }
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += slot.weight * value[j][i];
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] *= p.scale;
  const auto add = [&](const void* from, int64_t stride) {
    if (!from) return;
    float value[N];
    tile::load(value, static_cast<const Y*>(from) + token * stride + column);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += value[i];
  };
  add(p.shared, p.shared_stride);
  add(p.residual, p.residual_stride);
  tile::store(static_cast<Y*>(p.y) + token * p.y_stride + column, sum);
}

bool wide(const Tensor& t) {
  constexpr int64_t kBytes = 16;
  return !t.present() || (reinterpret_cast<uintptr_t>(t.data) % kBytes == 0 &&
                          bytes_of(t.dtype, t.rank > 1 ? t.stride[0] : 0) % kBytes == 0);
}

template <int N, int kAtOnce, class G, class B>
auto kernel_for(DType y) {
  return y == DType::kBF16 ? combine<N, kAtOnce, G, B, __nv_bfloat16> : combine<N, kAtOnce, G, B, float>;
}
template <int N, int kAtOnce, class G>
auto kernel_for(DType b, DType y) {
  return b == DType::kBF16 ? kernel_for<N, kAtOnce, G, __nv_bfloat16>(y)
                           : kernel_for<N, kAtOnce, G, float>(y);
}
template <int N, int kAtOnce>
auto kernel_for(const Combine::Problem& p) {
  return p.g == DType::kBF16 ? kernel_for<N, kAtOnce, __nv_bfloat16>(p.b, p.y)
                             : kernel_for<N, kAtOnce, float>(p.b, p.y);
}

Status launch_combine(std::string_view name, const Combine::Problem& p, const Combine::Args& a, bool by_slot,
                      Stream stream) {
  if (p.tokens == 0) return {};
  const Parameters parameters{.g = a.g.data,
                              .bias = a.bias.data,
                              .shared = a.shared.data,
                              .residual = a.residual.data,
                              .y = a.y.data,
                              .position = a.position.as<const int32_t>(),
                              .ids = a.ids.as<const int32_t>(),
                              .weights = a.weights.as<const float>(),
                              .g_stride = a.g.stride[0],
                              .shared_stride = a.shared.stride[0],
                              .residual_stride = a.residual.stride[0],
                              .y_stride = a.y.stride[0],
                              .hidden = static_cast<int>(p.hidden),
                              .slots = static_cast<int>(p.slots),
                              .rows = p.rows,
                              .experts = p.experts,
                              .scale = static_cast<float>(p.scale),
                              .settled = p.settled,
                              .by_slot = by_slot};
  constexpr int kWide = 8;
  bool all_wide = p.hidden % kWide == 0;
  for (const Tensor& t : {a.g, a.bias, a.shared, a.residual, a.y}) all_wide &= wide(t);
  // Few columns per thread, and the loads of all slots in flight at once, if there are enough threads for it: rows come from
  // L2 then, with one wait instead of one per slot. With two columns, one CTA per SM, for which a previous launch leaves room.
  constexpr int64_t kBlock = int64_t{132} * kThreads;
  const int64_t numbers = p.tokens * p.hidden;
  const int each = !all_wide ? 1 : numbers <= 2 * kBlock ? 2 : numbers <= 8 * 4 * kBlock ? 4 : kWide;
  const int columns = kThreads * each;
  const Launch how{
      .grid = {static_cast<unsigned>((p.hidden + columns - 1) / columns), static_cast<unsigned>(p.tokens), 1},
      .block = {kThreads, 1, 1}};
  const auto kernel = each == 8   ? kernel_for<8, 1>(p)
                      : each == 4 ? kernel_for<4, 4>(p)
                      : each == 2 ? kernel_for<2, 8>(p)
                                  : kernel_for<1, 1>(p);
  return launch(name, kernel, how, stream, parameters);
}

Status Launcher::enqueue(const Combine::Problem& p, const Combine::Args& a, Workspace, Stream stream) {
  return launch_combine(combine_rows_sm90.name, p, a, false, stream);
}

}  // namespace

Status launch_combine_by_slot(std::string_view name, const Combine::Problem& p, const Combine::Args& a,
                              Stream stream) {
  return launch_combine(name, p, a, true, stream);
}

}  // namespace sluice::cuda
#endif
