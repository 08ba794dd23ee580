#include "backends/cuda/experts/cost.h"

#include <algorithm>
#include <cmath>

namespace sluice::cuda {
namespace {

#include "backends/cuda/measured/expert_costs.inc"

double fragment_ns(const TileConstants& c, double columns) {
  size_t above = 0;
  while (above + 1 < c.columns.size() && c.columns[above] < columns) ++above;
  if (above == 0) return c.fragment_ns[0];
  const size_t below = above - 1;
  const double share = (columns - c.columns[below]) / (c.columns[above] - c.columns[below]);
  return c.fragment_ns[below] + share * (c.fragment_ns[above] - c.fragment_ns[below]);
}

// One expert's tiles: how many CTAs' worth of work, and microseconds of each.
struct TileWork {
  double ctas = 0, us = 0;
};
TileWork work_of(const TileConstants& c, const ExpertGemm::Problem& p, DType w, int kernel, double rows) {
  const TileKernel& k = tile_kernels(w)[static_cast<size_t>(kernel)];
  const double most = k.rows_of_x(), tiles = std::ceil(std::max(1.0, rows) / most - 1e-9);
  const double each = rows / tiles / (k.rows_of_x() / k.n_most);  // rows of one CTA
  const double columns = std::clamp(std::ceil(each / k.n_step) * k.n_step, static_cast<double>(k.n_least),
                                    static_cast<double>(k.n_most));
  const FragmentShape shape = ExpertGemm::fragments(p);
  const auto k_blocks = static_cast<double>(shape.k_blocks),
             row_blocks = static_cast<double>(shape.row_blocks);
  // Counts row blocks by the warpgroups that have any: the last tile of an expert may have fewer.
  constexpr double kBlockRows = 64, kFragmentsOfBlock = 4;
  const double groups = w == DType::kE2M1 ? 3 : 2, blocks = k.tile_m / kBlockRows;
  const double of_group = blocks / groups * (k.shares == PairShares::kRowsOfX ? 2 : 1);
  const double group_tiles = std::ceil(row_blocks / of_group) / groups, whole = std::floor(group_tiles);
  const double ctas_m = k.ctas() * (whole + std::pow(group_tiles - whole, c.partial));
  const double us = k_blocks * blocks * kFragmentsOfBlock * c.pace[static_cast<size_t>(kernel)] *
                        fragment_ns(c, columns) / 1e3 +
                    c.end_us + c.end_row_us * columns * blocks + c.short_us / k_blocks;
  return {tiles * ctas_m, us};
}

// Bytes that must pass memory: weights of experts that have rows, x and y.
double bytes_of(const ExpertGemm::Problem& p, const RowProfile& rows) {
  double experts = 0;
  for (const RowKind& kind : rows) experts += kind.experts;
  const double each = static_cast<double>(ExpertGemm::packed_bytes(p) +
                                          (p.w == DType::kE2M1 ? ExpertGemm::packed_scale_bytes(p) : 0));
  return experts * each +
         ExpertGemm::expected_rows(p) *
             static_cast<double>(sluice::bytes_of(p.x, p.width) + sluice::bytes_of(p.y, p.features));
}

template <class Constants>
double start_us(const Constants& c, const ExpertGemm::Problem& p) {
  return c.start_us - (p.settled ? c.settled_us : 0) + (p.slots > 0 ? c.by_position_us : 0);
}

bool orders_rows(std::span<const TileLaunch> launches) {
  return !launches.empty() && launches[0].kernel == TileLaunch::kOrderRows;
}

}  // namespace

void need_expert_blocks(Refusal& r, const ExpertGemm::Problem& p, const DeviceInfo& d) {
  need_sm90(r, d);
  r.need(p.layout == WeightLayout::kFragments, "layout fragments (ops/fragment_layout.h)",
         "layout=" + std::string(word(p.layout)));
  need_type(r, "x", p.x, DType::kBF16, "wgmma operand");
  need_multiple(r, "width", p.width, 8, "copies of 16 bytes");
}

ExpertLoad expert_load(const ExpertGemm::Problem& p) {
  const double rows = ExpertGemm::expected_rows(p);
  const double active = active_experts(rows, p.experts);
  return {active, active > 0 ? rows / active : 0};
}

const TileConstants& tile_constants(DType w) {
  return w == DType::kE2M1 ? kMxfp4TileConstants : kBf16TileConstants;
}
const StreamConstants& stream_constants(DType w) {
  return w == DType::kE2M1 ? kMxfp4StreamConstants : kBf16StreamConstants;
}

double tile_us(const TileConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
               const RowProfile& rows, std::span<const TileLaunch> launches) {
  const double moved =
      ExpertGemm::expected_rows(p) * static_cast<double>(sluice::bytes_of(DType::kBF16, p.width));
  double us = start_us(c, p);
  if (orders_rows(launches)) {
    us += c.order_us + moved / c.order_bytes_per_us;
    launches = launches.subspan(1);
  }
  us += c.follow_us * static_cast<double>(launches.size() - 1);
  double all = 0, longest = 0, last = 0, drawn = 0, experts = 0;
  for (const RowKind& kind : rows)
    for (size_t i = 0; i < launches.size(); ++i) {
      const TileLaunch& launch = launches[i];
      const double whole = std::round(kind.rows);
      if (whole < launch.rows_least || whole > launch.rows_most) continue;
      const TileWork work = work_of(c, p, p.w, launch.kernel, kind.rows);
      all += kind.experts * work.ctas * work.us;
      drawn += kind.experts / c.memory_share[static_cast<size_t>(launch.kernel)], experts += kind.experts;
      longest = std::max(longest, work.us);
      if (i + 1 == launches.size() || launches.size() == 1) last = std::max(last, work.us);
      break;
    }
  if (last == 0) last = longest;
  for (const TileLaunch& launch : launches)
    if (tile_kernels(p.w)[static_cast<size_t>(launch.kernel)].x == XSource::kGathered)
      us += moved / c.gather_bytes_per_us;
  const double products = std::max(longest, all / d.cores + c.last_round * last);
  const double memory = bytes_of(p, rows) * (experts > 0 ? drawn / experts : 1) / d.mem_bytes_per_us;
  return us + std::pow(std::pow(products, c.blend) + std::pow(memory, c.blend), 1 / c.blend);
}

double tile_cost_us(const TileConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
                    const RowProfile& uniform, const RowProfile& zipf, std::span<const TileLaunch> launches) {
  const double even = tile_us(c, p, d, uniform, launches);
  return c.skew == 0 ? even : (1 - c.skew) * even + c.skew * tile_us(c, p, d, zipf, launches);
}

double tile_in_layer_us(const ExpertGemm::Problem& p) {
  return tile_constants(p.w).in_layer_us[p.slots > 0 ? 0 : 1];
}

double stream_us(const StreamConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
                 const RowProfile& rows, const StreamLaunch& launch) {
  const FragmentShape fragments = ExpertGemm::fragments(p);
  const auto k_blocks = static_cast<double>(fragments.k_blocks),
             row_blocks = static_cast<double>(fragments.row_blocks);
  const double start = start_us(c, p);
  const double memory = bytes_of(p, rows) / (c.memory_share * d.mem_bytes_per_us);
  if (p.w == DType::kBF16 && launch.short_sums) {
    // Teams keep rows of x: with few columns there are more units, with many each has more instructions.
    double all = 0;
    for (const RowKind& kind : rows)
      all += kind.experts * std::ceil(std::max(1.0, kind.rows) / launch.columns - 1e-9) * row_blocks *
             (c.short_unit_us + k_blocks * (c.short_block_us[0] + c.short_block_us[1] * launch.columns));
    return start + std::max(all / d.cores, memory);
  }
  if (p.w == DType::kBF16) {
    double all = 0;
    for (const RowKind& kind : rows)
      all += kind.experts * std::ceil(std::max(1.0, kind.rows) / launch.columns - 1e-9) * row_blocks *
             k_blocks * c.block_us[0];
    return start + std::max(all / d.cores, memory) * (launch.small ? c.small : 1);
  }
  const size_t wide = launch.columns == 8 ? 0 : 1;
  double all = 0;
  for (const RowKind& kind : rows) {
    const double units = std::ceil(std::max(1.0, kind.rows) / launch.columns - 1e-9) * row_blocks;
    const double row = wide ? 0 : c.row_us * std::min(kind.rows, 8.0);
    all += kind.experts * units *
           (launch.short_sums ? c.short_unit_us + k_blocks * c.short_block_us[wide]
                              : c.unit_us + k_blocks * (c.block_us[wide] + row));
  }
  return start + std::max(all / d.cores, memory);
}

double stream_cost_us(const StreamConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
                      const StreamLaunch& launch) {
  const double even = stream_us(c, p, d, uniform_profile(p), launch);
  return c.skew == 0 ? even : (1 - c.skew) * even + c.skew * stream_us(c, p, d, zipf_profile(p), launch);
}

}  // namespace sluice::cuda
