// Combine: a thread computes a few adjacent columns of one token, adding up the experts' rows in the order of the slots.
//
// Wins    always: it is the only kernel of Combine. It moves each byte once.
// Loses   to kernels that need no Combine launch: combine_norm_rows_sm90 if a norm follows, expert_mlp_mxfp4_slices_sm90 for few slots.
// Limits  tokens <= 65535, because each token has its own CTAs along y of the grid; 16-byte accesses where
//         hidden, row strides and addresses allow them.
// Source  original; the contract, including the order of the sum, is ops/combine.h.
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
#include "backends/cuda/routing/combine_rows.cuh"

namespace sluice::cuda {
namespace {

using namespace combining;

constexpr int kThreads = 128;

template <int N, int kAtOnce, class G, class B, class Y>
__global__ void __launch_bounds__(kThreads) combine(const __grid_constant__ Parameters p) {
  __shared__ Slots slots;
  const int64_t token = blockIdx.y;
  const int column = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * N;
  tile::release_next();
  find_slots(p, token, slots);
  if (column >= p.hidden) return;
  float sum[N];
  sum_slots<N, kAtOnce, G, B, Y>(p, token, slots, column, sum);
  tile::store(static_cast<Y*>(p.y) + token * p.y_stride + column, sum);
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
  const Parameters parameters = parameters_of(p, a, by_slot);
  // If there are enough threads, each has few columns and loads the rows of all slots
  // at once, so it waits once for L2 instead of once per slot. With two columns per
  // thread there is one CTA per SM, for which a previous launch leaves room.
  constexpr int64_t kBlock = int64_t{132} * kThreads;
  const int64_t numbers = p.tokens * p.hidden;
  const int each = !all_wide(p, a) ? 1 : numbers <= 2 * kBlock ? 2 : numbers <= 8 * 4 * kBlock ? 4 : kWide;
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
