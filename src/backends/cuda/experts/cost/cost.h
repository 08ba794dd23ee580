// Cost models of the expert GEMMs on Hopper. sluice_fit_costs (bench/fit_expert_costs.cc) fits the constants to recorded rows.
#pragma once
#include <array>
#include <span>
#include <vector>

#include "backends/cuda/card.h"
#include "backends/cuda/experts/cost/config.h"
#include "backends/cuda/experts/cost/profile.h"
#include "ops/grouped_mlp.h"

namespace sluice::cuda {

// Conditions of every expert kernel in this folder, for any weight type.
void need_expert_blocks(Refusal& r, const ExpertGemm::Problem& p, const DeviceInfo& d);

// Condition of kernels for the weights of one format.
void need_format(Refusal& r, WeightFormat found, WeightFormat wanted, std::string_view cause);

// Under uniform routing: the number of experts with rows, and their mean number of rows.
struct ExpertLoad {
  double active = 0, rows_each = 0;
};
ExpertLoad expert_load(const ExpertGemm::Problem& p);

// Tile kernels, for one weight type. A fragment is 64 weight rows x 16 values of k. To multiply it by `columns` rows of x, padding
// included, an SM takes the longer of two times: fragment_ns + fragment_column_ns x columns to decode and read operands, and column_ns
// x columns on the tensor cores.
struct TileConstants {
  static constexpr int kKernelsMost = 24;
  double fragment_ns = 0, fragment_column_ns = 0, column_ns = 0;
  std::array<double, kKernelsMost> pace{};  // factor of each of tile_kernels() on that time; near 1
  // A ring is filled at fill_bytes_per_ns with weights and ordered rows. A TMA box of one row takes row_box_ns. Threads take thread_row_ns
  // per row, in parallel with the ring's boxes.
  double fill_bytes_per_ns = 0, row_box_ns = 0, thread_row_ns = 0;
  double memory_share = 0;                    // of the device's read rate, if the kernel is memory-bound
  std::array<double, kKernelsMost> memory{};  // factor of each kernel on memory_share; near 1, because rings
                                              // differ
  double start_us = 0;                        // the first launch, up to its first tile
  // The part of start_us that a settled problem saves, because it reads the groups early.
  double settled_us = 0;
  double by_position_us = 0;  // added to start_us if rows of x are read by position, as in the up GEMM
  double follow_us = 0;       // per further launch
  double end_us = 0;          // prologue and epilogue of a tile, on top of the mainloop
  double end_row_us = 0;      // added to end_us per row of x x 64 weight rows, for the store of y
  // Divided by k blocks and added to end_us: with short sums the ring runs empty between tiles.
  double short_us = 0;
  double blend = 4;  // combines products and memory: the blend-th root of the sum of their blend-th powers
  double tail = 0;   // fraction of the last round's idle time that is lost
  // The last tile of an expert's weights may have fewer row blocks. Its time, relative to a whole tile, is its fraction of row
  // blocks to this power.
  double partial = 1;
  double order_us = 0, order_bytes_per_us = 0;  // the launch that copies rows into order
  // CTA pairs that gather rows: the latency until the first rows arrive, and a warp's time to copy one staging buffer.
  double gather_us = 0, gather_item_us = 0;
  // Extra time of the up and the down GEMM in a layer, compared with the same GEMM repeated alone. Fitted to
  // layers with each kernel for each GEMM (bench/measured/h200/*_candidates.csv). Stream kernels have the
  // same extra time for both.
  std::array<double, 2> in_layer_us{};
  double skew = 0;  // weight of Zipf routing in the cost; the rest is uniform routing
};
// For the stream kernels. A unit of a team is 64 weight rows with the whole sum x `columns` rows of x.
struct StreamConstants {
  double start_us = 0, settled_us = 0, by_position_us = 0;
  double memory_share = 0;  // of the device's read rate
  // Time of a unit, and of each of its k blocks, for 8 and 16 columns. In long sums of 8 columns, each row of
  // x adds row_us per k block.
  double unit_us = 0, row_us = 0;
  std::array<double, 2> block_us{};
  double short_unit_us = 0;
  std::array<double, 2> short_block_us{};
  double small = 1;  // bf16: time of the smaller CTA relative to the larger; block_us[0] is for 64 x 32
  double lone_bytes_per_us = 0;  // bf16: the rate of a single streaming CTA
  double skew = 0;
};

// Constants of an H200, as sluice_fit_costs last wrote them.
const TileConstants& tile_constants(WeightFormat format);
const StreamConstants& stream_constants(WeightFormat format);

// The time to add to a measurement of the GEMM alone.
double tile_in_layer_us(const ExpertGemm::Problem& p);

// The tiles of one expert.
struct TileWork {
  double tiles = 0;  // along rows of x
  // Tiles along the weight rows; the same in units of a whole tile's time.
  double along_m = 0, along_m_time = 0;
  double us = 0;  // of a whole tile
};
// The tiles of a problem under one routing. Each is computed once, because many configurations have the same kernels.
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
  std::array<std::vector<TileWork>, TileConstants::kKernelsMost> known_;
};
// Microseconds of the launches under this routing, in a layer.
double tile_us(TileWorks* works, const DeviceInfo& d, std::span<const TileLaunch> launches);
// The cost that decide() compares: uniform routing mixed with Zipf routing.
double tile_cost_us(TileWorks* uniform, TileWorks* zipf, const DeviceInfo& d,
                    std::span<const TileLaunch> launches);

// Cost in a layer of both products in one launch of this kernel's tiles (grouped_tiles.cuh).
double grouped_tiles_cost_us(const GroupedMlp::Problem& p, const DeviceInfo& d, int kernel);

// Bytes that must pass through memory under the routing that costs assume: uniform routing mixed with Zipf
// routing.
double routed_bytes(const ExpertGemm::Problem& p);

// Microseconds of a stream kernel (config.h).
double stream_us(const StreamConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
                 const RowProfile& rows, const StreamLaunch& launch);
double stream_cost_us(const StreamConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
                      const StreamLaunch& launch);

}  // namespace sluice::cuda
