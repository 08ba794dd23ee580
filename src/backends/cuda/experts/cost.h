// Time of the expert GEMMs on Hopper: models with constants of the device, which tools/fit_expert_costs fits to recorded rows.
#pragma once
#include <array>
#include <span>

#include "backends/cuda/card.h"
#include "backends/cuda/experts/config.h"
#include "backends/cuda/experts/profile.h"

namespace sluice::cuda {

// Conditions of every expert kernel here, whatever the type of its weights.
void need_expert_blocks(Refusal& r, const ExpertGemm::Problem& p, const DeviceInfo& d);

// How many experts run, and how many rows each of them has on average, under uniform routing.
struct ExpertLoad {
  double active = 0, rows_each = 0;
};
ExpertLoad expert_load(const ExpertGemm::Problem& p);

// For weights of one type. An SM takes `fragment_ns` for 64 rows of weights x 16 of the sum against so many columns of x: bytes,
// decoding and multiplication together.
struct TileConstants {
  static constexpr int kColumns = 12, kKernelsMost = 24;
  std::array<double, kColumns> columns{}, fragment_ns{};  // ascending; between two of them a line
  std::array<double, kKernelsMost>
      pace{};             // what a fragment takes in each of tile_kernels(), over fragment_ns
  double start_us = 0;    // the first launch, to its first tile
  double settled_us = 0;  // of which an earlier look at the groups saves so much
  double follow_us = 0;   // each launch more
  double end_us = 0;      // prologue and epilogue of a tile, beside the mainloop
  double end_row_us = 0;  // more of that for each row of x x 64 rows of weights, which are written
  double blend = 8;       // products and memory together: the root of the sum of these powers of both
  double short_us = 0;    // more of that, over the k blocks: the ring runs empty between tiles of short sums
  double last_round = 0;  // SMs wait for the last tiles: this share of one
  // What each kernel draws of the device's read rate where that is its bound.
  std::array<double, kKernelsMost> memory_share{};
  // The last tile of an expert's weights may have fewer row blocks: it takes this power of its share of a whole one.
  double partial = 1;
  double order_us = 0, order_bytes_per_us = 0;  // the launch that brings rows into order
  double gather_bytes_per_us = 0;               // CTA pairs that do so beside their tiles
  double skew = 0;                              // weight of Zipf routing in the cost, beside uniform routing
};
// Of the stream kernels: a team takes units of 64 weight rows x the whole sum x so many columns, rows of x.
struct StreamConstants {
  double start_us = 0, settled_us = 0;
  double memory_share = 0;  // of the device's read rate
  // A unit, and each of its k blocks, by columns: 8, 16. Of long sums each row of the 8 takes row_us more a k block.
  double unit_us = 0, row_us = 0;
  std::array<double, 2> block_us{};
  double short_unit_us = 0;
  std::array<double, 2> short_block_us{};
  // bf16: what weights cost that further tiles of 32 rows read again, from the L2; what the smaller CTA takes over the larger.
  double again_share = 0, small = 1;
  double skew = 0;
};

// Of an H200, as tools/fit_expert_costs last wrote them.
const TileConstants& tile_constants(DType w);
const StreamConstants& stream_constants(DType w);

// us of the launches under one routing.
double tile_us(const TileConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
               const RowProfile& rows, std::span<const TileLaunch> launches);
// What decide() compares: uniform routing, and some of Zipf.
double tile_cost_us(const TileConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
                    const RowProfile& uniform, const RowProfile& zipf, std::span<const TileLaunch> launches);

// us of a stream kernel (config.h).
double stream_us(const StreamConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
                 const RowProfile& rows, const StreamLaunch& launch);
double stream_cost_us(const StreamConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
                      const StreamLaunch& launch);

}  // namespace sluice::cuda
