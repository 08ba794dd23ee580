// Rotary embedding in place, one head at a time: the table's row stays in the nearest cache for all heads of
// a token.
//
// Wins    always on a CPU: x is read and written once.
// Loses   never.
// Limits  none beyond the contract.
// Source  original; the contract is ops/rope.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/rope_heads.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include "backends/cpu/card.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/dot.h"
#include "ops/rope.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

using Vector = hn::Vec<F32>;

HWY_INLINE void load_pairs(const float* x, Vector& a, Vector& b) { hn::LoadInterleaved2(F32(), x, a, b); }
HWY_INLINE void load_pairs(const BF16* x, Vector& a, Vector& b) {
  const hn::Rebind<uint16_t, F32> half;
  const hn::RebindToUnsigned<F32> full;
  hn::Vec<decltype(half)> even, odd;
  hn::LoadInterleaved2(half, reinterpret_cast<const uint16_t*>(x), even, odd);
  a = hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(full, even)));
  b = hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(full, odd)));
}
HWY_INLINE void store_pairs(Vector a, Vector b, float* x) { hn::StoreInterleaved2(a, b, F32(), x); }
HWY_INLINE void store_pairs(Vector a, Vector b, BF16* x) {
  const hn::Rebind<uint16_t, F32> half;
  hn::StoreInterleaved2(bf16_bits(a), bf16_bits(b), half, reinterpret_cast<uint16_t*>(x));
}

template <class X>
HWY_INLINE void turn_pair(X* a, X* b, float c, float s) {
  const float u = scalar_f32(*a), v = scalar_f32(*b);
  store_scalar(u * c - v * s, a);
  store_scalar(v * c + u * s, b);
}

template <RopePairs kPairs, class X>
void turn_head(X* x, const float* table, int64_t half) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    Vector c, s, a, b;
    hn::LoadInterleaved2(d, table + 2 * i, c, s);
    if constexpr (kPairs == RopePairs::kHalves) {
      a = load_f32(x + i), b = load_f32(x + i + half);
    } else {
      load_pairs(x + 2 * i, a, b);
    }
    const auto turned_a = hn::NegMulAdd(b, s, hn::Mul(a, c));
    const auto turned_b = hn::MulAdd(a, s, hn::Mul(b, c));
    if constexpr (kPairs == RopePairs::kHalves) {
      store_f32(turned_a, x + i);
      store_f32(turned_b, x + i + half);
    } else {
      store_pairs(turned_a, turned_b, x + 2 * i);
    }
  }
  for (; i < half; ++i) {
    X* a = kPairs == RopePairs::kHalves ? x + i : x + 2 * i;
    turn_pair(a, kPairs == RopePairs::kHalves ? a + half : a + 1, table[2 * i], table[2 * i + 1]);
  }
}

// Heads of all tokens are counted through.
template <RopePairs kPairs, class X>
void heads(const Rope::Problem& p, const Rope::Args& a, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t t = i / p.heads, position = a.positions.as<int32_t>()[t];
    if (position < 0 || position >= p.table_rows) continue;
    turn_head<kPairs>(a.x.row<X>(t) + i % p.heads * p.head_dim + p.first,
                      a.table.as<const float>() + position * p.rotary, p.rotary / 2);
  }
}

}  // namespace

void rope_heads_simd(const Rope::Problem& p, const Rope::Args& a, int64_t begin, int64_t end) {
  with_float(p.x, [&]<class X>(const X*) {
    if (p.pairs == RopePairs::kHalves) {
      heads<RopePairs::kHalves, X>(p, a, begin, end);
    } else {
      heads<RopePairs::kInterleaved, X>(p, a, begin, end);
    }
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(rope_heads_simd);

namespace {

Refusal supports(const Rope::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const Rope::Problem& p, const DeviceInfo& d) {
  return roofline_us<Rope>(p, d, 0.8, 0.25 * d.f32_flops_per_us);
}

Status enqueue(const Rope::Problem& p, const Rope::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    q.pool->run(p.tokens * p.heads, 32, [&](int64_t begin, int64_t end, int) {
      SLUICE_SIMD(q, rope_heads_simd)(p, a, begin, end);
    });
  });
}

}  // namespace

extern const Candidate<Rope> rope_heads = {
    .name = "cpu.rope.heads",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<Rope>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
