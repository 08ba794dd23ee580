// The tile kernels of the expert GEMMs as data: the compiled kernels, the parameters of a launch, and the launches of
// a configuration. Kernel descriptors list the configurations, decide() chooses one, and enqueue() runs its launches.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dispatch/candidate.h"
#include "ops/expert_gemm.h"

namespace sluice::cuda {

// Where a tile kernel's rows of x come from, and how they reach shared memory.
enum class XSource : int32_t {
  kInOrder,   // row r of x belongs to row r of y: one TMA box holds all of a tile's rows, or half of them
  kGathered,  // rows of tokens; CTA pairs copy them into y's order in a workspace while they multiply
  kRowBoxes,  // rows of tokens, loaded with one TMA box per row (CTA pairs)
  kThreads,   // rows at any address; producer threads copy them, 16 bytes at a time
};

// The operand that is loaded once for both CTAs of a pair.
enum class PairShares : int32_t { kNothing, kRowsOfX, kWeights };

// A compiled kernel. Sizes are per CTA. The tile of a pair is 2 x tile_m high if the CTAs share rows of x, and 2 x tile_n wide if they share weights.
struct TileKernel {
  int tile_m;                // weight rows; 64 or 128 per warpgroup
  int n_min, n_step, n_max;  // tile_n (rows of x per tile): minimum, step and maximum
  int k_steps;               // k blocks (64 values of k) per stage
  XSource x;
  PairShares shares = PairShares::kNothing;

  constexpr int ctas() const { return shares == PairShares::kNothing ? 1 : 2; }
  // Consumer warpgroups. decodes: weights are codes, which threads decode.
  constexpr int groups(bool decodes) const { return decodes && tile_m != 128 ? 3 : tile_m > 64 ? 2 : 1; }
  // Size of a tile: of one CTA, or of both CTAs of a pair.
  constexpr int64_t rows_of_weights() const { return shares == PairShares::kRowsOfX ? 2 * tile_m : tile_m; }
  constexpr int rows_of_x() const { return shares == PairShares::kWeights ? 2 * n_max : n_max; }
};

// mxfp4: three consumer warpgroups, which decode codes in registers. A smaller tile_n leaves
// room for more k blocks per stage, so the fixed cost of a stage is paid less often. A step
// of 8 keeps padding of tile_n below 8 rows. With two row blocks (of 64 weight rows) per
// warpgroup, registers suffice up to tile_n 80 if rows are in order, otherwise up to 56.
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

// All other formats: three consumer warpgroups with one row
// block each, because decoding e4m3 takes twice the registers.
inline constexpr TileKernel kDecodedTiles[] = {
    {192, 16, 16, 64, 2, XSource::kThreads},
    {192, 64, 16, 112, 2, XSource::kThreads},
    {192, 112, 16, 160, 2, XSource::kThreads},
    {192, 112, 16, 160, 2, XSource::kInOrder, PairShares::kRowsOfX},
    {192, 112, 16, 160, 2, XSource::kRowBoxes, PairShares::kRowsOfX},
};

// An x in FP8: with MXFP4 three consumer warpgroups, or two if tile_n is above 160, and with e4m3 two; each has one row block. A stage has an even number of k
// blocks, because a row of 128 bytes of x has two of them.
inline constexpr TileKernel kMxfp4Fp8Tiles[] = {
    {192, 64, 16, 112, 4, XSource::kInOrder},
    {192, 112, 16, 160, 4, XSource::kInOrder},
    {128, 160, 32, 256, 2, XSource::kInOrder, PairShares::kRowsOfX},
};
inline constexpr TileKernel kE4m3Fp8Tiles[] = {
    {128, 64, 16, 112, 2, XSource::kThreads},
    {128, 112, 16, 160, 2, XSource::kInOrder, PairShares::kRowsOfX},
    {128, 160, 32, 256, 2, XSource::kInOrder, PairShares::kRowsOfX},
};

// Whether the tile kernels multiply an x in FP8 by weights of this format.
constexpr bool has_fp8_tiles(WeightFormat f) {
  return f.is(DType::kE2M1, WeightScales::kMx) || f.is(DType::kE4M3, WeightScales::kRows) ||
         f.is(DType::kE4M3, WeightScales::kBlocks);
}
// The kernels for one weight format. x: kBF16, or kE4M3 for an x that is rounded to FP8.
constexpr std::span<const TileKernel> tile_kernels(WeightFormat f, DType x = DType::kBF16) {
  if (x == DType::kE4M3)
    return f.w == DType::kE2M1 ? std::span<const TileKernel>(kMxfp4Fp8Tiles) : kE4m3Fp8Tiles;
  return !f.scaled()                             ? std::span<const TileKernel>(kBf16Tiles)
         : f.is(DType::kE2M1, WeightScales::kMx) ? std::span<const TileKernel>(kMxfp4Tiles)
                                                 : std::span<const TileKernel>(kDecodedTiles);
}
// The problem whose x is rounded to FP8 first, as the configurations and costs of the FP8 kernels see it: x is kE4M3.
inline ExpertGemm::Problem with_fp8_x(ExpertGemm::Problem p) { return p.x = DType::kE4M3, p; }
inline std::span<const TileKernel> tile_kernels(const ExpertGemm::Problem& p) {
  return tile_kernels(ExpertGemm::format(p), p.x);
}

// The order of experts in a launch's list of tiles.
enum class ExpertOrder : int32_t {
  kGiven,
  kByWidth,  // experts with the widest tiles first, so that the shortest tiles run last
  kLong,     // like kGiven, but without the limits on the numbers of experts and tiles
};

// One launch of a configuration: a kernel of tile_kernels(), and the experts that it computes: those with rows_min to rows_max
// rows. If kernel is kOrderRows, the launch copies rows of tokens in y's order to the workspace, for the launches after it. If it is
// kQuantizeRows or kQuantizeOrdered, the launch rounds rows of x to FP8 there, as they are or in y's order.
struct TileLaunch {
  static constexpr int kOrderRows = -1, kQuantizeRows = -2, kQuantizeOrdered = -3;
  int kernel = 0;
  int rows_min = 1, rows_max = INT32_MAX;
  ExpertOrder order = ExpertOrder::kGiven;
  int index = 0;  // index among the tile launches of the configuration

