// Expert GEMM for many rows an expert, mxfp4 weights: tiles of 192 or 384 weight rows x 32 to 160 rows of x
// (expert_gemm_tile.cuh), a persistent grid. From kGatheredRows rows an expert on, rows of x that are gathered from tokens
// are copied to the workspace first, in their order: the copy engine then fetches them at a tenth of the instructions.
//
// Wins    more than a few rows an expert: each weight that is dequantised serves all of a tile's rows.
// Loses   fewer rows: SMs idle while the last tiles run. See mxfp4_stream_sm90.
// Limits  see supports(). Sums are never split, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/expert_gemm.h, the measurements are docs/notes/cuda-mxfp4.md.
#include "backends/cuda/kernels/expert_gemm_tile.cuh"

#include "backends/cuda/card.h"
#include "backends/cuda/expert_cost.h"

namespace sluice::cuda {
namespace {

// The tiles for up to so many rows an expert.
struct TileClass {
  double rows_most;
  int row_blocks, columns_least, columns_most;
};
constexpr TileClass kClasses[] = {{28, 6, 8, 32},  {46, 6, 32, 64},   {56, 6, 48, 80},
                                  {68, 6, 64, 80}, {104, 3, 64, 112}, {1e30, 3, 112, 160}};
constexpr double kGatheredRows = 46;

const TileClass& class_of(const ExpertGemm::Problem& p) {
  const double rows = expert_load(p).rows_each;
  const TileClass* found = kClasses;
  while (rows > found->rows_most) ++found;
  return *found;
}

bool gathers(const ExpertGemm::Problem& p) { return p.slots > 0 && expert_load(p).rows_each > kGatheredRows; }

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kE2M1, "dequantised in registers");
  return r;
}

// Tiles go round the SMs; a tile's time is that of its fragments.
double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kStartUs = 5.0, kFragmentsOfBlock = 4;
  const ExpertLoad load = expert_load(p);
  const TileClass& c = class_of(p);
  const ColumnTiles tiles = column_tiles(load.rows_each, c.columns_least, c.columns_most);
  const double row_blocks = std::ceil(static_cast<double>(ExpertGemm::weight_rows(p)) / 64);
  const double rounds = std::ceil(load.active * tiles.tiles * std::ceil(row_blocks / c.row_blocks) / d.cores);
  return kStartUs + (gathers(p) ? gather_us(p) : 0) +
         rounds * std::ceil(static_cast<double>(p.width) / 64) * c.row_blocks * kFragmentsOfBlock *
             tile_fragment_ns(tiles.columns) / 1e3;
}

size_t workspace_bytes(const ExpertGemm::Problem& p, const DeviceInfo&) {
  return gathers(p) ? gathered_bytes(p) : 0;
}

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace w, Stream stream);

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_tile_sm90 = {
    .name = "cuda.expert_gemm.mxfp4_tile_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue,
    .batch_invariant = true,
    .alignment_bytes = 16,
};

namespace {

template <RowsOfX kRows, int kGroups, int kBlocks, int kMost, int kFiner, int kLeast, int kSteps>
using Tiles = ExpertTiles<Mxfp4Blocks, kRows, kGroups, kBlocks, kMost, kFiner, kLeast, kSteps>;

template <RowsOfX kRows>
Status launch_few(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Stream stream) {
  const std::string_view name = expert_gemm_mxfp4_tile_sm90.name;
  if (class_of(p).columns_most == 32)
    return launch_tiles<Tiles<kRows, 3, 2, 32, 8, 8, 3>>(name, p, a, stream);
  return launch_tiles<Tiles<kRows, 3, 2, 64, 16, 32, 2>>(name, p, a, stream);
}

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace w, Stream stream) {
  if (p.rows == 0) return {};
  constexpr RowsOfX kRows = RowsOfX::kInOrder;
  const std::string_view name = expert_gemm_mxfp4_tile_sm90.name;
  ExpertGemm::Args ordered = a;
  if (gathers(p)) {
    SLUICE_TRY(gather_rows(name, p, a, w.data, stream));
    ordered.x = make_tensor(w.data, DType::kBF16, {p.rows, p.width}, Backend::kCuda);
  } else if (p.slots > 0 || !has_wide_rows(a.x)) {
    return launch_few<RowsOfX::kAnywhere>(p, a, stream);
  }
  switch (class_of(p).columns_most) {
    case 160:
      return launch_tiles<Tiles<kRows, 3, 1, 160, 16, 112, 2>>(name, p, ordered, stream);
    case 112:
      return launch_tiles<Tiles<kRows, 3, 1, 112, 16, 64, 3>>(name, p, ordered, stream);
    case 80:
      // A width less spares registers.
      if (class_of(p).columns_least == 64)
        return launch_tiles<Tiles<kRows, 3, 2, 80, 16, 64, 3>>(name, p, ordered, stream);
      return launch_tiles<Tiles<kRows, 3, 2, 80, 16, 48, 3>>(name, p, ordered, stream);
    default:
      return launch_few<kRows>(p, ordered, stream);
  }
}

}  // namespace

}  // namespace sluice::cuda
