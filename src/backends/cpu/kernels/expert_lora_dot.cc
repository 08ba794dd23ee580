// LoRA of experts by dot products: computes A x of every row in scratch memory, then z + bias + scale * B (A x) and the activation.
//
// Wins    always: it is the only kernel of ExpertLora on a CPU.
// Loses   for many rows of one expert and adapter to two packed GEMMs; there is no such kernel.
// Limits  none beyond the contract.
// Source  original; the contract is ops/expert_lora.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/expert_lora_dot.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include <algorithm>

#include "backends/cpu/card.h"
#include "backends/cpu/simd/activation.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/dot.h"
#include "ops/expert_lora.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

using P = ExpertLora::Problem;
using A = ExpertLora::Args;

constexpr int64_t kLoraFeatures = 16;  // per tile; every vector width divides it

int64_t token_of(const P& p, const A& a, int64_t r) { return a.order.as<const int32_t>()[r] / p.slots; }
// The adapter of a row; -1: none.
int64_t adapter_of(const P& p, const A& a, int64_t r) {
  const int64_t adapter = a.adapter.as<const int32_t>()[token_of(p, a, r)];
  return adapter < p.adapters ? adapter : -1;
}

// z' of features [first, first + count): gates (up = false) or ups.
template <class Z, class W>
void update(const P& p, const A& a, int64_t r, int64_t expert, int64_t adapter, const float* inner, bool up,
            int64_t first, int64_t count, float* out) {
  const Z* z = a.z.row<const Z>(r);
  const int64_t rows = ExpertLora::product_rows(p);
  const W* b = a.b.as<const W>() + (adapter * p.experts + expert) * rows * p.rank;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t f = first + i, row = is_gated(p.act) ? gated_row(p.gate_order, p.features, f, up) : f;
    float sum = scalar_f32(z[ExpertLora::z_column(p, f, up)]);
    if (p.bias) {
      const int64_t at = expert * rows + row;
      sum +=
          p.bias_type == DType::kBF16 ? to_float(a.bias.as<const BF16>()[at]) : a.bias.as<const float>()[at];
    }
    if (adapter >= 0)
      sum += a.scale.as<const float>()[adapter] *
             dot(b + row * p.rank, inner + (p.split && up ? p.rank : 0), p.rank);
    out[i] = sum;
  }
}

template <class Z, class W, class Y>
void finish(const P& p, const A& a, int64_t r, int64_t expert, const float* inner, int64_t first) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t count = std::min(kLoraFeatures, p.features - first), adapter = adapter_of(p, a, r);
  HWY_ALIGN float gate[kLoraFeatures] = {}, up[kLoraFeatures] = {};
  update<Z, W>(p, a, r, expert, adapter, inner, false, first, count, gate);
  if (is_gated(p.act)) update<Z, W>(p, a, r, expert, adapter, inner, true, first, count, up);
  const float* params = p.per_expert ? a.act_params.as<const float>() + 3 * expert : nullptr;
  const ActivationF32 activation = params ? ActivationF32{p.act, params[0], params[1], params[2]}
                                          : activation_f32(p.act, {p.alpha, p.beta, p.limit});
  for (int64_t i = 0; i < kLoraFeatures; i += lanes)
    hn::Store(activate(d, activation, hn::Load(d, gate + i), hn::Load(d, up + i)), d, gate + i);
  Y* y = a.y.row<Y>(r) + first;
  for (int64_t i = 0; i < count; ++i) store_scalar(gate[i], y + i);
}

}  // namespace

// inner [rows, ExpertLora::inner()]: computes entries `begin` to `end`, counted over all rows. expert_of [rows]; -1: no expert.
void expert_lora_inner(const P& p, const A& a, const int32_t* expert_of, float* inner, int64_t begin,
                       int64_t end) {
  const int64_t size = ExpertLora::inner(p);
  with_float(p.x, [&]<class X>(const X*) {
    with_float(p.w, [&]<class W>(const W*) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t r = i / size, expert = expert_of[r];
        const int64_t adapter = expert < 0 ? -1 : adapter_of(p, a, r);
        if (adapter < 0) continue;
        const W* row = a.a.as<const W>() + ((adapter * p.experts + expert) * size + i % size) * p.width;
        inner[i] = dot(row, a.x.row<const X>(p.gathers ? token_of(p, a, r) : r), p.width);
      }
    });
  });
}

// Computes tiles `begin` to `end` of (row, 16 features).
void expert_lora_finish(const P& p, const A& a, const int32_t* expert_of, const float* inner, int64_t begin,
                        int64_t end) {
  const int64_t tiles = (p.features + kLoraFeatures - 1) / kLoraFeatures, size = ExpertLora::inner(p);
  with_float(p.z, [&]<class Z>(const Z*) {
    with_float(p.w, [&]<class W>(const W*) {
      with_float(p.y, [&]<class Y>(const Y*) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t r = i / tiles;
          if (expert_of[r] < 0) continue;
          finish<Z, W, Y>(p, a, r, expert_of[r], inner + r * size, i % tiles * kLoraFeatures);
        }
      });
    });
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(expert_lora_inner);
HWY_EXPORT(expert_lora_finish);

namespace {

constexpr int64_t kTileFeatures = 16;
constexpr int64_t kChunkProducts = 65536;  // products for which another thread is worth its start

Refusal supports(const ExpertLora::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const ExpertLora::Problem& p, const DeviceInfo& d) {
  return roofline_us<ExpertLora>(p, d, 0.8, 0.5 * d.f32_flops_per_us) + d.launch_us;  // two loops
}

size_t inner_bytes(const ExpertLora::Problem& p) {
  return static_cast<size_t>(p.rows * ExpertLora::inner(p)) * sizeof(float);
}
size_t workspace_bytes(const ExpertLora::Problem& p, const DeviceInfo&) {
  return inner_bytes(p) + static_cast<size_t>(p.rows) * sizeof(int32_t);
}

void find_experts(const ExpertLora::Problem& p, const ExpertLora::Args& a, int32_t* expert_of) {
  std::fill_n(expert_of, p.rows, -1);
  for (int64_t e = 0; e < p.experts; ++e)
    std::fill_n(expert_of + a.row_begin.as<const int32_t>()[e], a.row_count.as<const int32_t>()[e],
                static_cast<int32_t>(e));
}

Status enqueue(const ExpertLora::Problem& p, const ExpertLora::Args& a, Workspace w, Stream s) {
  return submit(s, [p, a, w](Queue& q) {
    if (p.rows == 0) return;
    auto* inner = reinterpret_cast<float*>(w.data);
    auto* expert_of = reinterpret_cast<int32_t*>(w.data + inner_bytes(p));
    find_experts(p, a, expert_of);
    q.pool->run(p.rows * ExpertLora::inner(p), kChunkProducts / p.width + 1,
                [&](int64_t begin, int64_t end, int) {
                  SLUICE_SIMD(q, expert_lora_inner)(p, a, expert_of, inner, begin, end);
                });
    const int64_t tiles = (p.features + kTileFeatures - 1) / kTileFeatures;
    q.pool->run(p.rows * tiles, kChunkProducts / (kTileFeatures * (p.rank + 1)) + 1,
                [&](int64_t begin, int64_t end, int) {
                  SLUICE_SIMD(q, expert_lora_finish)(p, a, expert_of, inner, begin, end);
                });
  });
}

}  // namespace

extern const Candidate<ExpertLora> expert_lora_dot = {
    .name = "cpu.expert_lora.dot",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
