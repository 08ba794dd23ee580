#include "ops/latent_attention.h"

#include "ops/bounds.h"

namespace sluice {

Refusal LatentAttention::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, kRowsMax);
  need_between(r, "sequences", p.sequences, 1, 65536);
  need_between(r, "heads", p.heads, 1, 4096);
  need_between(r, "rank", p.rank, 1, 1024);
  need_between(r, "nope", p.nope, 1, 1024);
  need_between(r, "rope", p.rope, 1, 1024);
  need_between(r, "v_dim", p.v_dim, 1, 1024);
  need_between(r, "pages", p.pages, 1, kRowsMax);
  need_between(r, "page_size", p.page_size, 1, 65536);
  need_between(r, "pages_per_seq", p.pages_per_seq, 1, kRowsMax);
  need_between(r, "rows_max", p.rows_max, 0, kRowsMax);
  if (r.accepted()) {
    need_between(r, "rank + rope", p.rank + p.rope, 2, 1024);
    need_between(r, "pages * page_size", p.pages * p.page_size, 1, kRowsMax);
    need_between(r, "pages_per_seq * page_size", p.pages_per_seq * p.page_size, 1, kRowsMax);
  }
  need_real(r, "scale", "from 2^-100 to 2^100", p.scale >= 0x1p-100 && p.scale <= 0x1p100, p.scale);
  need_float(r, "q", p.q);
  need_float(r, "w", p.w);
  return r;
}

double LatentAttention::bytes(const Problem& p) {
  const int64_t context = p.pages_per_seq * p.page_size;
  return static_cast<double>(bytes_of(p.q, p.sequences * context * (p.rank + p.rope))) +
         static_cast<double>(bytes_of(p.w, p.heads * (p.nope + p.v_dim) * p.rank)) +
         static_cast<double>(bytes_of(p.q, p.tokens * p.heads * (p.nope + p.rope + p.v_dim)));
}

double LatentAttention::flops(const Problem& p) {
  const int64_t context = p.pages_per_seq * p.page_size;
  const auto of_a_head = static_cast<double>(context * (2 * p.rank + p.rope) + (p.nope + p.v_dim) * p.rank);
  return 2.0 * static_cast<double>(p.tokens * p.heads) * of_a_head;
}

}  // namespace sluice
