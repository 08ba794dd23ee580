#include "backends/cuda/experts/cost/cost.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace sluice::cuda {
namespace {

#include "backends/cuda/measured/expert_costs.inc"

// A smooth maximum of two times: the power-th root of the sum of their power-th powers.
double larger(double a, double b, double power) {
  return std::pow(std::pow(a, power) + std::pow(b, power), 1 / power);
}
// The same with power 8, for the products and the copies of a tile.
double larger(double a, double b) {
  const auto eighth = [](double x) { return x *= x, x *= x, x * x; };
  return std::sqrt(std::sqrt(std::sqrt(eighth(a) + eighth(b))));
}

constexpr double kBlockRows = 64, kFragmentsOfBlock = 4;
// Bytes of a row of x in a k block.
double row_bytes(const ExpertGemm::Problem& p) { return p.x == DType::kE4M3 ? 64 : 128; }

// Single-CTA kernels that decode may cut the tiles of the last round into tiles for one or two of their warpgroups.
bool cuts_last_round(DType w, const TileKernel& k) { return w != DType::kBF16 && k.ctas() == 1; }
// Bytes that a gather warp copies at once (kGatherRows x kGatherBlocks of tiles.cuh).
double gather_item_bytes(DType w, const TileKernel& k) {
  return 128 * (w != DType::kBF16 ? 8 * 5 : k.shares == PairShares::kWeights ? 4 * 8 : 8 * 12);
}
constexpr double kGatherWarps = 2;  // per CTA

TileWork work_of(const TileConstants& c, const ExpertGemm::Problem& p, int kernel, double rows) {
  const auto index = static_cast<size_t>(kernel);
  const WeightFormat f = ExpertGemm::format(p);
  const TileKernel& k = tile_kernels(p)[index];
  const double tile_rows = k.rows_of_x(), tiles = std::ceil(std::max(1.0, rows) / tile_rows - 1e-9);
  // The mean width of a tile, per CTA. The numbers of steps in an expert's tiles differ by at most one.
  const double columns =
      std::clamp(std::ceil(rows / k.n_step - 1e-9) * k.n_step / tiles / (k.rows_of_x() / k.n_max),
                 static_cast<double>(k.n_min), static_cast<double>(k.n_max));
  const FragmentShape shape = ExpertGemm::fragments(p);
  const auto k_blocks = static_cast<double>(shape.k_blocks),
             row_blocks = static_cast<double>(shape.row_blocks);
  // The height of an expert's weights in tiles, counted in warpgroups with work: its last tile may have fewer row blocks.
  const double groups = k.groups(f.scaled()), blocks = k.tile_m / kBlockRows;
  const double of_group = blocks / groups * (k.shares == PairShares::kRowsOfX ? 2 : 1);
  const double group_tiles = std::ceil(row_blocks / of_group) / groups, whole = std::floor(group_tiles),
               rest = group_tiles - whole;
  const double products = blocks * kFragmentsOfBlock * c.pace[index] *
                          larger(c.fragment_ns + c.fragment_column_ns * columns, c.column_ns * columns);
  // Each CTA of a pair loads half of the shared operand.
  const double weights = blocks * static_cast<double>(fragment_code_bytes(f.w) + fragment_scale_bytes(f)) *
                         (k.shares == PairShares::kWeights ? 0.5 : 1);
  const double rows_of_x = columns * (k.shares == PairShares::kRowsOfX ? 0.5 : 1);
  const double fill = weights / c.fill_bytes_per_ns + rows_of_x * (k.x == XSource::kThreads ? 0
                                                                   : k.x == XSource::kRowBoxes
                                                                       ? c.row_box_ns
                                                                       : row_bytes(p) / c.fill_bytes_per_ns);
  const double threads = k.x == XSource::kThreads ? columns * c.thread_row_ns : 0;
  const double us = k_blocks * larger(products, std::max(fill, threads)) / 1e3 + c.end_us +
                    c.end_row_us * columns * blocks + c.short_us / k_blocks;
  // Threads copy all rows of x of a tile even if it has few row blocks.
  const double of_rest = rest == 0 ? 0 : std::max(std::pow(rest, c.partial), k_blocks * threads / 1e3 / us);
  return {tiles, whole + (rest > 0), whole + of_rest, us};
}

// The idle time in the last round, in units of a tile's time: duration of the round minus the fraction of the grid that has a tile.
double idle_in_last_round(bool cuts, double rounds) {
  const double share = rounds - std::floor(rounds + 1e-9);
  if (share < 1e-6) return 0;
  // Tiles cut to one warpgroup take about half of a whole tile's time; those cut to two, about three quarters (schedule.cuh).
  const double takes = !cuts ? 1 : share <= 1.0 / 3 ? 0.5 : share <= 2.0 / 3 ? 0.75 : 1;
  return std::max(0.0, takes - share);
}

double moved_bytes(const ExpertGemm::Problem& p) {
  return ExpertGemm::expected_rows(p) * static_cast<double>(sluice::bytes_of(DType::kBF16, p.width));
}

// Bytes that must pass through memory: the weights of experts with rows, x, and y. A token's row of x
// is counted once, because it stays in L2. Copying rows into y's order adds one more pass over them.
double bytes_of(const ExpertGemm::Problem& p, const RowProfile& rows, bool orders) {
  double experts = 0;
  for (const RowKind& kind : rows) experts += kind.experts;
  const double each = static_cast<double>(ExpertGemm::packed_bytes(p) + ExpertGemm::packed_scale_bytes(p));
  const double all = ExpertGemm::expected_rows(p),
               of_x = p.slots > 0 ? std::min(all, static_cast<double>(p.tokens)) : all;
  return experts * each + of_x * static_cast<double>(sluice::bytes_of(p.x, p.width)) +
         all * static_cast<double>(sluice::bytes_of(p.y, p.features)) + (orders ? moved_bytes(p) : 0);
}

template <class Constants>
double start_us(const Constants& c, const ExpertGemm::Problem& p) {
  return c.start_us - (p.settled ? c.settled_us : 0) + (p.slots > 0 ? c.by_position_us : 0);
}

// The constants are for an H200. With slower memory, stream kernels come nearer to the memory rate than
// tile kernels with few rows per expert do. This factor is set by hand so that gpt-oss steps on an H100
// use the fastest kernels (bench/measured/h100/step_candidates.csv; tests/cuda/regret_test.cc).
double slow_memory(const DeviceInfo& d, double rows_each) {
  constexpr double kFittedBytesPerUs = 4.6e6, kSlow = 0.46, kSlowRow = 0.06;
  return 1 + std::max(0.0, 1 - d.mem_bytes_per_us / kFittedBytesPerUs) *
                 std::max(0.0, kSlow - kSlowRow * (std::max(1.0, rows_each) - 1));
}

// Sets the constants of the products. The other constants are the same as for MXFP4.
void set_products(TileConstants* c, double fragment, double column, double products, double end,
                  std::initializer_list<double> pace) {
  c->fragment_ns = fragment, c->fragment_column_ns = column, c->column_ns = products, c->end_us = end;
  std::copy(pace.begin(), pace.end(), c->pace.begin());
}

// The formats of kDecodedTiles. FP8 is fitted to configurations that were measured in the same run as the
// configurations of fp8_tile_constants(). For MXFP8 and NVFP4 decoding
// is assumed to be as fast as for MXFP4. Each warpgroup has one row block, as in the wide MXFP4 kernels.
TileConstants decoded_tile_constants(WeightFormat f) {
  TileConstants c = kMxfp4TileConstants;
  c.pace.fill(1), c.memory.fill(1);
  if (f.scales == WeightScales::kBlocks)
    set_products(&c, 13.9, 0, 0.431, 0.377, {1.406, 1.135, 0.974, 0.856, 0.92});
  if (f.scales == WeightScales::kRows)
    set_products(&c, 13.1, 0, 0.388, 0.332, {1.409, 1.15, 1.021, 0.895, 0.83});
  return c;
}

// FP8 weights with f32 scales. In units of 16 columns of DeepSeek V3's up product (blocks, 512 tokens, 16 rows per expert) the products
// took 337 us; MXFP4's constants give 222 us. The same factor is assumed for units of 8 columns.
StreamConstants fp8_stream_constants() {
  StreamConstants c = kMxfp4StreamConstants;
  constexpr double kSlower = 1.55;
  for (double& us : c.block_us) us *= kSlower;
  return c;
}

// Of the kernels that multiply in FP8, fitted to each configuration of the layers of docs/lab/cuda-fp8-activations.md (5 to 7% off in
// the root mean square).
TileConstants fp8_tile_constants(WeightFormat f) {
  TileConstants c = decoded_tile_constants({DType::kE2M1});
  if (f.w == DType::kE2M1) {
    set_products(&c, 12.13, 0.1441, 0.2308, 0.6394, {1.034, 0.9543, 0.8954});
  } else if (f.scales == WeightScales::kBlocks) {
    set_products(&c, 10.4, 0.008, 0.2136, 0.836, {1.359, 0.835, 0.858});
  } else {
    set_products(&c, 0.11, 0.001, 0.2049, 0.901, {1.412, 0.805, 0.885});
  }
  constexpr double kMargin = 1.02;  // rows are rounded only where that is clearly faster
  for (double& pace : c.pace) pace *= kMargin;
  return c;
}

bool prepares_rows(std::span<const TileLaunch> launches) {
  return !launches.empty() && launches[0].kernel < 0;
}

}  // namespace

