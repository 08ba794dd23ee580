#include "ops/kv_write.h"

#include "ops/bounds.h"

namespace sluice {

Refusal KvWrite::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, kRowsMax);
  need_between(r, "kv_heads", p.kv_heads, 1, 4096);
  need_between(r, "head_dim", p.head_dim, 1, kHeadDimMax);
  need_between(r, "pages", p.pages, 1, kRowsMax);
  need_between(r, "page_size", p.page_size, 1, 65536);
  if (r.accepted()) need_between(r, "pages * page_size", p.pages * p.page_size, 1, kRowsMax);
  need_float(r, "kv", p.kv);
  return r;
}

double KvWrite::bytes(const Problem& p) {
  const int64_t elements = p.tokens * p.kv_heads * p.head_dim;
  return (p.values ? 2.0 : 1.0) *
         static_cast<double>(bytes_of(p.kv, elements) + bytes_of(cache_dtype(p.cache, p.kv), elements));
}

}  // namespace sluice
