// KvWrite by copying: one copy a head, because a page keeps the rows of a head together.
//
// Wins    always: it moves the bytes of the contract and nothing else.
// Loses   never.
// Limits  none beyond the contract.
// Source  original; the contract is ops/kv_write.h.
#include <cstring>

#include "backends/cpu/card.h"
#include "ops/kv_write.h"

namespace sluice::cpu {
namespace {

Refusal supports(const KvWrite::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const KvWrite::Problem& p, const DeviceInfo& d) {
  return roofline_us<KvWrite>(p, d, 0.6, d.f32_flops_per_us);
}

// Row `from` of a [tokens, kv_heads, head_dim] tensor to slot `to` of a cache.
void copy_row(const KvWrite::Problem& p, const Tensor& rows, int64_t from, const Tensor& cache, int64_t to) {
  const int64_t head_bytes = bytes_of(p.kv, p.head_dim);
  const auto* source = rows.as<const std::byte>() + bytes_of(rows.dtype, from * rows.stride[0]);
  std::byte* page = cache.as<std::byte>() + to / p.page_size * p.kv_heads * p.page_size * head_bytes;
  for (int64_t head = 0; head < p.kv_heads; ++head)
    std::memcpy(page + (head * p.page_size + to % p.page_size) * head_bytes, source + head * head_bytes,
                static_cast<size_t>(head_bytes));
}

Status enqueue(const KvWrite::Problem& p, const KvWrite::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    q.pool->run(p.tokens, 8, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t to = a.slot_of.as<int32_t>()[t];
        if (to < 0 || to >= p.pages * p.page_size) continue;
        copy_row(p, a.k, t, a.k_cache, to);
        if (p.values) copy_row(p, a.v, t, a.v_cache, to);
      }
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
