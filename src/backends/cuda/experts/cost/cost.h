// Time of the expert GEMMs on Hopper: models with constants of the device, which sluice_fit_costs
// (bench/fit_expert_costs.cc) fits to recorded rows.
#pragma once
#include <array>
#include <span>

#include "backends/cuda/card.h"
#include "backends/cuda/experts/config.h"
#include "backends/cuda/experts/cost/profile.h"
#include "ops/grouped_mlp.h"

namespace sluice::cuda {

// Conditions of every expert kernel here, for weights of any type.
void need_expert_blocks(Refusal& r, const ExpertGemm::Problem& p, const DeviceInfo& d);

// Under uniform routing: how many experts have rows, and how many rows each of them has on average.
struct ExpertLoad {
  double active = 0, rows_each = 0;
};
ExpertLoad expert_load(const ExpertGemm::Problem& p);

// Tile kernels, for weights of one type. A fragment is 64 weight rows x 16 of k; an SM multiplies it by
// `columns` rows of x, padding included, in the longer of two times: what decoding and reading operands takes,
// fragment_ns + fragment_column_ns x columns, and what the tensor cores take, column_ns x columns.
struct TileConstants {
  static constexpr int kKernelsMost = 24;
  double fragment_ns = 0, fragment_column_ns = 0, column_ns = 0;
  std::array<double, kKernelsMost> pace{};  // what each of tile_kernels() takes over that; near 1
  // A ring is filled at fill_bytes_per_ns, weights and rows in order. A TMA box of one row takes row_box_ns. Threads take
  // thread_row_ns for a row, beside the ring's boxes.
  double fill_bytes_per_ns = 0, row_box_ns = 0, thread_row_ns = 0;
  double memory_share = 0;                    // of the device's read rate, where memory decides
  std::array<double, kKernelsMost> memory{};  // each kernel's, over that; near 1: rings differ
  double start_us = 0;                        // the first launch, up to its first tile
  double settled_us = 0;      // the part of it that a settled problem saves by reading the groups early
  double by_position_us = 0;  // added to it where rows of x are read by position: the up GEMM
  double follow_us = 0;       // each further launch
  double end_us = 0;          // prologue and epilogue of a tile, in addition to the mainloop
  double end_row_us = 0;      // added to it per row of x x 64 weight rows: the rows of y are written
  double short_us = 0;  // over k blocks, added to end_us: in short sums the ring runs empty between tiles
  double blend = 4;     // joins products and memory: the blend-th root of the sum of their blend-th powers
  double tail = 0;      // the last round of tiles leaves SMs idle: this share of that time is lost
  // The last tile of an expert's weights may have fewer row blocks: its time is this power of its share of a
  // whole tile.
  double partial = 1;
  double order_us = 0, order_bytes_per_us = 0;  // the launch that copies rows into order
  // CTA pairs that gather rows: until the first are there, and what a warp takes to copy one staging buffer.
  double gather_us = 0, gather_item_us = 0;
  // What it takes in a layer beyond rows of the same GEMM repeated alone, up and down: from layers that took each kernel for
  // each GEMM (bench/measured/h200/*_candidates.csv). Stream kernels take the same in both.
  std::array<double, 2> in_layer_us{};
  double skew = 0;  // weight of Zipf routing in the cost; the rest is uniform routing
};
// For the stream kernels: a unit of a team is 64 weight rows x the whole sum x `columns` rows of x.
struct StreamConstants {
  double start_us = 0, settled_us = 0, by_position_us = 0;
  double memory_share = 0;  // of the device's read rate
  // Time of a unit, and of each of its k blocks, for 8 and 16 columns. In long sums each row of the 8 adds
  // row_us per k block.
  double unit_us = 0, row_us = 0;
  std::array<double, 2> block_us{};
  double short_unit_us = 0;
  std::array<double, 2> short_block_us{};
  double small = 1;  // bf16: what the smaller CTA takes over the larger; block_us[0] is of 64 x 32
  double lone_bytes_per_us = 0;  // bf16: of one CTA that streams, however few there are
  double skew = 0;
};

// Constants of an H200, as sluice_fit_costs last wrote them.
const TileConstants& tile_constants(DType w);
const StreamConstants& stream_constants(DType w);

// What to add to a measured row of the GEMM alone.
double tile_in_layer_us(const ExpertGemm::Problem& p);
// Microseconds of the launches under one routing, in a layer.
double tile_us(const TileConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
               const RowProfile& rows, std::span<const TileLaunch> launches);
// What decide() compares: uniform routing mixed with Zipf routing.
double tile_cost_us(const TileConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
                    const RowProfile& uniform, const RowProfile& zipf, std::span<const TileLaunch> launches);

// Both products in one launch of tiles of this kernel (grouped_tiles.cuh), in a layer.
double grouped_tiles_cost_us(const GroupedMlp::Problem& p, const DeviceInfo& d, int kernel);

// Bytes that must pass memory, under the routing of costs: uniform routing mixed with Zipf routing.
double routed_bytes(const ExpertGemm::Problem& p);

// Microseconds of a stream kernel (config.h).
double stream_us(const StreamConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
                 const RowProfile& rows, const StreamLaunch& launch);
double stream_cost_us(const StreamConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
                      const StreamLaunch& launch);

}  // namespace sluice::cuda
