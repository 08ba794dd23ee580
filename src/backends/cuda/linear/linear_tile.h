// The tile kernels of dense layers as data: which are compiled, and what a launch is told. linear_tile.cuh has their code.
#pragma once
#include <array>

#include "backends/cuda/linear/linear.h"

namespace sluice::cuda {

// A compiled kernel: a CTA has tiles of 64 features for each of its `groups` consumer warpgroups, and n rows of x.
struct LinearTileKind {
  int groups, n;

  constexpr int features() const { return 64 * groups; }
  constexpr bool narrow() const { return groups == 1; }  // two CTAs an SM
  constexpr bool splits() const { return n <= 128; }     // its sums may be split
  constexpr int threads() const { return narrow() ? 160 : 128 * (groups + 1); }
  constexpr int weight_bytes() const { return features() * 128; }  // of a stage, 64 of k
  constexpr int stage_bytes() const { return weight_bytes() + n * 128; }
  // Rows of x that a warpgroup stages at once on their way to y, twice.
  constexpr int staged_rows() const { return narrow() ? 8 : 16; }
  constexpr int turns() const {
    return n / staged_rows();
  }  // of a tile: what the CTAs of split sums share out
  static constexpr int kPitch =
      68;  // floats of a staged row: 64 features, and 4 that keep stores free of bank conflicts
  // Boxes of results that a warpgroup has in shared memory, where they leave by TMA (linear_boxes.cuh), and the rows of x of each. CTAs that
  // split sums share out boxes. None for few rows: the way through the serving warp takes 0.3 us longer than stores do. Of 192 rows a fourth
  // would cost a stage of the ring.
  constexpr bool boxed() const { return !narrow() && n > 64; }
  constexpr int boxes() const { return !boxed() ? 0 : n == 192 ? 3 : 4; }
  constexpr int box_rows() const { return splits() ? staged_rows() : 32; }
  constexpr int staging_bytes() const {  // of a warpgroup, rounded up to where boxes may begin
    const int sums = 2 * staged_rows() * kPitch * 4, all = boxes() * box_rows() * 128;
    if (!boxed()) return sums;
    return ((sums > all ? sums : all) + 1023) / 1024 * 1024;
  }
};

// Wide ones first.
inline constexpr LinearTileKind kLinearTiles[] = {{2, 256}, {2, 224}, {2, 192}, {2, 160}, {2, 128}, {2, 96},
                                                  {2, 64},  {1, 128}, {1, 64},  {1, 32},  {1, 16}};
inline constexpr int kLinearWide = 7;

constexpr int64_t kLinearBlock = 64;  // k of a stage
inline constexpr int kLinearSplitsMost = 4;

// A launch: which kernel, by its place in the list, and into how many parts its sums are split, each a CTA of a cluster.
struct LinearTileLaunch {
  int kind, splits, grid;

  KernelLaunch packed() const { return {.value = {kind, splits, grid}}; }
  static LinearTileLaunch of(const KernelLaunch& l) { return {l.value[0], l.value[1], l.value[2]}; }
};

// Shared memory of a CTA: ring, staging, sums from the other CTAs of the cluster, barriers. Offsets in bytes.
struct LinearTileShared {
  int stages, staging, inbox, full, empty, received, ready, staged, bytes;
};
LinearTileShared linear_tile_shared(const LinearTileKind& kind, int splits);

// The configurations of linear_tile_sm90, whose sums are whole, and of linear_split_sm90.
std::vector<Config> linear_tile_configs(const Linear::Problem& p, const DeviceInfo& d);
std::vector<Config> linear_split_configs(const Linear::Problem& p, const DeviceInfo& d);
std::string linear_tile_text(const Linear::Problem& p, const KernelLaunch& launch);

// Tiles are counted in 32 bits.
inline void need_few_rows(Refusal& r, const Linear::Problem& p, int64_t most, std::string_view cause) {
  r.need(p.tokens <= most, "tokens <= " + std::to_string(most) + " (" + std::string(cause) + ")", "tokens",
         p.tokens);
}

}  // namespace sluice::cuda