void need_expert_blocks(Refusal& r, const ExpertGemm::Problem& p, const DeviceInfo& d) {
  need_sm90(r, d);
  r.need(p.layout == WeightLayout::kFragments, "layout fragments (ops/fragment_layout.h)",
         "layout=" + std::string(word(p.layout)));
  need_type(r, "x", p.x, DType::kBF16, "wgmma operand");
  need_multiple(r, "width", p.width, 8, "copies of 16 bytes");
}

void need_format(Refusal& r, WeightFormat found, WeightFormat wanted, std::string_view cause) {
  if (found == wanted) return;
  r.need(
      false, "w in " + text(wanted) + " (" + std::string(cause) + ")",
      "w=" + text(found) +
          // If the types are equal but the scales differ, the text names the scales even if they are the type's default.
          (found.w == wanted.w && text(found) == text(found.w)
               ? " with scales=" + std::string(word(found.scales))
               : ""));
}

ExpertLoad expert_load(const ExpertGemm::Problem& p) {
  const double rows = ExpertGemm::expected_rows(p);
  const double active = active_experts(rows, p.experts);
  return {active, active > 0 ? rows / active : 0};
}

const TileConstants& tile_constants(WeightFormat f) {
  if (!f.scaled()) return kBf16TileConstants;
  if (f == WeightFormat{DType::kE2M1}) return kMxfp4TileConstants;
  static const TileConstants kDecoded = decoded_tile_constants({DType::kE4M3}),
                             kBlocks = decoded_tile_constants({DType::kE4M3, WeightScales::kBlocks}),
                             kRows = decoded_tile_constants({DType::kE4M3, WeightScales::kRows});
  return f.scales == WeightScales::kBlocks ? kBlocks : f.scales == WeightScales::kRows ? kRows : kDecoded;
}
const TileConstants& tile_constants_of(const ExpertGemm::Problem& p) {
  const WeightFormat f = ExpertGemm::format(p);
  if (p.x != DType::kE4M3) return tile_constants(f);
  static const TileConstants kMxfp4 = fp8_tile_constants({DType::kE2M1}),
                             kBlocks = fp8_tile_constants({DType::kE4M3, WeightScales::kBlocks}),
                             kRows = fp8_tile_constants({DType::kE4M3, WeightScales::kRows});
  return f.w == DType::kE2M1 ? kMxfp4 : f.scales == WeightScales::kBlocks ? kBlocks : kRows;
}
const StreamConstants& stream_constants(WeightFormat f) {
  static const StreamConstants kFp8 = fp8_stream_constants();
  if (f.scales == WeightScales::kBlocks || f.scales == WeightScales::kRows) return kFp8;
  return f.scaled() ? kMxfp4StreamConstants : kBf16StreamConstants;
}

