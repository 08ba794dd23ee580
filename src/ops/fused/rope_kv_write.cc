#include "ops/fused/rope_kv_write.h"

#include "ops/reference/kv_write_reference.h"

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
  const Expected keys =
      reference(RopeKvWrite::keys(p), Rope::Args{.positions = a.positions, .table = a.table, .x = a.k})
          .front();
  const KvWrite::Problem write = RopeKvWrite::write(p);
  Expected values =
      reference(
          write,
          KvWrite::Args{.k = a.k, .v = a.v, .slot_of = a.slot_of, .k_cache = a.k_cache, .v_cache = a.v_cache})
          .back();
  return {std::move(q), written("k_cache", write, a.slot_of, keys, a.k_cache), std::move(values)};
}

}  // namespace sluice
