// KvWrite with one copy per head, because in a page the rows of a head are adjacent. For e4m3 caches each element is rounded.
//
// Wins    always: it is the only kernel of KvWrite on a CPU. It moves only the bytes of the contract.
// Limits  none beyond the contract.
// Source  original; the contract is ops/kv_write.h.
#include "backends/cpu/cache_rows.h"
#include "ops/kv_write.h"

namespace sluice::cpu {
namespace {

Refusal supports(const KvWrite::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const KvWrite::Problem& p, const DeviceInfo& d) {
  return roofline_us<KvWrite>(p, d, 0.6, d.f32_flops_per_us);
}

// Copies row `from` of a [tokens, kv_heads, head_dim] tensor to slot `to` of a cache with elements C.
template <class X, class C>
void write_row(const KvWrite::Problem& p, const Tensor& rows, int64_t from, const Tensor& cache, int64_t to) {
  const X* source = rows.row<const X>(from);
  C* page = cache.as<C>() + to / p.page_size * p.kv_heads * p.page_size * p.head_dim;
  for (int64_t head = 0; head < p.kv_heads; ++head)
    write_cache(source + head * p.head_dim, p.head_dim,
                page + (head * p.page_size + to % p.page_size) * p.head_dim);
}

template <class X, class C>
void write_rows(const KvWrite::Problem& p, const KvWrite::Args& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t to = a.slot_of.as<int32_t>()[t];
    if (to < 0 || to >= p.pages * p.page_size) continue;
    write_row<X, C>(p, a.k, t, a.k_cache, to);
    if (p.values) write_row<X, C>(p, a.v, t, a.v_cache, to);
  }
}

Status enqueue(const KvWrite::Problem& p, const KvWrite::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    q.pool->run(p.tokens, 8, [&](int64_t begin, int64_t end, int) {
      with_cache(p.cache, p.kv,
                 [&]<class X, class C>(const X*, const C*) { write_rows<X, C>(p, a, begin, end); });
    });
  });
}

}  // namespace

extern const Candidate<KvWrite> kv_write_copy = {
    .name = "cpu.kv_write.copy",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<KvWrite>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
