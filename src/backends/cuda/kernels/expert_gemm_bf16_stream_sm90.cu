// Expert GEMM for few rows an expert, bf16 weights: tiles of 128 or 64 weight rows and the whole sum x up to 32 rows of x
// (expert_gemm_tile.cuh), so that many SMs have a share of few experts and no sum crosses an SM.
//
// wgmma takes both operands from shared memory: 8 columns of a block of weights cost it a sixth of the time that the block
// needs to come from memory, in four instructions a warp.
//
// Where sums are short, of no more than four k blocks, and not of gates and ups, such a tile would be all beginning and end: teams
// take row blocks of the same expert one behind the other, by mma.sync (expert_stream_short.cuh).
//
// Wins    up to about 26 rows an expert: weights arrive at the rate of a plain stream.
// Loses   more rows: weights pass again for each 32 of them. See bf16_tile_sm90.
// Limits  see supports(). Sums are never split, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/expert_gemm.h. Cost: from the rate of memory.
#include "backends/cuda/card.h"
#include "backends/cuda/expert_cards.h"
#include "backends/cuda/expert_cost.h"

namespace sluice::cuda {
namespace {

constexpr int kShortMost = 32;       // rows of x of a unit of short sums
constexpr double kRows = 32;         // of x in a tile
constexpr int64_t kShortBlocks = 4;  // of a short sum

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kBF16, "wgmma operand");
  return r;
}

// Whether row blocks follow one another (expert_stream_short.cuh). Their sums have bits of their own, so it may depend on the
// shape alone, not on how many rows there are.
bool has_short_sums(const ExpertGemm::Problem& p) {
  return !is_gated(p.act) && ExpertGemm::fragments(p).k_blocks <= kShortBlocks &&
         p.experts <= kListExpertsMost;
}

// Short sums: fitted to the down products of Qwen3-235B under tensor-parallel 8 at 4 to 256 tokens on an H200, within 6%.
double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kL2Share = 0.6;  // of what weights cost from memory, when further tiles read them again
  constexpr double kShortRampUs = 1.7;
  const ExpertLoad load = expert_load(p);
  const double tiles = std::max(1.0, std::ceil((load.rows_each + std::sqrt(load.rows_each)) / kRows));
  const double memory = ExpertGemm::bytes(p) / (kExpertMemoryShare * d.mem_bytes_per_us);
  return (has_short_sums(p) ? kShortRampUs : kRampUs) + memory * (1 + kL2Share * (tiles - 1));
}

struct Launcher {
  static Status enqueue(const ExpertGemm::Problem&, const ExpertGemm::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_bf16_stream_sm90 = {
    .name = "cuda.expert_gemm.bf16_stream_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<ExpertGemm>,
    .enqueue = enqueue_of<ExpertGemm, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/expert_stream_short.cuh"
#include "backends/cuda/kernels/expert_gemm_tile.cuh"

namespace sluice::cuda {
namespace {

static_assert(is_short<kShortMost, Bf16Weights>(kShortBlocks));

// Two warpgroups of a row block each; or one, of which two share an SM: twice as many tiles, for few experts.
using Pairs = ExpertTiles<Bf16Blocks, RowsOfX::kAnywhere, 2, 1, 32, 16, 16, 2>;
using Singles = ExpertTiles<Bf16Blocks, RowsOfX::kAnywhere, 1, 1, 32, 16, 16, 2, 2>;

// By the rows of an expert on average, of which hardly one then has more than the columns.
Status enqueue_short(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Stream stream) {
  constexpr double kRowsOf8 = 5, kRowsOf16 = 9;
  const std::string_view name = expert_gemm_bf16_stream_sm90.name;
  const ExpertParameters parameters = expert_parameters(p, a);
  const double rows = std::min<double>(expert_load(p).rows_each, static_cast<double>(p.rows));
  return rows <= kRowsOf8    ? launch_short<8, Bf16Weights>(name, parameters, stream)
         : rows <= kRowsOf16 ? launch_short<16, Bf16Weights>(name, parameters, stream)
                             : launch_short<kShortMost, Bf16Weights>(name, parameters, stream);
}

Status Launcher::enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  const std::string_view name = expert_gemm_bf16_stream_sm90.name;
  if (has_short_sums(p)) return enqueue_short(p, a, stream);
  constexpr double kFewTiles = 4 * 132;  // with fewer, their number shows in how evenly SMs are loaded
  const double active = std::min<double>(expert_load(p).active, static_cast<double>(p.rows));
  const double pairs = active * static_cast<double>(ExpertGemm::fragments(p).row_blocks) / 2;
  return pairs < kFewTiles ? launch_tiles<Singles>(name, p, a, stream)
                           : launch_tiles<Pairs>(name, p, a, stream);
}

}  // namespace

}  // namespace sluice::cuda
#endif
