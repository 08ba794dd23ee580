// Cost models of the expert GEMMs on Hopper. sluice_fit_costs (bench/fit_expert_costs.cc) fits their constants to measurements.
#pragma once
#include <array>
#include <span>
#include <vector>

#include "backends/cuda/card.h"
#include "backends/cuda/experts/cost/config.h"
#include "backends/cuda/experts/cost/profile.h"
#include "ops/fused/grouped_mlp.h"

namespace sluice::cuda {

// Adds the conditions that every expert kernel in this folder has, for any weight type.
void need_expert_blocks(Refusal& r, const ExpertGemm::Problem& p, const DeviceInfo& d);

// Adds the condition that the weights have the format `wanted`; `cause` is the reason that the refusal prints.
void need_format(Refusal& r, WeightFormat found, WeightFormat wanted, std::string_view cause);

// Under uniform routing: the number of experts with rows, and their mean number of rows.
struct ExpertLoad {
  double active = 0, rows_each = 0;
};
ExpertLoad expert_load(const ExpertGemm::Problem& p);

// Constants of the tile kernels, for one weight type. A fragment is 64 weight rows x 16 values of k. For a
// fragment times `columns` rows of x (with padding) an SM needs the larger of two times: fragment_ns +
// fragment_column_ns x columns, to decode and to read operands, and column_ns x columns, on the tensor cores.
struct TileConstants {
  static constexpr int kKernelsMax = 24;
  double fragment_ns = 0, fragment_column_ns = 0, column_ns = 0;
  std::array<double, kKernelsMax> pace{};  // for each of tile_kernels(), the factor on that time; near 1
  // Time to fill a ring: weights and rows in order arrive at fill_bytes_per_ns; a TMA box of one row
  // takes row_box_ns. Copies by threads take thread_row_ns per row, in parallel with the TMA copies.
  double fill_bytes_per_ns = 0, row_box_ns = 0, thread_row_ns = 0;
  // fraction of the device's read rate that a memory-bound kernel reaches
  double memory_share = 0;
  std::array<double, kKernelsMax> memory{};  // factor of each kernel on memory_share; near 1, because rings
                                             // differ
  double start_us = 0;                       // time from the start of the first launch to its first tile
  // Subtracted from start_us if the problem is settled, because the kernel then reads the groups before it waits for the previous launch.
  double settled_us = 0;
  double by_position_us = 0;  // added to start_us if rows of x are gathered from tokens (up GEMM)
  double follow_us = 0;       // per launch after the first
  double end_us = 0;          // prologue and epilogue of a tile, in addition to the mainloop
  double end_row_us = 0;      // added to end_us per row of x x 64 weight rows, for the store of y
  // Divided by the number of k blocks and added to end_us: if sums are short, the ring runs empty between tiles.
  double short_us = 0;
  // exponent of the smooth maximum of compute time and memory time: (a^blend + b^blend)^(1/blend)
  double blend = 4;
  double tail = 0;  // fraction of the last round's idle time that counts as cost
  // An expert's last tile along the weight rows may have fewer row blocks. Its time,
  // relative to a whole tile, is the fraction of its row blocks to this power.
  double partial = 1;
  double order_us = 0, order_bytes_per_us = 0;  // the launch that copies rows into y's order
  // For CTA pairs that gather rows: the latency until the first rows arrive, and a warp's time to copy one staging buffer.
  double gather_us = 0, gather_item_us = 0;
  // Extra time of the up GEMM [0] and of the down GEMM [1] in a layer, compared with
  // the same GEMM repeated alone. Fitted to layers measured with each kernel for each
  // GEMM (bench/measured/h200/*_candidates.csv). For stream kernels both are equal.
  std::array<double, 2> in_layer_us{};
  double skew = 0;  // weight of Zipf routing in the cost; uniform routing has the rest
};
// Constants of the stream kernels. A unit is 64 weight rows, over all of k, x `columns` rows of x; a team computes it.
struct StreamConstants {
  double start_us = 0, settled_us = 0, by_position_us = 0;
  double memory_share = 0;  // fraction of the device's read rate
  // Time of a unit: unit_us plus block_us per k block; block_us is for 8 and for
  // 16 columns. In long sums of 8 columns, each row of x adds row_us per k block.
  double unit_us = 0, row_us = 0;
  std::array<double, 2> block_us{};
  double short_unit_us = 0;
  std::array<double, 2> short_block_us{};
  double small = 1;              // bf16: factor on the time if `small`; block_us[0] is for 64 x 32
  double lone_bytes_per_us = 0;  // bf16: the rate at which one CTA streams weights
  double skew = 0;
};

// Constants of an H200, as sluice_fit_costs last wrote them.
const TileConstants& tile_constants(WeightFormat format);
// The constants for a problem; the constants of the FP8 kernels if x is kE4M3.
const TileConstants& tile_constants_of(const ExpertGemm::Problem& problem);
const StreamConstants& stream_constants(WeightFormat format);

// In a measurement of this GEMM alone, the time that is missing from its time in a layer (in_layer_us).
double tile_in_layer_us(const ExpertGemm::Problem& p);

// The tiles of one expert with a given number of rows.
struct TileWork {
  double tiles = 0;  // along rows of x
  // Tiles along the weight rows, and their total time in units of a whole tile's time.
  double along_m = 0, along_m_time = 0;
  double us = 0;  // time of a whole tile
};
// The tiles of a problem under one routing, per kernel and kind of expert. Cached, because many configurations use the same kernels.
class TileWorks {
 public:
  TileWorks(const TileConstants& constants, const ExpertGemm::Problem& problem, const RowProfile& rows)
      : c_(constants), p_(problem), rows_(rows) {}
  const TileConstants& constants() const { return c_; }
  const ExpertGemm::Problem& problem() const { return p_; }
  const RowProfile& rows() const { return rows_; }
  const TileWork& of(int kernel, int kind);  // kind: an index into rows()

 private:
  const TileConstants& c_;
  const ExpertGemm::Problem& p_;
  RowProfile rows_;
  std::array<std::vector<TileWork>, TileConstants::kKernelsMax> known_;
};
// Time of the launches in a layer under the routing of `works`.
double tile_us(TileWorks* works, const DeviceInfo& d, std::span<const TileLaunch> launches);
// The cost that decide() compares: a weighted mean of the times under uniform and Zipf routing (TileConstants::skew).
double tile_cost_us(TileWorks* uniform, TileWorks* zipf, const DeviceInfo& d,
                    std::span<const TileLaunch> launches);

// Cost in a layer of one launch that computes both products with this kernel's tiles (grouped_tiles.cuh).
double grouped_tiles_cost_us(const GroupedMlp::Problem& p, const DeviceInfo& d, int kernel);

// Bytes that must pass through memory under the routing that the
// costs assume: the weighted mean over uniform and Zipf routing.
double routed_bytes(const ExpertGemm::Problem& p);

// Time of a stream launch under the routing `rows`.
double stream_us(const StreamConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
                 const RowProfile& rows, const StreamLaunch& launch);
double stream_cost_us(const StreamConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
                      const StreamLaunch& launch);

}  // namespace sluice::cuda
