#include "ops/rope_kv_write.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

// The number of e4m3 that a key is stored as, by the rounding of a double: a key within a bound need not be a number of f32.
double rounded(double key) {
  const double size = std::min<double>(std::abs(key), kE4M3Max);
  const double step = std::ldexp(1.0, size < 0x1p-6 ? -9 : std::ilogb(size) - 3);
  return std::copysign(step * std::nearbyint(size / step), key);
}

// Keys within their bounds, rounded to e4m3: all that lies between what the ends of a bound become.
void accept_rounded(Expected* keys) {
  keys->accept = [value = keys->value, bound = keys->bound](size_t at, double got) {
    const double key = value[at];
    if (std::isnan(key)) return std::isnan(got);
    if (!std::isfinite(bound[at])) return true;
    return got >= rounded(key - bound[at]) && got <= rounded(key + bound[at]);
  };
}

}  // namespace

Refusal RopeKvWrite::validate(const Problem& p) {
  Refusal r = Rope::validate(p.rope);
  r.append(KvWrite::validate(write(p)));
  return r;
}

double RopeKvWrite::bytes(const Problem& p) { return Rope::bytes(p.rope) + KvWrite::bytes(write(p)); }

Expectations reference(const RopeKvWrite::Problem& p, const RopeKvWrite::Args& a) {
  Expected q = reference(p.rope, Rope::Args{.positions = a.positions, .table = a.table, .x = a.q}).front();
  q.slot = "q";
  const Expected turned =
      reference(RopeKvWrite::keys(p), Rope::Args{.positions = a.positions, .table = a.table, .x = a.k})
          .front();
  const KvWrite::Problem write = RopeKvWrite::write(p);
  Expectations out = reference(
      write,
      KvWrite::Args{.k = a.k, .v = a.v, .slot_of = a.slot_of, .k_cache = a.k_cache, .v_cache = a.v_cache});
  // The keys of the write are those that were turned, with their bounds; a cache of e4m3 holds what these become.
  Expected& keys = out.front();
  keys.bound.assign(keys.value.size(), 0);
  for (int64_t t = 0; t < write.tokens; ++t) {
    const int64_t to = a.slot_of.as<int32_t>()[t];
    if (to < 0 || to >= write.pages * write.page_size) continue;
    for (int64_t head = 0; head < write.kv_heads; ++head) {
      const int64_t row =
          (to / write.page_size * write.kv_heads + head) * write.page_size + to % write.page_size;
      for (int64_t i = 0; i < write.head_dim; ++i) {
        const auto from = static_cast<size_t>((t * write.kv_heads + head) * write.head_dim + i),
                   at = static_cast<size_t>(row * write.head_dim + i);
        keys.value[at] = turned.value[from];
        keys.bound[at] = turned.bound[from];
      }
    }
  }
  if (p.cache == CacheType::kE4M3) accept_rounded(&keys);
  out.insert(out.begin(), std::move(q));
  return out;
}

}  // namespace sluice
