// Rotates queries in place, rotates keys while it writes them to their page, and copies values. Handles one token at a time, so that
// the token's row of the table stays in the L1 cache. Keys for an e4m3 cache are rotated in a separate buffer and rounded twice.
//
// Wins    always: it is the only kernel of RopeKvWrite on a CPU. Everything is read and written once.
// Limits  none beyond the contract.
// Source  original; the contract is ops/fused/rope_kv_write.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/rope_kv_write_rows.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include <type_traits>

#include "backends/cpu/cache_rows.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/rotate.h"
#include "ops/fused/rope_kv_write.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

template <RopePairs kPairs, class X, class C>
void rows(const RopeKvWrite::Problem& p, const RopeKvWrite::Args& a, int64_t begin, int64_t end) {
  const Rope::Problem& rope = p.rope;
  const int64_t half = rope.rotary / 2, head_dim = rope.head_dim;
  X apart[KvWrite::kHeadDimMax];
  for (int64_t t = begin; t < end; ++t) {
    const int64_t position = a.positions.as<int32_t>()[t], slot = a.slot_of.as<int32_t>()[t];
    const bool rotates = position >= 0 && position < rope.table_rows;
    const float* table = a.table.as<const float>() + (rotates ? position * rope.rotary : 0);
    for (int64_t head = 0; rotates && head < rope.heads; ++head)
      rotate_head<kPairs>(a.q.row<X>(t) + head * head_dim + rope.first, table, half);
    if (slot < 0 || slot >= p.pages * p.page_size) continue;
    for (int64_t head = 0; head < p.kv_heads; ++head) {
      const int64_t to =
          ((slot / p.page_size * p.kv_heads + head) * p.page_size + slot % p.page_size) * head_dim;
      C* const stored = a.k_cache.as<C>() + to;
      X* key = apart;
      if constexpr (std::is_same_v<X, C>) key = stored;
      write_cache(a.k.row<X>(t) + head * head_dim, head_dim, key);
      if (rotates) rotate_head<kPairs>(key + rope.first, table, half);
      if constexpr (!std::is_same_v<X, C>) write_cache(key, head_dim, stored);
      write_cache(a.v.row<X>(t) + head * head_dim, head_dim, a.v_cache.as<C>() + to);
    }
  }
}

}  // namespace

void rope_kv_write_simd(const RopeKvWrite::Problem& p, const RopeKvWrite::Args& a, int64_t begin,
                        int64_t end) {
  with_cache(p.cache, p.rope.x, [&]<class X, class C>(const X*, const C*) {
    if (p.rope.pairs == RopePairs::kHalves) {
      rows<RopePairs::kHalves, X, C>(p, a, begin, end);
    } else {
      rows<RopePairs::kInterleaved, X, C>(p, a, begin, end);
    }
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(rope_kv_write_simd);

namespace {

Refusal supports(const RopeKvWrite::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const RopeKvWrite::Problem& p, const DeviceInfo& d) {
  return roofline_us<RopeKvWrite>(p, d, 0.8, 0.25 * d.f32_flops_per_us);
}

Status enqueue(const RopeKvWrite::Problem& p, const RopeKvWrite::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    q.pool->run(p.rope.tokens, 1, [&](int64_t begin, int64_t end, int) {
      SLUICE_SIMD(q, rope_kv_write_simd)(p, a, begin, end);
    });
  });
}

}  // namespace

extern const Candidate<RopeKvWrite> rope_kv_write_rows = {
    .name = "cpu.rope_kv_write.rows",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RopeKvWrite>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
