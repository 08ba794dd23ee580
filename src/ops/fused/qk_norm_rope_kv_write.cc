#include "ops/fused/qk_norm_rope_kv_write.h"

#include <algorithm>

#include "ops/bounds.h"
#include "ops/reference/kv_write_reference.h"
#include "ops/reference/rope_reference.h"

namespace sluice {

RmsNorm::Args QkNormRopeKvWrite::in_place(const Tensor& heads, const Tensor& weight) {
  Tensor rows = heads;
  rows.rank = 2;
  rows.shape = {heads.shape[0], heads.shape[1] * heads.shape[2]};
  rows.stride = {heads.stride[0], 1};
  return {.x = rows, .weight = weight, .residual = {}, .y = rows};
}

Refusal QkNormRopeKvWrite::validate(const Problem& p) {
  Refusal r = RopeKvWrite::validate(p.rotation);
  r.append(RmsNorm::validate(queries(p)));
  // The other fields of the keys' norm were checked above.
  need_between(r, "kv_heads", p.rotation.kv_heads, 1,
               kWidthMax / std::clamp<int64_t>(p.rotation.rope.head_dim, 1, kWidthMax));
  return r;
}

Expectations reference(const QkNormRopeKvWrite::Problem& p, const QkNormRopeKvWrite::Args& a) {
  const Rope::Problem& rope = p.rotation.rope;
  const Rope::Args tables{.positions = a.positions, .table = a.table, .x = {}};
  Expected q = reference(QkNormRopeKvWrite::queries(p), QkNormRopeKvWrite::queries(a)).front(),
           keys = reference(QkNormRopeKvWrite::keys(p), QkNormRopeKvWrite::keys(a)).front();
  rotate(rope, tables, &q);
  rotate(RopeKvWrite::keys(p.rotation), tables, &keys);
  q.slot = "q";
  const KvWrite::Problem write = RopeKvWrite::write(p.rotation);
  Expected values =
      reference(
          write,
          KvWrite::Args{.k = a.k, .v = a.v, .slot_of = a.slot_of, .k_cache = a.k_cache, .v_cache = a.v_cache})
          .back();
  Expected scratch{.slot = "k", .value = keys.value, .bound = {}};
  scratch.accept = [](size_t, double) { return true; };
  return {std::move(q), std::move(scratch), written("k_cache", write, a.slot_of, keys, a.k_cache),
          std::move(values)};
}

}  // namespace sluice
