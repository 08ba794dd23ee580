// Expert GEMM for many rows an expert, mxfp4 weights: tiles of 256 weight rows x up to 144 rows of x
// (expert_gemm_tile.cuh), a persistent grid.
//
// Wins    more than a few rows an expert: each weight that is dequantised serves up to 144 rows.
// Loses   fewer rows: SMs idle while the last tiles run. See mxfp4_stream_sm90.
// Limits  see supports(). Sums are never split, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/expert_gemm.h.
#include "backends/cuda/kernels/expert_gemm_tile.cuh"

#include "backends/cuda/card.h"
#include "backends/cuda/expert_cost.h"

namespace sluice::cuda {
namespace {

constexpr int kBlocks = 2;  // row blocks of a warpgroup
// Rows of an expert up to which three warpgroups and longer stages are better.
constexpr double kFewRows = 48, kFewerRows = 22;

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kE2M1, "dequantised in registers");
  return r;
}

// Tiles go round the SMs; a tile's time is that of its fragments.
double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kStartUs = 2.0, kFragmentsOfBlock = 4;
  const ExpertLoad load = expert_load(p);
  const bool many = load.rows_each > kFewRows;
  const ColumnTiles tiles = column_tiles(load.rows_each, 8,
                                         many                          ? 128
                                         : load.rows_each > kFewerRows ? 64
                                                                       : 32);
  const double blocks = kBlocks * (many ? 2 : 3);
  const double row_blocks = std::ceil(static_cast<double>(ExpertGemm::weight_rows(p)) / 64);
  const double rounds = std::ceil(load.active * tiles.tiles * std::ceil(row_blocks / blocks) / d.cores);
  return kStartUs + rounds * std::ceil(static_cast<double>(p.width) / 64) * blocks * kFragmentsOfBlock *
                        tile_fragment_ns(tiles.columns) / 1e3;
}

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream stream);

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_tile_sm90 = {
    .name = "cuda.expert_gemm.mxfp4_tile_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<ExpertGemm>,
    .enqueue = enqueue,
    .batch_invariant = true,
    .alignment_bytes = 16,
};

namespace {

template <int kGroups, int kMost, int kSteps>
using Tiles = ExpertTiles<Mxfp4Blocks, kGroups, kBlocks, kMost, kSteps>;

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  const double rows = expert_load(p).rows_each;
  if (rows > kFewRows) return launch_tiles<Tiles<2, 144, 1>>(expert_gemm_mxfp4_tile_sm90.name, p, a, stream);
  if (rows > kFewerRows) return launch_tiles<Tiles<3, 64, 2>>(expert_gemm_mxfp4_tile_sm90.name, p, a, stream);
  return launch_tiles<Tiles<3, 32, 3>>(expert_gemm_mxfp4_tile_sm90.name, p, a, stream);
}

}  // namespace

}  // namespace sluice::cuda
