// Configurations of the tile kernels of dense layers, and their cost model.
#include "backends/cuda/linear/linear_tile.h"

#include <iterator>

namespace sluice::cuda {
namespace {

// Fitted to all rows of bench/measured/h200/linear_candidates.csv at once; tests/cuda/regret_test.cc checks that the choices
// are good for these rows. Units: bytes and clocks of one SM. Tensor cores run at the clock that the power limit allows.
constexpr double kTensorClocksUs = 1.5e3, kClocksUs = 1.7e3, kIngestBytes = 71;
constexpr double kStepClocks = 245;        // minimum clocks per step, from one wait to the next
constexpr double kL2BytesPerUs = 9.035e6;  // the rate at which all SMs read from L2
constexpr double kFixedUs = 0.075, kRoundUs = 1.17, kLoadLatencyUs = 1.13, kMemoryShare = 1.21,
                 kHidden = 0.66;
// If sums are split: fixed time, and time per row of 64 features that a CTA sends.
constexpr double kExchangeUs = 2.3, kExchangeRowUs = 0.0125;
// A cluster runs on one GPC, which has 16 or 18 SMs. The model assumes that clusters fill 14 of them.
constexpr double kGroupCores = 16.5, kGroupRoom = 14;

struct Work {
  int64_t tiles;
  double steps;  // steps of 64 k per tile
};
Work work_of(const Linear::Problem& p, const LinearTileKind& kind, int splits) {
  return {linear_parts(std::max<int64_t>(p.tokens, 1), kind.n) * linear_parts(p.features, kind.features()),
          static_cast<double>(linear_parts(linear_parts(p.width, kLinearBlock), splits))};
}

// The larger of two times, plus a part of the smaller. One is the time of whole rounds of tiles at
// the rate of a step's bottleneck; the other is the time of memory at the rate that the bytes in
// flight allow.
double tile_us(const Linear::Problem& p, const DeviceInfo& d, const LinearTileKind& kind, int splits) {
  const Work work = work_of(p, kind, splits);
  const double resident = kind.narrow() ? 2 : 1;
  const double ctas = static_cast<double>(work.tiles * splits);
  const double fit = splits == 1
                         ? d.cores * resident
                         : std::floor(d.cores / kGroupCores) * std::floor(kGroupRoom * resident / splits);
  const double rounds = std::ceil(static_cast<double>(work.tiles) / fit);
  const double each_sm = std::max(std::ceil(ctas / d.cores), kind.narrow() ? 0 : rounds);
  const double tensor_us = 2.0 * kind.groups * kind.n / kTensorClocksUs;
  const double ingest_us = kind.stage_bytes() / kIngestBytes / kClocksUs;
  const double step_us = std::max(each_sm * std::max(tensor_us, ingest_us), rounds * kStepClocks / kClocksUs);
  const double sm_us = std::max(work.steps * step_us + rounds * kRoundUs,
                                work.steps * ctas * kind.stage_bytes() / kL2BytesPerUs);
  // Tiles of the same features read the same weights, so only tiles with different features add bytes in flight.
  const double of_weights = static_cast<double>(linear_parts(p.features, kind.features()) * splits);
  const double in_flight = std::min(of_weights, d.cores * resident) *
                           linear_tile_shared(kind, splits).stages * kind.weight_bytes();
  const double memory_us =
      Linear::bytes(p) / std::min(kMemoryShare * d.mem_bytes_per_us, in_flight / kLoadLatencyUs);
  const double sent = static_cast<double>(kind.n * kind.groups * (splits - 1)) / splits;
  return kFixedUs + (splits > 1 ? kExchangeUs + kExchangeRowUs * sent : 0) + std::max(sm_us, memory_us) +
         (1 - kHidden) * std::min(sm_us, memory_us);
}

std::string kind_name(const LinearTileKind& kind) {
  return std::to_string(kind.features()) + "x" + std::to_string(kind.n);
}

}  // namespace

LinearTileShared linear_tile_shared(const LinearTileKind& kind, int splits) {
  constexpr int kSm = 228 << 10, kSystem = 1 << 10, kStagesMax = 12;
  const int round_bytes =
      kind.groups * kind.staged_rows() * 64 * 4;  // bytes of sums that are staged per round
  const int bytes_max = kSm / (kind.narrow() ? 2 : 1) - kSystem;
  // Room for the sums that all CTAs of the cluster have for the rows of this CTA.
  const int inbox =
      splits > 1 ? splits * static_cast<int>(linear_parts(kind.rounds(), splits)) * round_bytes : 0;
  LinearTileShared s{};
  for (s.stages = kStagesMax;; --s.stages) {
    s.staging = s.stages * kind.stage_bytes();
    s.inbox = s.staging + kind.groups * kind.staging_bytes();
    s.full = s.inbox + inbox;
    s.empty = s.full + 8 * s.stages;
    s.received = s.empty + 8 * s.stages;
    s.ready = s.received + 8;
    s.staged = s.ready + 8 * kind.groups * kind.boxes();
    s.bytes = s.staged + 8 * kind.groups * kind.boxes();
    if (s.bytes <= bytes_max || s.stages == 1) return s;
  }
}

std::vector<Config> linear_tile_configs(const Linear::Problem& p, const DeviceInfo& d) {
  std::vector<Config> out;
  for (int i = 0; i < static_cast<int>(std::size(kLinearTiles)); ++i) {
    const LinearTileKind& kind = kLinearTiles[i];
    const int64_t resident = kind.narrow() ? 2 : 1;
    const auto grid = static_cast<int>(std::min(work_of(p, kind, 1).tiles, resident * d.cores));
    out.push_back({.name = kind_name(kind),
                   .cost_us = tile_us(p, d, kind, 1),
                   .launches = {LinearTileLaunch{i, 1, grid}.packed()}});
  }
  return out;
}

std::vector<Config> linear_split_configs(const Linear::Problem& p, const DeviceInfo& d) {
  std::vector<Config> out;
  const int64_t steps = linear_parts(p.width, kLinearBlock);
  for (int i = 0; i < static_cast<int>(std::size(kLinearTiles)); ++i)
    for (int splits = 2; kLinearTiles[i].splits() && splits <= kLinearSplitsMax; ++splits) {
      const LinearTileKind& kind = kLinearTiles[i];
      Config c{.name = kind_name(kind) + "/" + std::to_string(splits),
               .cost_us = tile_us(p, d, kind, splits)};
      c.refusal.need(steps >= splits, "at least one step of 64 k per part", "k blocks", steps);
      const int64_t ctas = work_of(p, kind, splits).tiles * splits;
      c.launches = {LinearTileLaunch{i, splits, static_cast<int>(ctas)}.packed()};
      out.push_back(std::move(c));
    }
  return out;
}

std::string linear_tile_text(const Linear::Problem&, const KernelLaunch& launch) {
  const auto l = LinearTileLaunch::of(launch);
  const LinearTileKind& kind = kLinearTiles[l.kind];
  const LinearTileShared s = linear_tile_shared(kind, l.splits);
  return std::to_string(l.grid) + " CTAs, " + kind_name(kind) + ", " + std::to_string(s.stages) + " stages" +
         (l.splits > 1 ? ", sums in " + std::to_string(l.splits) + " parts" : "");
}

}  // namespace sluice::cuda
