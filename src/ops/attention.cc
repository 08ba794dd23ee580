#include "ops/attention.h"

#include "ops/bounds.h"

namespace sluice {

Refusal Attention::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, kRowsMax);
  need_between(r, "sequences", p.sequences, 1, 65536);
  need_between(r, "kv_heads", p.kv_heads, 1, 4096);
  need_between(r, "heads", p.heads, 1, 4096);
  need_between(r, "head_dim", p.head_dim, 1, 512);
  need_between(r, "pages", p.pages, 1, kRowsMax);
  need_between(r, "page_size", p.page_size, 1, 65536);
  need_between(r, "pages_per_seq", p.pages_per_seq, 1, kRowsMax);
  need_between(r, "window", p.window, 0, kRowsMax);
  need_between(r, "rows_max", p.rows_max, 0, kRowsMax);
  if (r.accepted()) {
    r.need(p.heads % p.kv_heads == 0, "heads a multiple of kv_heads", "heads", p.heads);
    need_between(r, "pages * page_size", p.pages * p.page_size, 1, kRowsMax);
    need_between(r, "pages_per_seq * page_size", p.pages_per_seq * p.page_size, 1, kRowsMax);
  }
  need_real(r, "scale", "from 2^-100 to 2^100", p.scale >= 0x1p-100 && p.scale <= 0x1p100, p.scale);
  need_float(r, "q", p.q);
  need_float(r, "s", p.s);
  return r;
}

double Attention::bytes(const Problem& p) {
  const int64_t context =
      p.window && p.window < p.pages_per_seq * p.page_size ? p.window : p.pages_per_seq * p.page_size;
  const int64_t keys = p.sequences * context * p.kv_heads * p.head_dim;
  return 2.0 * static_cast<double>(bytes_of(cache_dtype(p.cache, p.q), keys)) +
         2.0 * static_cast<double>(bytes_of(p.q, p.tokens * p.heads * p.head_dim));
}

double Attention::flops(const Problem& p) {
  const int64_t context =
      p.window && p.window < p.pages_per_seq * p.page_size ? p.window : p.pages_per_seq * p.page_size;
  return 4.0 * static_cast<double>(p.tokens) * static_cast<double>(p.heads * p.head_dim) *
         static_cast<double>(context);
}

}  // namespace sluice
