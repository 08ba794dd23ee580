#include "ops/reference/kv_write_reference.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

// Calls put(element of the cache, token, element of the token's row) for each element written.
template <class Put>
void each_written(const KvWrite::Problem& p, const Tensor& slot_of, Put put) {
  for (int64_t t = 0; t < p.tokens; ++t) {
    const int64_t to = slot_of.as<int32_t>()[t];
    if (to < 0 || to >= p.pages * p.page_size) continue;
    for (int64_t head = 0; head < p.kv_heads; ++head) {
      const int64_t row = (to / p.page_size * p.kv_heads + head) * p.page_size + to % p.page_size;
      for (int64_t i = 0; i < p.head_dim; ++i)
        put(static_cast<size_t>(row * p.head_dim + i), t, head * p.head_dim + i);
    }
  }
}

Expected held(std::string_view slot, const Tensor& cache) {
  Expected out{.slot = slot, .value = {}, .bound = {}};
  for (int64_t i = 0; i < elements_of(cache); ++i) out.value.push_back(load(cache, i));
  return out;
}

// The value that a cache of `type` stores for an element of k or v.
double stored(DType type, double value) {
  return type == DType::kE4M3 ? to_float(to_e4m3(static_cast<float>(value))) : value;
}

// The e4m3 number that is stored for a key. Rounds a double, because a key within a bound need not be an f32 number.
double rounded(double key) {
  const double size = std::min<double>(std::abs(key), kE4M3Max);
  const double step = std::ldexp(1.0, size < 0x1p-6 ? -9 : std::ilogb(size) - 3);
  return std::copysign(step * std::nearbyint(size / step), key);
}

Expected copied(std::string_view slot, const KvWrite::Problem& p, const Tensor& slot_of, const Tensor& rows,
                const Tensor& cache) {
  Expected out = held(slot, cache);
  each_written(p, slot_of, [&](size_t at, int64_t t, int64_t i) {
    out.value[at] = stored(cache.dtype, load2(rows, t, i));
  });
  return out;
}

}  // namespace

Expected written(std::string_view slot, const KvWrite::Problem& p, const Tensor& slot_of,
                 const Expected& rows, const Tensor& cache) {
  Expected out = held(slot, cache);
  out.bound.assign(out.value.size(), 0);
  each_written(p, slot_of, [&](size_t at, int64_t t, int64_t i) {
    const auto from = static_cast<size_t>(t * p.kv_heads * p.head_dim + i);
    out.value[at] = rows.value[from];
    if (!rows.bound.empty()) out.bound[at] = rows.bound[from];
  });
  if (cache.dtype != DType::kE4M3) return out;
  out.accept = [value = out.value, bound = out.bound](size_t at, double got) {
    const double key = value[at];
    if (std::isnan(key)) return std::isnan(got);
    if (!std::isfinite(bound[at])) return true;
    return got >= rounded(key - bound[at]) && got <= rounded(key + bound[at]);
  };
  return out;
}

Expectations reference(const KvWrite::Problem& p, const KvWrite::Args& a) {
  Expectations out{copied("k_cache", p, a.slot_of, a.k, a.k_cache)};
  if (p.values) out.push_back(copied("v_cache", p, a.slot_of, a.v, a.v_cache));
  return out;
}

}  // namespace sluice
