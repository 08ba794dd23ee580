// Router GEMM and routing of few tokens in one launch (router_route_fewtokens.cuh).
//
// Wins    1 to 64 tokens where it accepts the problem: up to 0.8 us faster than the best pair of kernels, 0.4 us on average
//         (router_candidates.csv). It saves a launch and a round trip of the logits through memory.
// Loses   0.05 us at one token of 4096 x 256 with dependent launches. It refuses more tokens than its instances have, because every
//         tile of 8 or 16 tokens loads the weights again.
// Limits  see need_few() in router_route_fewtokens.h: routing that need_team() accepts, and partial logits that fit into the grid
//         words. The order of a sum depends only on hidden and experts, so the kernel is batch-invariant.
// Source  original; the contract is ops/fused/router_route.h.
#include "backends/cuda/router/router_route_fewtokens.h"

namespace sluice::cuda {
namespace {

Refusal supports(const RouterRoute::Problem& p, const DeviceInfo& d) {
  Refusal r;
  few::need_few(r, p, d);
  return r;
}

double cost_us(const RouterRoute::Problem& p, const DeviceInfo&) { return few::few_us(p); }

struct Launcher {
  static Status enqueue(const RouterRoute::Problem&, const RouterRoute::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<RouterRoute> router_route_fewtokens_sm90 = {
    .name = "cuda.router_route.fewtokens_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouterRoute>,
    .enqueue = enqueue_of<RouterRoute, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include <array>
#include <utility>

#include "backends/cuda/router/router_route_fewtokens.cuh"

namespace sluice::cuda {
namespace {

using Kernel = void (*)(few::Few);
// The kernels of an instance: for rows of x aligned to 16 bytes, and for any rows.
struct Kernels {
  Kernel wide, any_rows;
};
template <size_t... kIndex>
constexpr std::array<Kernels, sizeof...(kIndex)> kernels(std::index_sequence<kIndex...>) {
  return {Kernels{few::kernel_of<kIndex, few::Input::kWideRows>(),
                  few::kernel_of<kIndex, few::Input::kAnyRows>()}...};
}
constexpr auto kKernels = kernels(std::make_index_sequence<std::size(few::kInstances)>());

Status Launcher::enqueue(const RouterRoute::Problem& p, const RouterRoute::Args& a, Workspace,
                         Stream stream) {
  const few::Instance& i = *few::instance_for(p);
  const Kernels& kernels = kKernels[static_cast<size_t>(&i - few::kInstances)];
  const few::Few few = few::few_of(p, a, i, stream);
  return launch(router_route_fewtokens_sm90.name, few.gate.x_wide ? kernels.wide : kernels.any_rows,
                few::launch_of(few, i), stream, few);
}

}  // namespace
}  // namespace sluice::cuda
#endif
