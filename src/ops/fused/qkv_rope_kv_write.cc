#include "ops/fused/qkv_rope_kv_write.h"

#include <cmath>

#include "ops/reference/kv_write_reference.h"
#include "ops/reference/qkv_rope_kv_write_reference.h"
#include "ops/reference/rope_reference.h"

namespace sluice {
namespace {

// Columns [first, first + count) of rows of `width` expected values, with their error bounds.
Expected columns(const Expected& rows, int64_t tokens, int64_t width, int64_t first, int64_t count) {
  Expected out{.slot = "columns", .value = {}, .bound = {}};
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(t * width + first + i);
      out.value.push_back(rows.value[at]);
      out.bound.push_back(rows.bound[at]);
    }
  return out;
}

}  // namespace

Tensor QkvRopeKvWrite::heads_of(const Tensor& qkv, int64_t first, int64_t count, int64_t head_dim) {
  Tensor out = qkv;
  out.data = qkv.as<std::byte>() + bytes_of(qkv.dtype, first * head_dim);
  out.rank = 3;
  out.shape = {qkv.shape[0], count, head_dim};
  out.stride = {qkv.stride[0], head_dim, 1};
  return out;
}

Refusal QkvRopeKvWrite::validate(const Problem& p) {
  Refusal r = Linear::validate(project(p));
  r.append(RopeKvWrite::validate(p.rope));
  return r;
}

double QkvRopeKvWrite::bytes(const Problem& p) {
  const KvWrite::Problem write = RopeKvWrite::write(p.rope);
  const DType cache = cache_dtype(write.cache, write.kv);
  return Linear::bytes(project(p)) +
         2 * static_cast<double>(bytes_of(cache, write.tokens * write.kv_heads * write.head_dim));
}

Expectations reference(const QkvRopeKvWrite::Problem& p, const QkvRopeKvWrite::Args& a) {
  return rotated_and_written(p, a, reference(QkvRopeKvWrite::project(p), QkvRopeKvWrite::project(a)).front());
}

Expectations rotated_and_written(const QkvRopeKvWrite::Problem& p, const QkvRopeKvWrite::Args& a,
                                 const Expected& rows) {
  const Linear::Problem linear = QkvRopeKvWrite::project(p);
  const Rope::Problem& rotated = p.rope.rope;
  const int64_t tokens = linear.tokens, width = linear.features,
                of_queries = rotated.heads * rotated.head_dim, of_keys = p.rope.kv_heads * rotated.head_dim;
  const auto part = [&](int64_t first, int64_t count) { return columns(rows, tokens, width, first, count); };
  const Rope::Args tables{.positions = a.positions, .table = a.table, .x = {}};
  Expected queries = part(0, of_queries), keys = part(of_queries, of_keys);
  rotate(rotated, tables, &queries);
  rotate(RopeKvWrite::keys(p.rope), tables, &keys);

  Expected qkv = rows;
  qkv.slot = "qkv";
  std::vector<uint8_t> scratch(qkv.value.size(), 1);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < of_queries; ++i) {
      const auto at = static_cast<size_t>(t * width + i), from = static_cast<size_t>(t * of_queries + i);
      qkv.value[at] = queries.value[from], qkv.bound[at] = queries.bound[from], scratch[at] = 0;
    }
  qkv.accept = [value = qkv.value, bound = qkv.bound, scratch = std::move(scratch)](size_t at, double got) {
    if (scratch[at]) return true;
    return std::isnan(value[at]) ? std::isnan(got)
                                 : got == value[at] || std::abs(got - value[at]) <= bound[at];
  };
  const KvWrite::Problem write = RopeKvWrite::write(p.rope);
  return {std::move(qkv), written("k_cache", write, a.slot_of, keys, a.k_cache),
          written("v_cache", write, a.slot_of, part(of_queries + of_keys, of_keys), a.v_cache)};
}

}  // namespace sluice
