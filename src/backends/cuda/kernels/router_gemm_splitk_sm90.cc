// Router GEMM for few tokens: 16 experts x 8 to 32 tokens a block, the sum split over a cluster of 8 blocks
// that push their parts into the owner's shared memory. A card: planned, not built.
//
// Wins    up to 128 tokens: one launch, every weight is in flight at once, no second kernel to reduce.
// Loses   more tokens: weights are read again for each 32 of them, and clusters start a second wave.
// Limits  see supports(). The split depends on hidden alone, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/router_gemm.h.
#include "backends/cuda/card.h"
#include "ops/router_gemm.h"

namespace sluice::cuda {
namespace {

constexpr int64_t kClusterBlocks = 8, kExpertsPerBlock = 16, kTokensPerBlock = 32;
constexpr double kResidentClusters = 30;    // of 8 blocks at two blocks an SM, as an H200 reports
constexpr double kBlockBytesPerUs = 1.1e5;  // 64 B a clock into one SM
constexpr double kLatencyUs = 2.05;         // launch, one dependent load, push through the cluster, store
constexpr double kWaveUs = 0.4;

Refusal supports(const RouterGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  need_type(r, "x", p.x, DType::kBF16, "mma.sync operand");
  need_type(r, "w", p.w, DType::kBF16, "mma.sync operand");
  need_multiple(r, "experts", p.experts, kExpertsPerBlock, "rows of an mma tile");
  need_multiple(r, "hidden", p.hidden, 16, "depth of an mma tile; 16-byte bulk copies");
  r.need(p.hidden >= 16 * kClusterBlocks, "hidden >= 128 (each block of the cluster takes a part)", "hidden",
         p.hidden);
  r.need(p.hidden <= 16384, "hidden <= 16384 (a part of 48 rows fits shared memory)", "hidden", p.hidden);
  r.need(p.tokens <= 128, "tokens <= 128 (weights are read again for each 32)", "tokens", p.tokens);
  return r;
}

double cost_us(const RouterGemm::Problem& p, const DeviceInfo& d) {
  const int64_t tiles = (std::max<int64_t>(p.tokens, 1) + kTokensPerBlock - 1) / kTokensPerBlock;
  const double clusters = static_cast<double>(p.experts / kExpertsPerBlock * tiles);
  const double waves = std::ceil(clusters / kResidentClusters);
  const double block_bytes =
      2.0 * static_cast<double>((kExpertsPerBlock + std::min(p.tokens, kTokensPerBlock)) * p.hidden) /
      static_cast<double>(kClusterBlocks);
  const double memory = 2.0 * static_cast<double>(p.experts * p.hidden) / d.mem_bytes_per_us;
  return kLatencyUs + std::max(memory, block_bytes / kBlockBytesPerUs) + kWaveUs * (waves - 1);
}

}  // namespace

extern const Candidate<RouterGemm> router_gemm_splitk_sm90 = {
    .name = "cuda.router_gemm.splitk_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouterGemm>,
    .enqueue = no_kernel<RouterGemm>,
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = true,
};

}  // namespace sluice::cuda
