// The tile kernels of dense layers as data: the compiled kernels, and the parameters of a launch. The code is in linear_tile.cuh.
#pragma once
#include <array>

#include "backends/cuda/linear/linear.h"

namespace sluice::cuda {

// A compiled kernel. Its tile is 64 features for each of `groups` consumer warpgroups x n rows of x.
struct LinearTileKind {
  int groups, n;

  constexpr int features() const { return 64 * groups; }
  constexpr bool narrow() const { return groups == 1; }  // two CTAs per SM
  constexpr bool splits() const { return n <= 128; }     // the cluster may split its sums
  constexpr int threads() const { return narrow() ? 160 : 128 * (groups + 1); }
  constexpr int weight_bytes() const { return features() * 128; }  // per stage of 64 k
  constexpr int stage_bytes() const { return weight_bytes() + n * 128; }
  // Rows of x whose y a warpgroup stages at once, in two buffers.
  constexpr int staged_rows() const { return narrow() ? 8 : 16; }
  constexpr int rounds() const {
    return n / staged_rows();
  }  // per tile; the CTAs of split sums divide the rounds
  static constexpr int kPitch =
      68;  // floats between staged rows: 64 features and 4 floats of padding, so that stores have no bank conflicts
  // Boxes of y per warpgroup in shared memory, if TMA stores y (linear_boxes.cuh), and rows of x per box.
  // CTAs with split sums divide the boxes. Tiles of few rows have no boxes, because stores through the
  // box warp would take 0.3 us longer. For tiles of 192 rows a fourth box would cost a stage of the ring.
  constexpr bool boxed() const { return !narrow() && n > 64; }
  constexpr int boxes() const { return !boxed() ? 0 : n == 192 ? 3 : 4; }
  constexpr int box_rows() const { return splits() ? staged_rows() : 32; }
  constexpr int staging_bytes() const {  // per warpgroup, rounded up to the alignment of boxes
    const int sums = 2 * staged_rows() * kPitch * 4, all = boxes() * box_rows() * 128;
    if (!boxed()) return sums;
    return ((sums > all ? sums : all) + 1023) / 1024 * 1024;
  }
};

// The first kLinearWide entries are the wide kernels.
inline constexpr LinearTileKind kLinearTiles[] = {{2, 256}, {2, 224}, {2, 192}, {2, 160}, {2, 128}, {2, 96},
                                                  {2, 64},  {1, 128}, {1, 64},  {1, 32},  {1, 16}};
inline constexpr int kLinearWide = 7;

constexpr int64_t kLinearBlock = 64;  // values of k per stage
inline constexpr int kLinearSplitsMax = 4;

// A launch: the index of the kernel in kLinearTiles, the number of CTAs of a cluster that split k, and the grid.
struct LinearTileLaunch {
  int kind, splits, grid;

  KernelLaunch packed() const { return {.value = {kind, splits, grid}}; }
  static LinearTileLaunch of(const KernelLaunch& l) { return {l.value[0], l.value[1], l.value[2]}; }
};

// Shared memory of a CTA: ring, staging, sums from other CTAs of the cluster, barriers. Offsets in bytes.
struct LinearTileShared {
  int stages, staging, inbox, full, empty, received, ready, staged, bytes;
};
LinearTileShared linear_tile_shared(const LinearTileKind& kind, int splits);

// The configurations of linear_tile_sm90, whose CTAs compute whole sums; of linear_split_sm90, whose clusters split them.
std::vector<Config> linear_tile_configs(const Linear::Problem& p, const DeviceInfo& d);
std::vector<Config> linear_split_configs(const Linear::Problem& p, const DeviceInfo& d);
std::string linear_tile_text(const Linear::Problem& p, const KernelLaunch& launch);

// Adds a limit on the number of tokens; `cause` is the reason that the refusal prints.
inline void need_few_rows(Refusal& r, const Linear::Problem& p, int64_t most, std::string_view cause) {
  r.need(p.tokens <= most, "tokens <= " + std::to_string(most) + " (" + std::string(cause) + ")", "tokens",
         p.tokens);
}

// Launch a kernel of kLinearTiles: one of the first kLinearWide entries; one of the others.
Status launch_linear_wide(std::string_view name, const Linear::Problem& p, const LinearTileLaunch& l,
                          const Linear::Args& a, Stream stream);
Status launch_linear_narrow(std::string_view name, const Linear::Problem& p, const LinearTileLaunch& l,
                            const Linear::Args& a, Stream stream);

// What differs between the kernels that launch kLinearTiles.
struct LinearTileCard {
  std::string_view name;
  int64_t tokens_max;
  std::string_view cause;  // why tokens_max is the limit
  std::vector<Config> (*configs)(const Linear::Problem&, const DeviceInfo&);
  bool config_decides_bits = false;
};
// The kernel descriptor of such a kernel.
template <const LinearTileCard& kCard>
struct LinearTileDescriptor {
  static Refusal supports(const Linear::Problem& p, const DeviceInfo& d) {
    Refusal r;
    need_linear_operands(r, p, d);
    need_few_rows(r, p, kCard.tokens_max, kCard.cause);
    return r;
  }
  static Status enqueue(const Linear::Problem& p, std::span<const KernelLaunch> launches,
                        const Linear::Args& a, Workspace, Stream stream) {
    if (p.tokens == 0) return {};
    const auto l = LinearTileLaunch::of(launches[0]);
    return (l.kind < kLinearWide ? launch_linear_wide : launch_linear_narrow)(kCard.name, p, l, a, stream);
  }
  static constexpr Candidate<Linear> candidate() {
    return linear_candidate<LinearTileDescriptor>(
        {kCard.name, supports, kCard.configs, linear_tile_text, kCard.config_decides_bits});
  }
};

}  // namespace sluice::cuda
