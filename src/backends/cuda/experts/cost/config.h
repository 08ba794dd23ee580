// The tile kernels of the expert GEMMs as data: the compiled kernels, the parameters of a launch, and the launches of a configuration.
// Descriptors list configurations, decide() picks one, and enqueue runs its launches unchanged.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dispatch/candidate.h"
#include "ops/expert_gemm.h"

namespace sluice::cuda {

// The source of a tile kernel's rows of x.
enum class XSource : int32_t {
  kInOrder,   // row r of y is row r of x: one TMA box holds all rows of the tile, or half of them
  kGathered,  // rows of tokens; CTA pairs gather them into order while they multiply
  kRowBoxes,  // rows of tokens, one TMA box per row (CTA pairs)
  kThreads,   // rows at any address: producer threads copy 16 bytes at a time
};

// The operand that the two CTAs of a pair share.
enum class PairShares : int32_t { kNothing, kRowsOfX, kWeights };

// A compiled kernel. Sizes are per CTA. A pair has twice tile_m if it shares rows of x, and twice tile_n if it shares weights.
struct TileKernel {
  int tile_m;                   // weight rows; 64 or 128 per warpgroup
  int n_least, n_step, n_most;  // tile_n, rows of x: least, step, most
  int k_steps;                  // k blocks (64 values of k) per stage
  XSource x;
  PairShares shares = PairShares::kNothing;

  constexpr int ctas() const { return shares == PairShares::kNothing ? 1 : 2; }
  // Per tile: of the CTA, or of the pair.
  constexpr int64_t rows_of_weights() const { return shares == PairShares::kRowsOfX ? 2 * tile_m : tile_m; }
  constexpr int rows_of_x() const { return shares == PairShares::kWeights ? 2 * n_most : n_most; }
};

// mxfp4: three consumer warpgroups, which decode codes in registers. A small tile_n leaves room for stages of
// more k blocks, and the prologue of a stage costs the same for any number of k blocks. Steps of 8 keep the
// tensor cores from multiplying padding. ptxas has enough registers for two row blocks of 64 up to tile_n 80
// if rows are in order, otherwise up to 56.
inline constexpr TileKernel kMxfp4Tiles[] = {
    {384, 8, 8, 16, 5, XSource::kInOrder},
    {384, 8, 8, 24, 4, XSource::kInOrder},
    {384, 16, 8, 32, 3, XSource::kInOrder},
    {384, 24, 8, 40, 4, XSource::kInOrder},
    {384, 32, 8, 48, 3, XSource::kInOrder},
    {384, 40, 8, 56, 3, XSource::kInOrder},
    {384, 64, 16, 80, 3, XSource::kInOrder},
    {192, 64, 16, 112, 3, XSource::kInOrder},
    {192, 112, 16, 160, 2, XSource::kInOrder},
    {192, 112, 16, 160, 2, XSource::kInOrder, PairShares::kRowsOfX},
    {192, 160, 16, 192, 2, XSource::kInOrder, PairShares::kRowsOfX},
    {384, 8, 8, 16, 5, XSource::kThreads},
    {384, 8, 8, 24, 4, XSource::kThreads},
    {384, 16, 8, 32, 3, XSource::kThreads},
    {384, 24, 8, 40, 4, XSource::kThreads},
    {384, 32, 8, 48, 3, XSource::kThreads},
    {384, 40, 8, 56, 3, XSource::kThreads},
    {192, 64, 16, 112, 3, XSource::kThreads},
    {192, 112, 16, 160, 2, XSource::kThreads},
    {192, 64, 16, 112, 3, XSource::kRowBoxes, PairShares::kRowsOfX},
    {192, 112, 16, 160, 2, XSource::kRowBoxes, PairShares::kRowsOfX},
    {192, 160, 16, 192, 2, XSource::kRowBoxes, PairShares::kRowsOfX},
    {192, 112, 16, 160, 2, XSource::kGathered, PairShares::kRowsOfX},
};

// bf16: two consumer warpgroups; wgmma reads both operands from shared memory.
inline constexpr TileKernel kBf16Tiles[] = {
    {256, 64, 32, 128, 1, XSource::kInOrder},
    {256, 64, 32, 128, 1, XSource::kThreads},
    {256, 80, 16, 176, 1, XSource::kInOrder, PairShares::kRowsOfX},
    {256, 80, 16, 176, 1, XSource::kRowBoxes, PairShares::kRowsOfX},
    {256, 80, 8, 176, 1, XSource::kRowBoxes, PairShares::kRowsOfX},
    {128, 144, 16, 256, 1, XSource::kInOrder, PairShares::kRowsOfX},
    {128, 144, 8, 256, 1, XSource::kGathered, PairShares::kRowsOfX},
    {256, 80, 16, 176, 1, XSource::kInOrder, PairShares::kWeights},
    {256, 80, 16, 176, 1, XSource::kThreads, PairShares::kWeights},
    {256, 80, 8, 160, 1, XSource::kGathered, PairShares::kWeights},
    {128, 144, 16, 256, 1, XSource::kInOrder, PairShares::kWeights},
};

// All other formats: three consumer warpgroups with one row block each, because e4m3 takes twice the
// registers.
inline constexpr TileKernel kDecodedTiles[] = {
    {192, 16, 16, 64, 2, XSource::kThreads},
    {192, 64, 16, 112, 2, XSource::kThreads},
    {192, 112, 16, 160, 2, XSource::kThreads},
    {192, 112, 16, 160, 2, XSource::kInOrder, PairShares::kRowsOfX},
    {192, 112, 16, 160, 2, XSource::kRowBoxes, PairShares::kRowsOfX},
};

// The kernels for one weight format.
constexpr std::span<const TileKernel> tile_kernels(WeightFormat f) {
  return !f.scaled()                             ? std::span<const TileKernel>(kBf16Tiles)
         : f.is(DType::kE2M1, WeightScales::kMx) ? std::span<const TileKernel>(kMxfp4Tiles)
                                                 : std::span<const TileKernel>(kDecodedTiles);
}

// The order in which a launch takes its experts.
enum class ExpertOrder : int32_t {
  kGiven,
  kByWidth,  // experts with the widest tiles first, so that the shortest tiles run last
  kLong,     // as given; for more experts or tiles than a CTA can count
};

// One launch of a configuration: a kernel of tile_kernels(), and the range of row counts (both bounds included) of the experts that it
// serves. kernel -1: a launch that copies rows of tokens into order, into the workspace, for the launches after it.
struct TileLaunch {
  static constexpr int kOrderRows = -1;
  int kernel = 0;
  int rows_least = 1, rows_most = INT32_MAX;
  ExpertOrder order = ExpertOrder::kGiven;
  int index = 0;  // number of tile launches before it