const TileWork& TileWorks::of(int kernel, int kind) {
  std::vector<TileWork>& known = known_[static_cast<size_t>(kernel)];
  known.resize(static_cast<size_t>(rows_.kinds));
  TileWork& work = known[static_cast<size_t>(kind)];
  if (work.us == 0) work = work_of(c_, p_, kernel, rows_.of[static_cast<size_t>(kind)].rows);
  return work;
}

double tile_us(TileWorks* works, const DeviceInfo& d, std::span<const TileLaunch> launches) {
  const TileConstants& c = works->constants();
  const ExpertGemm::Problem& p = works->problem();
  const RowProfile& rows = works->rows();
  const auto kernels = tile_kernels(p);
  const double moved = moved_bytes(p);
  double us = start_us(c, p) + c.in_layer_us[p.slots > 0 ? 0 : 1];
  bool orders = false;
  if (prepares_rows(launches)) {
    orders = launches[0].kernel != TileLaunch::kQuantizeRows;
    const double all = ExpertGemm::expected_rows(p),
                 of_tokens = p.slots > 0 ? static_cast<double>(p.tokens) / std::max(1.0, all) : 1;
    us += c.order_us + moved * (orders ? 1 : std::min(1.0, of_tokens)) / c.order_bytes_per_us;
    launches = launches.subspan(1);
  }
  us += c.follow_us * static_cast<double>(launches.size() - 1);
  // all: time per SM. last_tiles, last_us: number and total time of the tiles of the last launch.
  double all = 0, longest = 0, last_tiles = 0, last_us = 0, memory_weight = 0, experts = 0;
  for (int index = 0; index < rows.kinds; ++index)
    for (size_t i = 0; i < launches.size(); ++i) {
      const RowKind& kind = rows.of[static_cast<size_t>(index)];
      const TileLaunch& launch = launches[i];
      const double whole = std::round(kind.rows);
      if (whole < launch.rows_min || whole > launch.rows_max) continue;
      const TileWork& work = works->of(launch.kernel, index);
      const double ctas = kernels[static_cast<size_t>(launch.kernel)].ctas();
      all += kind.experts * work.tiles * work.along_m_time * ctas * work.us / d.cores;
      memory_weight += kind.experts / c.memory[static_cast<size_t>(launch.kernel)], experts += kind.experts;
      longest = std::max(longest, work.us);
      if (i + 1 == launches.size()) {
        const double tiles = kind.experts * work.tiles * work.along_m;
        last_tiles += tiles, last_us += tiles * work.us;
      }
      break;
    }
  if (experts == 0) return us;
  const TileKernel& last = kernels[static_cast<size_t>(launches.back().kernel)];
  if (last_tiles > 0) {
    const double tile = last_us / last_tiles,
                 idle = idle_in_last_round(cuts_last_round(p.w, last), last_tiles * last.ctas() / d.cores);
    all += tile * idle * c.tail;
  }
  double products = std::max(longest * std::min(1.0, experts), all);
  for (const TileLaunch& launch : launches) {
    const TileKernel& k = kernels[static_cast<size_t>(launch.kernel)];
    if (k.x != XSource::kGathered) continue;
    orders = true, us += c.gather_us;
    products =
        larger(products, moved / gather_item_bytes(p.w, k) * c.gather_item_us / (kGatherWarps * d.cores));
  }
  const double memory =
      bytes_of(p, rows, orders) * (memory_weight / experts) / (c.memory_share * d.mem_bytes_per_us);
  return us + larger(products, memory, c.blend) *
                  (p.w != DType::kBF16 ? slow_memory(d, expert_load(p).rows_each) : 1);
}

