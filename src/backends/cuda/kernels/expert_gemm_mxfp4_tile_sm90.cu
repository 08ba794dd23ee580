// Expert GEMM for many rows an expert, mxfp4 weights: tiles of 256 weight rows x up to 128 rows of x
// (expert_gemm_tile.cuh), a persistent grid.
//
// Wins    more than a few rows an expert: each weight that is dequantised serves up to 128 rows.
// Loses   fewer rows: SMs idle while the last tiles run. See mxfp4_stream_sm90.
// Limits  see supports(). Sums are never split, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/expert_gemm.h.
#include "backends/cuda/kernels/expert_gemm_tile.cuh"

#include "backends/cuda/card.h"
#include "backends/cuda/expert_cost.h"

namespace sluice::cuda {
namespace {

constexpr double kColumnsLeast = 8, kColumnsMost = 128;
constexpr double kTails = 1.07;  // SMs that idle while the last tiles run
// Rows of an expert up to which three warpgroups and longer stages are better.
constexpr double kFewRows = 48, kFewerRows = 22;

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kE2M1, "dequantised in registers");
  return r;
}

double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kFragmentBytes = 544, kL2Share = 1.1;
  const ExpertLoad load = expert_load(p);
  const ColumnTiles tiles = column_tiles(load.rows_each, kColumnsLeast, kColumnsMost);
  const FragmentTime time = fragment_time(tiles.columns);
  const double copy_ns = kFragmentBytes * d.cores / d.mem_bytes_per_us * 1e3;
  const double first_ns = std::max(time.compute_ns + time.copy_share * copy_ns, copy_ns);
  const double again_ns = kL2Share * time.compute_ns;  // the weights of further tiles come from L2
  const double fragments =
      load.active * static_cast<double>(ExpertGemm::weight_rows(p) / 64) * static_cast<double>(p.width / 16);
  return kRampUs + kTails * fragments * (first_ns + (tiles.tiles - 1) * again_ns) / d.cores / 1e3;
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
using Tiles = ExpertTiles<Mxfp4Blocks, kGroups, 2, kMost, kSteps>;

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  const double rows = expert_load(p).rows_each;
  if (rows > kFewRows) return launch_tiles<Tiles<2, 128, 1>>(expert_gemm_mxfp4_tile_sm90.name, p, a, stream);
  if (rows > kFewerRows) return launch_tiles<Tiles<3, 64, 2>>(expert_gemm_mxfp4_tile_sm90.name, p, a, stream);
  return launch_tiles<Tiles<3, 32, 3>>(expert_gemm_mxfp4_tile_sm90.name, p, a, stream);
}

}  // namespace

}  // namespace sluice::cuda