  static TileLaunch of(const KernelLaunch& launch) {
    const auto& v = launch.value;
    return {v[0], v[1], v[2], static_cast<ExpertOrder>(v[3]), v[4]};
  }
  KernelLaunch launch() const {
    return {.value = {kernel, rows_least, rows_most, static_cast<int32_t>(order), index}};
  }
};

// A launch that computes both products in tiles (grouped_tiles.cuh).
struct GroupedLaunch {
  static constexpr int kExpertsMost = 512;  // one per thread of a CTA
  int kernel = 0;
  ExpertOrder order = ExpertOrder::kGiven;

  static GroupedLaunch of(const KernelLaunch& launch) {
    return {launch.value[0], static_cast<ExpertOrder>(launch.value[1])};
  }
  KernelLaunch launch() const { return {.value = {kernel, static_cast<int32_t>(order)}}; }
};

// One launch of a stream kernel. mxfp4: units of 64 weight rows with the whole sum x 8 or 16 rows of x. bf16: tiles of 64 (small) or 128
// weight rows x 32 rows of x; for short sums, units as for mxfp4, of 8 to 32 rows of x.
struct StreamLaunch {
  int columns = 32;
  bool short_sums = false;  // teams keep rows of x for several units
  bool small = false;
  ExpertOrder order = ExpertOrder::kGiven;

  static StreamLaunch of(const KernelLaunch& launch) {
    const auto& v = launch.value;
    return {v[0], v[1] != 0, v[2] != 0, static_cast<ExpertOrder>(v[3])};
  }
  KernelLaunch launch() const { return {.value = {columns, short_sums, small, static_cast<int32_t>(order)}}; }
  std::string name(DType w) const {
    if (w == DType::kBF16 && !short_sums) return small ? "64x32" : "128x32";
    return "n" + std::to_string(columns);
  }
};

// For `explain`.
std::string stream_launch_text(const ExpertGemm::Problem& problem, const KernelLaunch& launch);
// For `explain`: "384x64-80, rows of x in order, experts of 1 to 80 rows".
std::string tile_launch_text(const ExpertGemm::Problem& problem, const KernelLaunch& launch);

// The order in which a launch of this kernel takes the problem's experts.
ExpertOrder expert_order(const ExpertGemm::Problem& problem, const TileKernel& kernel);
// All configurations of the tile kernels for a problem, each with its cost or its refusal. Independent of any policy.
std::vector<Config> tile_configs(const ExpertGemm::Problem& problem, const DeviceInfo& device);

// Bytes of the ordered rows of tokens, bf16[rows, width].
size_t ordered_bytes(const ExpertGemm::Problem& problem);

}  // namespace sluice::cuda
