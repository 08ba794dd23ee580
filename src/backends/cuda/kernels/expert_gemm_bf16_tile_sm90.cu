// Expert GEMM for many rows an expert, bf16 weights: tiles of 128 or 256 weight rows x 128 to 256 rows of x
// (expert_gemm_tile.cuh), a persistent grid. Both operands of wgmma stand in shared memory. From kGatheredRows rows an expert
// on, rows of x that are gathered from tokens are copied to the workspace first, in their order, for the copy engine.
//
// Wins    more than about 26 rows an expert: each weight that is read serves all of its expert's rows.
// Loses   fewer rows: SMs idle while the last tiles run. See bf16_stream_sm90.
// Limits  see supports(). Sums are never split, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/expert_gemm.h, the measurements are docs/notes/cuda-bf16-experts.md.
#include "backends/cuda/card.h"
#include "backends/cuda/expert_cost.h"
#include "backends/cuda/kernels/expert_gemm_tile.cuh"

namespace sluice::cuda {
namespace {

constexpr double kTails = 1.05;  // SMs that idle while the last tiles run

// The tiles for up to so many rows an expert, as measured. One tile where all rows fit, at 192 to 256 columns; two of 128
// beat one of 256 and a short one; from there on 128 x 256 has shorter tails than 256 x 192.
struct TileClass {
  double rows_most;
  int columns_most;
};
constexpr TileClass kClasses[] = {{90, 128}, {160, 192}, {215, 256}, {300, 128}, {1e30, 256}};
constexpr double kGatheredRows = 90;

int columns_most(const ExpertGemm::Problem& p) {
  const double rows = expert_load(p).rows_each;
  const TileClass* found = kClasses;
  while (rows > found->rows_most) ++found;
  return found->columns_most;
}

bool gathers(const ExpertGemm::Problem& p) { return p.slots > 0 && expert_load(p).rows_each > kGatheredRows; }

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kBF16, "wgmma operand");
  return r;
}

double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kColumnsLeast = 64;
  const ExpertLoad load = expert_load(p);
  const ColumnTiles tiles = column_tiles(load.rows_each, kColumnsLeast, columns_most(p));
  const double flops = 2 * load.active * tiles.tiles * tiles.columns *
                       static_cast<double>(ExpertGemm::weight_rows(p)) * static_cast<double>(p.width);
  const double tensor = flops / (kExpertTensorShare * d.bf16_flops_per_us);
  const double memory = ExpertGemm::bytes(p) / (kExpertMemoryShare * d.mem_bytes_per_us);
  return kRampUs + (gathers(p) ? gather_us(p) : 0) + kTails * std::max(memory, tensor);
}

size_t workspace_bytes(const ExpertGemm::Problem& p, const DeviceInfo&) {
  return gathers(p) ? gathered_bytes(p) : 0;
}

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace w, Stream stream);

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_bf16_tile_sm90 = {
    .name = "cuda.expert_gemm.bf16_tile_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue,
    .batch_invariant = true,
    .alignment_bytes = 16,
};

namespace {

template <RowsOfX kRows, int kBlocks, int kMost, int kFiner, int kLeast>
using Tiles = ExpertTiles<Bf16Blocks, kRows, 2, kBlocks, kMost, kFiner, kLeast, 1>;

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace w, Stream stream) {
  if (p.rows == 0) return {};
  constexpr RowsOfX kRows = RowsOfX::kInOrder;
  const std::string_view name = expert_gemm_bf16_tile_sm90.name;
  ExpertGemm::Args ordered = a;
  if (gathers(p)) {
    SLUICE_TRY(gather_rows(name, p, a, w.data, stream));
    ordered.x = make_tensor(w.data, DType::kBF16, {p.rows, p.width}, Backend::kCuda);
  } else if (p.slots > 0 || !has_wide_rows(a.x)) {
    return launch_tiles<Tiles<RowsOfX::kAnywhere, 2, 128, 32, 64>>(name, p, a, stream);
  }
  switch (columns_most(p)) {
    case 256:
      return launch_tiles<Tiles<kRows, 1, 256, 32, 160>>(name, p, ordered, stream);
    case 192:
      return launch_tiles<Tiles<kRows, 2, 192, 32, 96>>(name, p, ordered, stream);
    default:
      return launch_tiles<Tiles<kRows, 2, 128, 32, 64>>(name, p, ordered, stream);
  }
}

}  // namespace

}  // namespace sluice::cuda
