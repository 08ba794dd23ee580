// LoRA of experts on tensor cores, in one launch. A CTA, or a cluster of up to 8, computes a tile of up to 16 adjacent rows.
//
// The rows of a tile have one or several (adapter, expert) pairs. For each pair, all warps multiply the whole tile by A, each over its part
// of the columns, and keep the sums of the pair's rows. The warps of a CTA add up their sums in shared memory; then the CTAs of a cluster
// read each other's sums. A x is kept as two bf16 terms. Then each warp computes groups of 8 features: for each pair
// it multiplies A x by B and keeps the pair's rows; bias, activation and the store to y follow. Operands of mma.sync are loaded directly
// from global memory (tile/operand.cuh).
//
// Wins    for ranks above 16 or so, and for many rows.
// Loses   to rows_sm90 up to some 64 tokens of small ranks.
// Limits  see supports() below. The split of a sum depends on the configuration, so the kernel is not batch-invariant.
// Bytes   reads A and B of a pair once per tile that has a row with it.
// Source  original; the contract is ops/expert_lora.h; docs/lab/cuda-lora.md describes the design.
#include "backends/cuda/card.h"
#include "backends/cuda/experts/lora/lora_tile.h"
#include "ops/expert_lora.h"

namespace sluice::cuda {
namespace {

constexpr int kBlockMemory = 227 << 10;

// Rows per tile; CTAs per cluster.
struct Tile {
  int rows, blocks;
};
constexpr Tile kTiles[] = {{1, 8}, {2, 4}, {2, 2}, {8, 2}, {8, 1}, {16, 2}, {16, 1}};

int64_t parts(int64_t size, int64_t of) { return (size + of - 1) / of; }
int rows_of_product(const Tile& t) { return t.rows <= 8 ? 8 : 16; }

// Shared memory: the sums of each warp, of the CTA, and of the cluster, each [rows][pitch]. The padding of 8 floats puts the rows that half
// a warp stores into different banks. The cluster's sums are two bf16 terms, which take as much memory as floats.
int pitch_of(const ExpertLora::Problem& p) { return static_cast<int>(ExpertLora::inner(p)) + 8; }
size_t shared_bytes(const ExpertLora::Problem& p, const Tile& t) {
  return sizeof(float) * static_cast<size_t>((kLoraWarps + 2) * rows_of_product(t) * pitch_of(p));
}

Refusal supports(const ExpertLora::Problem& p, const DeviceInfo& d) {
  Refusal r = lora_refusal(p, d, "operand of mma.sync");
  r.need(p.width >= 128, "width >= 128 (shorter sums may miss their bound on tensor cores)", "width",
         p.width);
  r.need(p.rank <= 256, "rank <= 256 (each warp's sums in shared memory)", "rank", p.rank);
  return r;
}

// The expected number of different (adapter, expert) pairs in a tile. Rows are sorted by expert and then by token. Up to 256 tokens are
// taken for a decode step, whose neighbors have independent adapters; in longer calls the tokens of an adapter are adjacent.
double pairs_of_tile(const ExpertLora::Problem& p, const Tile& t) {
  constexpr int64_t kDecodeTokens = 256;
  const double of_expert = std::max(1.0, ExpertLora::expected_rows(p) / static_cast<double>(p.experts));
  const double experts = std::min<double>(t.rows, 1 + (t.rows - 1) / of_expert), rows = t.rows / experts,
               adapters = static_cast<double>(p.adapters);
  const double each = p.tokens <= kDecodeTokens ? adapters * (1 - std::pow(1 - 1 / adapters, rows))
                                                : std::min(rows, 1 + (adapters - 1) * rows / of_expert);
  return std::min<double>(t.rows, experts * each);
}

// Fitted to gpt-oss-20b and 120b before pairs were read together. On the rows of expert_lora_candidates.csv, measured since, the error is 19%
// (RMS); the chosen configuration takes 0.7% more time than the best one in the mean, 14% at most.
struct Constants {
  double launch_us = 0.27;
  double start_us = 2.8;        // of a CTA: finding its rows, and the first loads
  double cluster_us = 0.13;     // the exchange between CTAs
  double pair_us = 0.12;        // per pair of a tile
  double inner_us = 4.2e-5;     // per element of A of a pair
  double feature_us = 3.4e-3;   // per row of B of a pair and 32 of rank
  double wide_share = 1.57;     // the same for tiles of 16 rows, relative to tiles of up to 8
  double epilogue_us = 3.3e-4;  // per row of B and 8 rows of the tile
  double together = 1.82;       // time of two CTAs on an SM, relative to one
};
constexpr Constants kCost;

double tile_us(const ExpertLora::Problem& p, const DeviceInfo& d, const Tile& t) {
  const double tiles = std::ceil(std::max(1.0, ExpertLora::expected_rows(p)) / t.rows),
               pairs = pairs_of_tile(p, t);
  const bool wide = rows_of_product(t) == 16;
  const double rows_of_b = static_cast<double>(ExpertLora::product_rows(p)) / t.blocks;
  const double a_us =
      pairs *
      (kCost.pair_us + kCost.inner_us * static_cast<double>(ExpertLora::inner(p) * p.width) / t.blocks);
  const double b_us = rows_of_b * (pairs * kCost.feature_us * static_cast<double>(parts(p.rank, kLoraUnit)) *
                                       (wide ? kCost.wide_share : 1) +
                                   kCost.epilogue_us * (wide ? 2 : 1));
  const double of_an_sm = tiles * t.blocks / d.cores;
  const double rounds = of_an_sm < 8 ? std::ceil(of_an_sm / 2) : of_an_sm / 2;  // two CTAs on an SM
  const double time = of_an_sm <= 1   ? 1
                      : of_an_sm <= 2 ? 1 + (kCost.together - 1) * (of_an_sm - 1)
                                      : kCost.together * rounds;
  return kCost.launch_us + (t.blocks > 1 ? kCost.cluster_us : 0) +
         std::max((kCost.start_us + a_us + b_us) * time, ExpertLora::bytes(p) / d.mem_bytes_per_us);
}

std::vector<Config> configs(const ExpertLora::Problem& p, const DeviceInfo& d) {
  std::vector<Config> out;
  for (const Tile& t : kTiles) {
    Config config{.name = std::to_string(t.rows) + "x" + std::to_string(t.blocks),
                  .cost_us = tile_us(p, d, t),
                  .launches = {{.value = {t.rows, t.blocks}}}};
    const size_t bytes = shared_bytes(p, t);
    config.refusal.need(bytes <= kBlockMemory, "sums within 227 KiB of shared memory", "bytes",
                        static_cast<int64_t>(bytes));
    out.push_back(std::move(config));
  }
  return out;
}

std::string launch_text(const ExpertLora::Problem&, const KernelLaunch& launch) {
  return "tiles of " + std::to_string(launch.value[0]) +
         " rows, the columns and features of one split among " + std::to_string(launch.value[1]) + " CTAs";
}

struct Launcher {
  static Status enqueue(const ExpertLora::Problem&, std::span<const KernelLaunch>, const ExpertLora::Args&,
                        Workspace, Stream);
};

}  // namespace

extern const Candidate<ExpertLora> expert_lora_mma_sm90 = {
    .name = "cuda.expert_lora.mma_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .enqueue_config = enqueue_config_of<ExpertLora, Launcher>(),
    .launch_text = launch_text,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/experts/lora/lora_mma.cuh"
#include "backends/cuda/launch.h"

namespace sluice::cuda {
namespace {

using namespace lora_mma;

template <int kRows, bool kGated>
auto kernel_for(int inner) {
  // kFlight: units that a warp loads at once; as many as leave enough registers for two CTAs per SM.
  return inner <= 16 ? expert_lora_mma<kRows, 16, 4, kGated> : expert_lora_mma < kRows, 32,
         kRows == 8 ? 3 : 2, kGated > ;
}

Status Launcher::enqueue(const ExpertLora::Problem& p, std::span<const KernelLaunch> launches,
                         const ExpertLora::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  const Tile tile{launches[0].value[0], launches[0].value[1]};
  MmaParameters parameters = mma_parameters(p, a);
  parameters.tile = tile.rows, parameters.blocks = tile.blocks;
  parameters.units = static_cast<int>(parts(parts(p.width, kLoraUnit), int64_t{tile.blocks} * kLoraWarps));
  parameters.pitch = pitch_of(p);
  constexpr int64_t kRowsOfOwnPairs = 4096;  // with more rows, other tiles have read most pairs before
  parameters.prefetches = p.rows <= kRowsOfOwnPairs;
  const bool gated = is_gated(p.act);
  const int inner = parameters.inner;
  const auto kernel = rows_of_product(tile) == 8
                          ? gated ? kernel_for<8, true>(inner) : kernel_for<8, false>(inner)
                      : gated ? kernel_for<16, true>(inner)
                              : kernel_for<16, false>(inner);
  const auto blocks = static_cast<unsigned>(tile.blocks);
  const Launch how{.grid = {static_cast<unsigned>(parts(p.rows, tile.rows)) * blocks, 1, 1},
                   .block = {kLoraThreads, 1, 1},
                   .shared_bytes = shared_bytes(p, tile),
                   .cluster = {blocks, 1, 1}};
  return launch(expert_lora_mma_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
