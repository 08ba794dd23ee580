#include "ops/rope_kv_write.h"

namespace sluice {

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
  // The keys of the write are those that were turned, with their bounds.
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
  out.insert(out.begin(), std::move(q));
  return out;
}

}  // namespace sluice
