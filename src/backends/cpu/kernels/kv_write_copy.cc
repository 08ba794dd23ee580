// KvWrite by copying: a token's heads lie together in the cache as they do in k and v, so one row is one
// copy.
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

// Row `from` of a [tokens, ...] tensor to row `to` of a cache whose rows are `row_bytes` long.
void copy_row(const Tensor& rows, int64_t from, const Tensor& cache, int64_t to, int64_t row_bytes) {
  const auto* source = rows.as<const std::byte>() + bytes_of(rows.dtype, from * rows.stride[0]);
  std::memcpy(cache.as<std::byte>() + to * row_bytes, source, static_cast<size_t>(row_bytes));
}

Status enqueue(const KvWrite::Problem& p, const KvWrite::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    const int64_t row_bytes = bytes_of(p.kv, p.kv_heads * p.head_dim);
    q.pool->run(p.tokens, 8, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t to = a.slot_of.as<int32_t>()[t];
        if (to < 0 || to >= p.pages * p.page_size) continue;
        copy_row(a.k, t, a.k_cache, to, row_bytes);
        if (p.values) copy_row(a.v, t, a.v_cache, to, row_bytes);
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
