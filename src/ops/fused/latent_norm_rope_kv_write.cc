#include "ops/fused/latent_norm_rope_kv_write.h"

#include <algorithm>

#include "ops/bounds.h"
#include "ops/reference/kv_write_reference.h"
#include "ops/reference/rope_reference.h"

namespace sluice {

Refusal LatentNormRopeKvWrite::validate(const Problem& p) {
  Refusal r = Rope::validate(p.rope);
  need_between(r, "rank", p.rank, 1, 1024);
  if (!r.accepted()) return r;
  r.append(RmsNorm::validate(norm(p)));
  // The other fields of the keys' rotation were checked above.
  need_between(r, "rank + rotary", row(p), 2, 1024);
  r.append(KvWrite::validate(write(p)));
  return r;
}

// For each token, reads and writes the rotated part of the queries and one cache row.
double LatentNormRopeKvWrite::bytes(const Problem& p) {
  return 2 * static_cast<double>(bytes_of(p.rope.x, p.rope.tokens * (p.rope.heads * p.rope.rotary + row(p))));
}

Expectations reference(const LatentNormRopeKvWrite::Problem& p, const LatentNormRopeKvWrite::Args& a) {
  using Op = LatentNormRopeKvWrite;
  Expected q = reference(p.rope, Rope::Args{.positions = a.positions, .table = a.table, .x = a.q}).front();
  q.slot = "q";
  const int64_t tokens = p.rope.tokens, row = Op::row(p);
  Tensor latent = a.k;
  latent.rank = 2;
  latent.shape = {tokens, p.rank};
  latent.stride = {a.k.stride[0], 1};
  const Expected normed =
      reference(Op::norm(p), RmsNorm::Args{.x = latent, .weight = a.norm_weight, .residual = {}, .y = latent})
          .front();
  Expected rows =
      reference(Op::keys(p), Rope::Args{.positions = a.positions, .table = a.table, .x = a.k}).front();
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < p.rank; ++i) {
      const auto to = static_cast<size_t>(t * row + i), from = static_cast<size_t>(t * p.rank + i);
      rows.value[to] = normed.value[from], rows.bound[to] = normed.bound[from];
    }
  Expected scratch{.slot = "k", .value = rows.value, .bound = {}};
  scratch.accept = [](size_t, double) { return true; };
  return {std::move(q), std::move(scratch), written("k_cache", Op::write(p), a.slot_of, rows, a.k_cache)};
}

}  // namespace sluice