double tile_cost_us(TileWorks* uniform, TileWorks* zipf, const DeviceInfo& d,
                    std::span<const TileLaunch> launches) {
  const double even = tile_us(uniform, d, launches), skew = uniform->constants().skew;
  return skew == 0 ? even : (1 - skew) * even + skew * tile_us(zipf, d, launches);
}

double grouped_tiles_cost_us(const GroupedMlp::Problem& p, const DeviceInfo& d, int kernel) {
  const TileConstants& c = tile_constants({DType::kE2M1});
  const TileLaunch launch{.kernel = kernel};
  const auto part = [&](const ExpertGemm::Problem& of) {
    TileWorks uniform(c, of, uniform_profile(of)), zipf(c, of, zipf_profile(of));
    return tile_cost_us(&uniform, &zipf, d, {&launch, 1});
  };
  const ExpertGemm::Problem up = GroupedMlp::up(p), down = GroupedMlp::down(p);
  // Set by hand to match measured layers of gpt-oss and DeepSeek V4 Flash at 4 to 1024 tokens on an H200
  // (bench/measured/h200/mxfp4_candidates.csv), relative to the best unfused kernels. One launch less is
  // started and finished, but threads copy rows of h, which a separate down kernel loads as TMA boxes.
  constexpr double kSavedUs = 4.3, kByThreads = 0.035, kRows = 8;
  const double products = part(up) + part(down) - start_us(c, down) - c.in_layer_us[1],
               rows = expert_load(up).rows_each;
  return products * (1 + kByThreads * std::min(1.0, rows / kRows)) - kSavedUs;
}

