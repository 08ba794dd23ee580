#include "backends/cuda/expert_cost.h"

namespace sluice::cuda {
namespace {

struct Row {
  double columns, ns;
};
// From gpt-oss-20b, gpt-oss-120b and DeepSeek V4 Flash at 1 to 4096 tokens.
constexpr Row kMeasured[] = {{8, 16.2},  {12, 16.6}, {16, 17.1}, {20, 17.7}, {28, 19.1},  {36, 21.1},
                             {44, 23.5}, {52, 25.1}, {68, 28.2}, {84, 33.5}, {100, 38.4}, {132, 47.3}};

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

ColumnTiles column_tiles(double rows, double least, double most) {
  const double tiles = std::max(1.0, std::ceil(rows / most));
  constexpr double kPadding =
      4;  // experts differ and each of them pads to 8, which costs half of that on average
  return {tiles, std::max(least, rows / tiles + kPadding)};
}

double tile_fragment_ns(double columns) {
  const Row* above = kMeasured;
  while (above + 1 < std::end(kMeasured) && above->columns < columns) ++above;
  if (above == kMeasured) return above->ns;
  const Row* below = above - 1;
  return below->ns + (columns - below->columns) / (above->columns - below->columns) * (above->ns - below->ns);
}

}  // namespace sluice::cuda
