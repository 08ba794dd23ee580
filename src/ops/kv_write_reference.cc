#include "ops/kv_write.h"

namespace sluice {
namespace {

// What a cache of `type` holds for an element of k or v.
double stored(DType type, double value) {
  return type == DType::kE4M3 ? to_float(to_e4m3(static_cast<float>(value))) : value;
}

Expected written(std::string_view slot, const KvWrite::Problem& p, const Tensor& slot_of, const Tensor& rows,
                 const Tensor& cache) {
  Expected out{.slot = slot, .value = {}, .bound = {}};
  for (int64_t i = 0; i < elements_of(cache); ++i) out.value.push_back(load(cache, i));
  for (int64_t t = 0; t < p.tokens; ++t) {
    const int64_t to = slot_of.as<int32_t>()[t];
    if (to < 0 || to >= p.pages * p.page_size) continue;
    for (int64_t head = 0; head < p.kv_heads; ++head) {
      const int64_t row = (to / p.page_size * p.kv_heads + head) * p.page_size + to % p.page_size;
      for (int64_t i = 0; i < p.head_dim; ++i)
        out.value[static_cast<size_t>(row * p.head_dim + i)] =
            stored(cache.dtype, load2(rows, t, head * p.head_dim + i));
    }
  }
  return out;
}

}  // namespace

Expectations reference(const KvWrite::Problem& p, const KvWrite::Args& a) {
  Expectations out{written("k_cache", p, a.slot_of, a.k, a.k_cache)};
  if (p.values) out.push_back(written("v_cache", p, a.slot_of, a.v, a.v_cache));
  return out;
}

}  // namespace sluice
