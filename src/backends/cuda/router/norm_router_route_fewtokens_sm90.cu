// RMS norm, router GEMM and routing of few tokens in one launch (router_route_fewtokens.cuh).
//
// Wins    1 to 64 tokens in the layers of gpt-oss and Qwen3: saves the launch of the norm, 0.5 us per layer of gpt-oss-20b on an H100
//         (docs/lab/cuda-step-launches.md).
// Loses   to the unfused kernels for more tokens.
// Limits  as router_route_fewtokens_sm90, and only softmax, before or after the choice of experts. Batch-invariant.
// Source  original; the contract is ops/fused/norm_router_route.h.
#include "ops/fused/norm_router_route.h"

#include "backends/cuda/router/router_route_fewtokens.h"

namespace sluice::cuda {
namespace {

using Problem = NormRouterRoute::Problem;

constexpr bool is_softmax(tile::TeamKind kind) {
  return kind == tile::kSoftmaxOfChosen || kind == tile::kSoftmaxRenormalized;
}

Refusal supports(const Problem& p, const DeviceInfo& d) {
  Refusal r;
  few::need_few(r, p.router, d);
  need_type(r, "norm_w", p.norm_w, DType::kBF16, "multiplies operands of the tensor cores");
  r.need(!p.x_unaligned, "rows of x and normed at multiples of 16 bytes", "x_unaligned=1");
  const few::Instance* i = few::instance_for(p.router);
  r.need(!i || is_softmax(i->kind), "a softmax method", "method=" + std::string(word(p.router.route.method)));
  return r;
}

// In the fused kernel the norm takes less time than a launch. Set by hand to match steps of one sequence (docs/lab/cuda-step-launches.md).
double cost_us(const Problem& p, const DeviceInfo&) {
  constexpr double kNormUs = 0.4;
  return few::few_us(p.router) + kNormUs;
}

struct Launcher {
  static Status enqueue(const Problem&, const NormRouterRoute::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<NormRouterRoute> norm_router_route_fewtokens_sm90 = {
    .name = "cuda.norm_router_route.fewtokens_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<NormRouterRoute>,
    .enqueue = enqueue_of<NormRouterRoute, Launcher>(),
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
template <size_t kIndex>
constexpr Kernel kernel_at() {
  if constexpr (is_softmax(few::kInstances[kIndex].kind)) {
    return few::kernel_of<kIndex, few::Input::kNormed>();
  } else {
    return nullptr;  // supports() refuses the problems of this instance
  }
}
template <size_t... kIndex>
constexpr std::array<Kernel, sizeof...(kIndex)> kernels(std::index_sequence<kIndex...>) {
  return {kernel_at<kIndex>()...};
}
constexpr auto kKernels = kernels(std::make_index_sequence<std::size(few::kInstances)>());

Status Launcher::enqueue(const Problem& p, const NormRouterRoute::Args& a, Workspace, Stream stream) {
  const few::Instance& i = *few::instance_for(p.router);
  few::Few few = few::few_of(p.router, a, i, stream);
  few.norm = {.weight = a.norm_weight.as<const few::Bf16>(),
              .normed = a.normed.as<few::Bf16>(),
              .stride = a.normed.stride[0],
              .eps = static_cast<float>(p.eps)};
  return launch(norm_router_route_fewtokens_sm90.name, kKernels[static_cast<size_t>(&i - few::kInstances)],
                few::launch_of(few, i), stream, few);
}

}  // namespace
}  // namespace sluice::cuda
#endif
