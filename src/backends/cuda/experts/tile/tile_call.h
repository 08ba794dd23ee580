// The host's parameters of a tile kernel launch.
#pragma once
#include <array>
#include <string_view>
#include <utility>

#include "backends/cuda/experts/cost/config.h"

namespace sluice::cuda {

struct TileCall {
  std::string_view name;  // name of the candidate
  const ExpertGemm::Problem& problem;
  const ExpertGemm::Args& args;
  Stream stream;
  TileLaunch launch;
  void* ordered;  // workspace for rows of tokens in y's order, of ordered_bytes()
};

// Launches kernel kRow of tile_kernels(kFormat). The experts/tile/tiles_*.cu files instantiate it, each for some kernels.
template <WeightFormat kFormat, int kRow>
Status launch_tile(const TileCall& call);

// Enqueues the launches of a configuration that tile_configs() listed.
Status enqueue_tiles(std::string_view name, const ExpertGemm::Problem& problem,
                     std::span<const KernelLaunch> launches, const ExpertGemm::Args& args,
                     Workspace workspace, Stream stream);

// Enqueues a copy, as a launch called `name`: row r of `to` becomes row order[r] / slots of args.x, if order[r] >=
// 0. Needs slots > 0, x in bf16, width % 8 == 0 and `to` aligned to 16 bytes; rows of x may start at any address.
Status order_rows(std::string_view name, const ExpertGemm::Problem& problem, const ExpertGemm::Args& args,
                  void* to, Stream stream);

}  // namespace sluice::cuda
