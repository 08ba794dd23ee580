// The host's launches of the kernels of tiles.cuh: one for each entry of tile_kernels().
#pragma once
#include "backends/cuda/experts/tile/operands.cuh"
#include "backends/cuda/experts/tile/tile_call.h"
#include "backends/cuda/experts/tile/tiles.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/tensor_map.h"

namespace sluice::cuda {

#ifdef __CUDACC__

// Sets the rows of x that quantize_rows() wrote.
inline void set_fp8_rows(ExpertParameters& p, const TileCall& call) {
  p.width = static_cast<int>(call.args.x.shape[1]);
  p.x_scale = call.x_scale;
}

// Enqueues one launch. C::kRows says where args.x comes from.
// call.ordered: if the kernel gathers, a workspace of ordered_bytes().
template <class C>
Status launch_tiles(const TileCall& call) {
  const ExpertGemm::Problem& p = call.problem;
  const Queue& queue = queue_of(call.stream);
  const int tiles_at_once = queue.sms * C::kResident / C::kCtas;
  ExpertMaps<C> x{};
  const Tensor rows_of_x =
      C::kGathers ? make_tensor(call.ordered, DType::kBF16, {p.rows, p.width}, Backend::kCuda) : call.args.x;
  for (int i = 0; C::kBoxes && i < C::kMaps; ++i) {
    const int rows = (C::kNMin + i * C::kStepN) / (C::kSharesX ? 2 : 1);
    SLUICE_TRY(tile::map_rows(x.of[i], rows_of_x, C::kWholeBoxes ? rows : 1));
  }
  PairGather gather;
  if constexpr (C::kGathers)
    gather = pair_gather<C>(p, call.args, call.ordered, tiles_at_once, C::kRowsMax, C::kTileBlocks,
                            queue.grid_words);
  const TileShared at = tile_shared<C>(expert_list_bytes(static_cast<int>(p.experts)));
  const Launch how{.grid = {static_cast<unsigned>(tiles_at_once * C::kCtas), 1, 1},
                   .block = {C::kThreads, 1, 1},
                   .shared_bytes = static_cast<size_t>(at.bytes),
                   .cluster = {C::kCtas, 1, 1},
                   .cooperative = C::kGathers};
  const auto kernel = is_gated(p.act) ? expert_gemm_tiles<C, true> : expert_gemm_tiles<C, false>;
  ExpertParameters parameters = expert_parameters(p, call.args);
  if constexpr (C::kFp8X) set_fp8_rows(parameters, call);
  parameters.rows_min = call.launch.rows_min, parameters.rows_max = call.launch.rows_max;
  parameters.follows = call.launch.index > 0;
  if (C::kCuts > 1) parameters.cut_for = 1.f / static_cast<float>(tiles_at_once);
  parameters.expert_order = call.launch.order;
  parameters.tickets = queue.grid_words + call.launch.index * kTicketsApart;
  return launch(call.name, kernel, how, call.stream, parameters, at, x, gather);
}

template <WeightFormat kFormat>
struct BlocksOf {
  using Type = Bf16Blocks;
};
template <>
struct BlocksOf<Mxfp4Codes::kFormat> {
  using Type = Mxfp4Blocks;
};
template <>
struct BlocksOf<Nvfp4Codes::kFormat> {
  using Type = DecodedBlocks<Nvfp4Codes>;
};
template <>
struct BlocksOf<Mxfp8Codes::kFormat> {
  using Type = DecodedBlocks<Mxfp8Codes>;
};
template <>
struct BlocksOf<Fp8RowCodes::kFormat> {
  using Type = DecodedBlocks<Fp8RowCodes>;
};
template <>
struct BlocksOf<Fp8BlockCodes::kFormat> {
  using Type = DecodedBlocks<Fp8BlockCodes>;
};

// The formats with an x in FP8.
template <WeightFormat kFormat>
struct Fp8BlocksOf {
  using Codes = typename BlocksOf<kFormat>::Type::Codes;
  using Type = OperandBlocks<Fp8Codes<Codes>>;
};
template <>
struct Fp8BlocksOf<Mxfp4Codes::kFormat> {
  using Type = DecodedBlocks<Mxfp4Fp8Codes>;
};

template <WeightFormat kFormat, int kRow>
Status launch_tile(const TileCall& call) {
  return launch_tiles<ExpertTiles<typename BlocksOf<kFormat>::Type, tile_kernels(kFormat)[kRow]>>(call);
}
template <WeightFormat kFormat, int kRow>
Status launch_fp8_tile(const TileCall& call) {
  return launch_tiles<
      ExpertTiles<typename Fp8BlocksOf<kFormat>::Type, tile_kernels(kFormat, DType::kE4M3)[kRow]>>(call);
}

#endif

}  // namespace sluice::cuda