  static TileLaunch of(const KernelLaunch& launch) {
    const auto& v = launch.value;
    return {v[0], v[1], v[2], static_cast<ExpertOrder>(v[3]), v[4]};
  }
  KernelLaunch launch() const {
    return {.value = {kernel, rows_min, rows_max, static_cast<int32_t>(order), index}};
  }
};

// A launch that computes both products in tiles (grouped_tiles.cuh).
struct GroupedLaunch {
  static constexpr int kExpertsMax = 512;  // one per thread of a CTA
  int kernel = 0;
  ExpertOrder order = ExpertOrder::kGiven;

  static GroupedLaunch of(const KernelLaunch& launch) {
    return {launch.value[0], static_cast<ExpertOrder>(launch.value[1])};
  }
  KernelLaunch launch() const { return {.value = {kernel, static_cast<int32_t>(order)}}; }
};

// One launch of a stream kernel. mxfp4: a unit is 64 weight rows, over all of k, x 8 or 16 rows of x. bf16: a tile is 64
// (`small`) or 128 weight rows x 32 rows of x; with short_sums, a unit is 64 weight rows, over all of k, x 8 to 32 rows of x.
struct StreamLaunch {
  int columns = 32;
  bool short_sums = false;  // a team keeps rows of x in shared memory for several units
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

// The launch in words, for `explain`.
std::string stream_launch_text(const ExpertGemm::Problem& problem, const KernelLaunch& launch);
// The same for a tile launch: "384x64-80, rows of x in order, experts of 1 to 80 rows".
std::string tile_launch_text(const ExpertGemm::Problem& problem, const KernelLaunch& launch);

// The order of experts in a launch of this kernel.
ExpertOrder expert_order(const ExpertGemm::Problem& problem, const TileKernel& kernel);
// All configurations of the tile kernels for a problem, each with its cost or its refusal. No policy filters them.
std::vector<Config> tile_configs(const ExpertGemm::Problem& problem, const DeviceInfo& device);

// Bytes of the workspace for rows of tokens in y's order, bf16[rows, width].
size_t ordered_bytes(const ExpertGemm::Problem& problem);
// Bytes of a row of x in FP8, and of the workspace for these rows (in y's order if `orders`) and their f32 scales.
int64_t fp8_row_bytes(const ExpertGemm::Problem& problem);
size_t fp8_bytes(const ExpertGemm::Problem& problem, bool orders);

}  // namespace sluice::cuda
