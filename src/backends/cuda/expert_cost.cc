#include "backends/cuda/expert_cost.h"

namespace sluice::cuda {
namespace {

struct Row {
  double columns;
  FragmentTime time;
};
// H200, sustained at 700 W, 132 SMs, best of the loops tried for each width.
constexpr Row kMeasured[] = {
    {8, {15.3, 0.23}},  {16, {17.0, 0.37}},  {32, {19.2, 0.42}},  {48, {22.3, 0.54}},  {64, {26.2, 0.50}},
    {96, {33.5, 0.53}}, {128, {41.5, 0.49}}, {160, {51.4, 0.46}}, {192, {60.8, 0.50}}, {256, {79.4, 0.37}},
};

}  // namespace

void need_expert_blocks(Refusal& r, const ExpertGemm::Problem& p, const DeviceInfo& d) {
  need_sm90(r, d);
  r.need(p.layout == WeightLayout::kFragments, "layout fragments (ops/fragment_layout.h)",
         "layout=" + std::string(word(p.layout)));
  need_type(r, "x", p.x, DType::kBF16, "wgmma operand");
  need_multiple(r, "width", p.width, 8, "copies of 16 bytes");
}

ExpertLoad expert_load(const ExpertGemm::Problem& p) {
  const double rows = static_cast<double>(p.rows_expected ? p.rows_expected : p.rows);
  const double active = active_experts(rows, p.experts);
  return {active, active > 0 ? rows / active : 0};
}

ColumnTiles column_tiles(double rows, double least, double most) {
  const double tiles = std::max(1.0, std::ceil(rows / most));
  constexpr double kPadding =
      4;  // experts differ and each of them pads to 8, which costs half of that on average
  return {tiles, std::max(least, rows / tiles + kPadding)};
}

FragmentTime fragment_time(double columns) {
  const Row* above = kMeasured;
  while (above + 1 < std::end(kMeasured) && above->columns < columns) ++above;
  if (above == kMeasured) return above->time;
  const Row* below = above - 1;
  const double t = (columns - below->columns) / (above->columns - below->columns);
  const auto mix = [t](double a, double b) { return a + t * (b - a); };
  return {mix(below->time.compute_ns, above->time.compute_ns),
          mix(below->time.copy_share, above->time.copy_share)};
}

}  // namespace sluice::cuda
