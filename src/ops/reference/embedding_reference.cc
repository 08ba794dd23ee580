#include "ops/embedding.h"

namespace sluice {

Expectations reference(const Embedding::Problem& p, const Embedding::Args& a) {
  Expected y{.slot = "y", .value = {}, .bound = {}};
  for (int64_t t = 0; t < p.tokens; ++t) {
    const int64_t id = a.ids.as<int32_t>()[t];
    for (int64_t h = 0; h < p.hidden; ++h) {
      const double v = id >= 0 && id < p.vocab ? load2(a.table, id, h) : 0;
      y.value.push_back(p.y == DType::kBF16 ? to_float(to_bf16(static_cast<float>(v))) : v);
    }
  }
  return {y};
}

}  // namespace sluice
