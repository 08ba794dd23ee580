// Expert GEMM for many rows an expert, bf16 weights: tiles of 256 weight rows x up to 192 rows of x
// (expert_gemm_tile.cuh), a persistent grid. Both operands of wgmma stand in shared memory.
//
// A wide tile is what the way from L2 asks for: per product 256 x 192 brings 23 % fewer bytes to an SM than 256 x 128.
//
// Wins    more than about 26 rows an expert: each weight that is read serves all of its expert's rows.
// Loses   fewer rows: SMs idle while the last tiles run. See bf16_stream_sm90.
// Limits  see supports(). Sums are never split, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/expert_gemm.h. Cost: from the rates of memory and tensor cores.
#include "backends/cuda/card.h"
#include "backends/cuda/expert_cost.h"
#include "backends/cuda/kernels/expert_gemm_tile.cuh"

namespace sluice::cuda {
namespace {

constexpr double kTails = 1.05;  // SMs that idle while the last tiles run

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kBF16, "wgmma operand");
  return r;
}

// Rows that hardly any expert has more of.
double rows_most(const ExpertGemm::Problem& p) {
  const double rows = expert_load(p).rows_each;
  return rows + std::sqrt(rows);
}

double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kColumnsLeast = 32, kColumnsMost = 192;
  const ExpertLoad load = expert_load(p);
  const ColumnTiles tiles = column_tiles(load.rows_each, kColumnsLeast, kColumnsMost);
  const double flops = 2 * load.active * tiles.tiles * tiles.columns *
                       static_cast<double>(ExpertGemm::weight_rows(p)) * static_cast<double>(p.width);
  const double tensor = flops / (kExpertTensorShare * d.bf16_flops_per_us);
  const double memory = ExpertGemm::bytes(p) / (kExpertMemoryShare * d.mem_bytes_per_us);
  return kRampUs + kTails * std::max(memory, tensor);
}

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream stream);

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_bf16_tile_sm90 = {
    .name = "cuda.expert_gemm.bf16_tile_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<ExpertGemm>,
    .enqueue = enqueue,
    .batch_invariant = true,
    .alignment_bytes = 16,
};

namespace {

template <int kMost>
using Tiles = ExpertTiles<Bf16Blocks, 2, 2, kMost, 1>;

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  const std::string_view kName = expert_gemm_bf16_tile_sm90.name;
  const double rows = rows_most(p);
  if (rows > 128) return launch_tiles<Tiles<192>>(kName, p, a, stream);
  if (rows > 64) return launch_tiles<Tiles<128>>(kName, p, a, stream);
  return launch_tiles<Tiles<64>>(kName, p, a, stream);
}

}  // namespace

}  // namespace sluice::cuda
