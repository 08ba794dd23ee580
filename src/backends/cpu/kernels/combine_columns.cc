// Combine, one token and one block of columns at a time. The sum over the slots stays in registers, each row of g is read once, and only y
// is written.
//
// Wins    always: it is the only kernel of Combine on a CPU. Work is divided into blocks of columns, so all threads can work on one token.
// Limits  none beyond the contract.
// Source  original; the contract, including the order of the sum, is ops/combine.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/combine_columns.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include "backends/cpu/card.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/dot.h"
#include "ops/combine.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kSlotsMax = 64;

// The operands of one token: its non-empty slots, and what is added after them.
template <class G, class B, class Y>
struct Token {
  const G* g[kSlotsMax];
  const B* bias[kSlotsMax];  // may be null
  float w[kSlotsMax];
  int64_t slots = 0;
  float scale = 1;
  const Y* shared = nullptr;
  const Y* residual = nullptr;
  Y* y = nullptr;
};

template <class G, class B, class Y>
void gather(const Combine::Problem& p, const Combine::Args& a, int64_t t, Token<G, B, Y>& out) {
  const int32_t* position = a.position.as<const int32_t>() + t * p.slots;
  const int32_t* ids = p.bias ? a.ids.as<const int32_t>() + t * p.slots : nullptr;
  const float* weights = p.weighted ? a.weights.as<const float>() + t * p.slots : nullptr;
  out.slots = 0;
  for (int64_t k = 0; k < p.slots; ++k) {
    if (position[k] < 0 || position[k] >= p.rows) continue;
    const bool biased = ids && ids[k] >= 0 && ids[k] < p.experts;
    out.g[out.slots] = a.g.row<const G>(position[k]);
    out.bias[out.slots] = biased ? a.bias.row<const B>(ids[k]) : nullptr;
    out.w[out.slots++] = weights ? weights[k] : 1.f;
  }
  out.scale = static_cast<float>(p.scale);
  out.shared = p.shared ? a.shared.row<const Y>(t) : nullptr;
  out.residual = p.residual ? a.residual.row<const Y>(t) : nullptr;
  out.y = a.y.row<Y>(t);
}

// Computes kVectors vectors of columns from h. Loads of shared and residual come before the store, because y may alias either.
template <int kVectors, class G, class B, class Y>
HWY_INLINE void columns(const Token<G, B, Y>& token, int64_t h) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<F32> sum[kVectors];
  for (int v = 0; v < kVectors; ++v) sum[v] = hn::Zero(d);
  for (int64_t k = 0; k < token.slots; ++k) {
    const auto w = hn::Set(d, token.w[k]);
    for (int v = 0; v < kVectors; ++v) {
      auto g = load_f32(token.g[k] + h + v * lanes);
      if (token.bias[k]) g = hn::Add(g, load_f32(token.bias[k] + h + v * lanes));
      sum[v] = hn::MulAdd(w, g, sum[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    auto y = hn::Mul(hn::Set(d, token.scale), sum[v]);
    if (token.shared) y = hn::Add(y, load_f32(token.shared + h + v * lanes));
    if (token.residual) y = hn::Add(y, load_f32(token.residual + h + v * lanes));
    store_f32(y, token.y + h + v * lanes);
  }
}

template <class G, class B, class Y>
HWY_INLINE void column(const Token<G, B, Y>& token, int64_t h) {
  float sum = 0;
  for (int64_t k = 0; k < token.slots; ++k) {
    float g = scalar_f32(token.g[k][h]);
    if (token.bias[k]) g += scalar_f32(token.bias[k][h]);
    sum += token.w[k] * g;
  }
  float y = token.scale * sum;
  if (token.shared) y += scalar_f32(token.shared[h]);
  if (token.residual) y += scalar_f32(token.residual[h]);
  store_scalar(y, token.y + h);
}

template <class G, class B, class Y>
void block(const Combine::Problem& p, const Combine::Args& a, int64_t t, int64_t begin, int64_t end) {
  Token<G, B, Y> token;
  gather(p, a, t, token);
  const auto lanes = static_cast<int64_t>(hn::Lanes(F32()));
  int64_t h = begin;
  for (; h + 4 * lanes <= end; h += 4 * lanes) columns<4>(token, h);
  for (; h + lanes <= end; h += lanes) columns<1>(token, h);
  for (; h < end; ++h) column(token, h);
}

}  // namespace

void combine_block(const Combine::Problem& p, const Combine::Args& a, int64_t t, int64_t begin, int64_t end) {
  with_float(p.g, [&]<class G>(const G*) {
    with_float(p.b, [&]<class B>(const B*) {
      with_float(p.y, [&]<class Y>(const Y*) { block<G, B, Y>(p, a, t, begin, end); });
    });
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(combine_block);

namespace {

constexpr int64_t kBlock = 512;            // columns; 8 slots of bf16 are 8 KiB and take about 0.2 us
constexpr int64_t kChunkElements = 65536;  // products for which another thread is worth its start, about 3 us

int64_t blocks_of(const Combine::Problem& p) { return (p.hidden + kBlock - 1) / kBlock; }

Refusal supports(const Combine::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const Combine::Problem& p, const DeviceInfo& d) {
  return roofline_us<Combine>(p, d, 0.8, 0.25 * d.f32_flops_per_us);
}

Status enqueue(const Combine::Problem& p, const Combine::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    const int64_t blocks = blocks_of(p);
    const int64_t grain = kChunkElements / (p.slots * kBlock) + 1;
    q.pool->run(p.tokens * blocks, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % blocks * kBlock, last = first + kBlock;
        SLUICE_SIMD(q, combine_block)(p, a, i / blocks, first, last < p.hidden ? last : p.hidden);
      }
    });
  });
}

}  // namespace

extern const Candidate<Combine> combine_columns = {
    .name = "cpu.combine.columns",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<Combine>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