double routed_bytes(const ExpertGemm::Problem& p) {
  const double skew = tile_constants(ExpertGemm::format(p)).skew;
  return (1 - skew) * bytes_of(p, uniform_profile(p), false) + skew * bytes_of(p, zipf_profile(p), false);
}

double tile_in_layer_us(const ExpertGemm::Problem& p) {
  return tile_constants(ExpertGemm::format(p)).in_layer_us[p.slots > 0 ? 0 : 1];
}

double stream_us(const StreamConstants& c, const ExpertGemm::Problem& p, const DeviceInfo& d,
                 const RowProfile& rows, const StreamLaunch& launch) {
  const FragmentShape fragments = ExpertGemm::fragments(p);
  const auto k_blocks = static_cast<double>(fragments.k_blocks),
             row_blocks = static_cast<double>(fragments.row_blocks);
  const double start = start_us(c, p);
  const double memory = bytes_of(p, rows, false) / (c.memory_share * d.mem_bytes_per_us);
  if (p.w == DType::kBF16 && launch.short_sums) {
    // Fewer columns per unit make more units; more columns make more instructions per unit.
    double all = 0;
    for (const RowKind& kind : rows)
      all += kind.experts * std::ceil(std::max(1.0, kind.rows) / launch.columns - 1e-9) * row_blocks *
             (c.short_unit_us + k_blocks * (c.short_block_us[0] + c.short_block_us[1] * launch.columns));
    return start + std::max(all / d.cores, memory);
  }
  if (p.w == DType::kBF16) {
    // Number of row blocks of 64, and of CTAs, which have one (small) or two of them.
    const double of_cta = launch.small ? 1 : 2;
    double blocks = 0, ctas = 0;
    for (const RowKind& kind : rows) {
      const double columns = kind.experts * std::ceil(std::max(1.0, kind.rows) / launch.columns - 1e-9);
      blocks += columns * row_blocks, ctas += columns * std::ceil(row_blocks / of_cta);
    }
    const double all = blocks * k_blocks * c.block_us[0];
    // A grid of few CTAs does not reach the memory rate, however short it is:
    // each of its rounds takes the time in which one CTA streams its weights.
    const double weights = k_blocks * kBlockRows * kBlockRows * 2 * of_cta,
                 rounds = std::min(ctas, std::ceil(ctas / d.cores));
    constexpr double kBlend = 4;
    return start + larger(std::max(all / d.cores, memory), rounds * weights / c.lone_bytes_per_us, kBlend) *
                       (launch.small ? c.small : 1);
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
