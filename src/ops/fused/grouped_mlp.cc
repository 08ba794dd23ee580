#include "ops/fused/grouped_mlp.h"

namespace sluice {

ExpertGemm::Args GroupedMlp::up(const Problem& p, const Args& a, const Tensor& h) {
  ExpertMlp::Args all;
  all.x = a.x, all.up = a.up, all.up_scale = a.up_scale, all.up_bias = a.up_bias, all.weights = a.weights;
  GroupRows::Args groups;
  groups.row_begin = a.row_begin, groups.row_count = a.row_count, groups.order = a.order;
  return ExpertMlp::up(p.mlp, all, groups, h);
}

ExpertGemm::Args GroupedMlp::down(const Args& a, const Tensor& h) {
  ExpertMlp::Args all;
  all.down = a.down, all.down_scale = a.down_scale, all.down_bias = a.down_bias;
  GroupRows::Args groups;
  groups.row_begin = a.row_begin, groups.row_count = a.row_count;
  return ExpertMlp::down(all, groups, h, a.g);
}

double GroupedMlp::bytes(const Problem& p) {
  const ExpertGemm::Problem first = up(p), second = down(p);
  // The first GEMM writes rows of h, and the second GEMM reads them.
  const double between =
      2 * ExpertGemm::expected_rows(first) * static_cast<double>(bytes_of(p.mlp.x, p.mlp.intermediate));
  return ExpertGemm::bytes(first) + ExpertGemm::bytes(second) - between;
}

}  // namespace sluice
