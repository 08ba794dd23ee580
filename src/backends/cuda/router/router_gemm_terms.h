// The tiles of router_gemm_terms_sm90, and the cost model that chooses among them.
#pragma once
#include <vector>

#include "backends/cuda/router/router_gemm_tile.h"

namespace sluice::cuda {

// The compiled tiles.
constexpr RouterTile kRouterTermTiles[] = {{2, 48},  {2, 64}, {2, 80}, {2, 96},
                                           {2, 128}, {1, 64}, {1, 96}, {1, 128}};

// Predicted time of a plan in us, for f32 weights and bf16 activations.
double router_terms_us(const RouterGemm::Problem& problem, const RouterTilePlan& plan,
                       const DeviceInfo& device);

// The plan of least cost and the plans near it. Plans never multicast operands, because products take longer than copies.
std::vector<Config> router_terms_configs(const RouterGemm::Problem& problem, const DeviceInfo& device);

}  // namespace sluice::cuda
