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
  void* ordered;  // workspace of ordered_bytes() for the tokens' rows in y's order
  // The scales of x in FP8. args.x then describes rows of FP8 bytes as bf16 rows with half as many elements.
  const float* x_scale = nullptr;
};

// Launches kernel kRow of tile_kernels(kFormat). The experts/tile/tiles_*.cu files instantiate it, each for some kernels.
template <WeightFormat kFormat, int kRow>
Status launch_tile(const TileCall& call);
// The same for an x in FP8: kernel kRow of tile_kernels(kFormat, DType::kE4M3).
template <WeightFormat kFormat, int kRow>
Status launch_fp8_tile(const TileCall& call);

// Enqueues the launches of a configuration that tile_configs() listed.
Status enqueue_tiles(std::string_view name, const ExpertGemm::Problem& problem,
                     std::span<const KernelLaunch> launches, const ExpertGemm::Args& args,
                     Workspace workspace, Stream stream);

// Enqueues a copy, as a launch called `name`: row r of `to` becomes row order[r] / slots of args.x, if order[r] >=
// 0. Needs slots > 0, x in bf16, width % 8 == 0 and `to` aligned to 16 bytes; rows of x may start at any address.
Status order_rows(std::string_view name, const ExpertGemm::Problem& problem, const ExpertGemm::Args& args,
                  void* to, Stream stream);

// Enqueues a launch that rounds rows of args.x to FP8, as fp8_x of ops/expert_gemm.h says: rows of x if they are tokens or in y's
// order, or (`orders`) rows in y's order, gathered from tokens. Sets x and scale to them, in `to` of fp8_bytes(). A row has
// fp8_row_bytes() bytes: columns in the order of fragment_column8(), then zeros. Rows of x may start at any address.
Status quantize_rows(std::string_view name, const ExpertGemm::Problem& problem, const ExpertGemm::Args& args,
                     bool orders, void* to, Stream stream, Tensor* x, const float** scale);

}  // namespace sluice::cuda
