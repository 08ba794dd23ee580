// Latent attention with the key matrix multiplied into the query: one head of one row at a time, blocks of
// positions with an online softmax.
//
// Wins    always: it is the only kernel of LatentAttention on a CPU. A position costs one product of rank
//         + rope and one of rank, and the latents of 64 positions stay in near caches between the two.
// Loses   time with long contexts and many heads: each head reads the KV cache separately, from a CPU cache
//         that is farther away than it would be if heads shared their reads.
// Limits  none beyond the contract.
// Source  original; the online softmax is Milakov and Gimelshein, "Online normalizer calculation for softmax"
//         (2018). The contract is ops/latent_attention.h.
//
// Bits    blocks start at fixed positions, so a row's bits depend only on its own sequence.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/latent_attention_absorbed.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/card.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/dot.h"
#include "ops/latent_attention.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kBlock = 64;

// to[i] += from[i] * factor
template <class T>
HWY_INLINE void add_scaled(const T* HWY_RESTRICT from, float factor, int64_t n, float* HWY_RESTRICT to) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto f = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(hn::MulAdd(load_f32(from + i), f, hn::LoadU(d, to + i)), d, to + i);
  for (; i < n; ++i) to[i] += scalar_f32(from[i]) * factor;
}

HWY_INLINE void multiply(float* values, int64_t n, float factor) {
  for (int64_t i = 0; i < n; ++i) values[i] *= factor;
}

// A weighted sum of latents before the division by its weights; a weight is e^(score - largest).
struct Online {
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
  float* latent;  // [rank]
};

// Adds the scores of `count` positions to `state` and turns them into weights. NaN stays NaN.
void weigh(float* scores, int64_t count, float scale, int64_t rank, Online* state) {
  float largest = state->largest;
  for (int64_t i = 0; i < count; ++i) {
    scores[i] *= scale;
    largest = scores[i] > largest ? scores[i] : largest;
  }
  if (largest != state->largest) {
    const float factor = std::exp(state->largest - largest);
    multiply(state->latent, rank, factor);
    state->sum *= factor;
    state->largest = largest;
  }
  for (int64_t i = 0; i < count; ++i) state->sum += scores[i] = std::exp(scores[i] - largest);
}

// Head `head` of row `row`. scratch: (rank + rope) + rank floats.
template <class T, class W>
void one(const LatentAttention::Problem& p, const LatentAttention::Args& a, int64_t row, int64_t head,
         float* scratch) {
  const auto* begins = a.q_begin.as<const int32_t>();
  const int64_t s = std::upper_bound(begins, begins + p.sequences + 1, row) - begins - 1;
  if (s < 0 || s >= p.sequences) return;
  const int64_t position = a.kv_len.as<const int32_t>()[s] - (begins[s + 1] - row);
  const int64_t end = std::clamp<int64_t>(position + 1, 0, p.pages_per_seq * p.page_size);
  const int64_t width = p.rank + p.rope;
  const T* q = a.q.row<const T>(row) + head * (p.nope + p.rope);
  const W* keys = a.kv_b.as<const W>() + head * (p.nope + p.v_dim) * p.rank;
  std::fill_n(scratch, width + p.rank, 0.f);
  for (int64_t i = 0; i < p.nope; ++i) add_scaled(keys + i * p.rank, scalar_f32(q[i]), p.rank, scratch);
  for (int64_t i = 0; i < p.rope; ++i) scratch[p.rank + i] = scalar_f32(q[p.nope + i]);

  Online state{.latent = scratch + width};
  const int32_t* table = a.page_table.as<const int32_t>() + s * p.pages_per_seq;
  int64_t attended = 0;
  for (int64_t at = 0; at < end; at += kBlock) {
    const T* rows[kBlock];
    float weights[kBlock];
    int64_t count = 0;
    for (int64_t j = at; j < std::min(at + kBlock, end); ++j) {
      const int64_t page = table[j / p.page_size];
      if (page < 0 || page >= p.pages) continue;
      rows[count] = a.cache.as<const T>() + (page * p.page_size + j % p.page_size) * width;
      weights[count] = dot(scratch, rows[count], width);
      ++count;
    }
    if (count == 0) continue;
    attended += count;
    weigh(weights, count, static_cast<float>(p.scale), p.rank, &state);
    for (int64_t i = 0; i < count; ++i) add_scaled(rows[i], weights[i], p.rank, state.latent);
  }
  T* y = a.y.row<T>(row) + head * p.v_dim;
  const W* values = keys + p.nope * p.rank;
  for (int64_t i = 0; i < p.v_dim; ++i)
    store_scalar(attended ? dot(state.latent, values + i * p.rank, p.rank) / state.sum : 0.f, y + i);
}

}  // namespace

void latent_attention_one(const LatentAttention::Problem& p, const LatentAttention::Args& a, int64_t row,
                          int64_t head, float* scratch) {
  with_float(p.q, [&]<class T>(const T*) {
    with_float(p.w, [&]<class W>(const W*) { one<T, W>(p, a, row, head, scratch); });
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(latent_attention_one);

namespace {

// A multiple of every vector length, so that threads share no cache line.
int64_t thread_floats(const LatentAttention::Problem& p) { return (2 * p.rank + p.rope + 63) / 64 * 64; }

Refusal supports(const LatentAttention::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const LatentAttention::Problem& p, const DeviceInfo& d) {
  return roofline_us<LatentAttention>(p, d, 0.6, 0.25 * d.f32_flops_per_us);
}

size_t workspace_bytes(const LatentAttention::Problem& p, const DeviceInfo& d) {
  return static_cast<size_t>(d.cores * thread_floats(p)) * sizeof(float);
}

Status enqueue(const LatentAttention::Problem& p, const LatentAttention::Args& a, Workspace workspace,
               Stream stream) {
  SLUICE_TRY(check_scratch("cpu.latent_attention.absorbed", p, workspace_bytes, workspace, stream));
  return submit(stream, [p, a, workspace](Queue& q) {
    const auto thread_bytes = static_cast<size_t>(thread_floats(p)) * sizeof(float);
    const int64_t slots = slots_in(workspace.bytes, thread_bytes, *q.pool);
    auto* scratch = reinterpret_cast<float*>(workspace.data);
    // Rows of the same head are adjacent in the loop, so that the head's weights stay in a near cache.
    run_in_slots(*q.pool, slots, p.tokens * p.heads, 1, [&](int64_t begin, int64_t end, int thread) {
      float* mine = scratch + thread * thread_floats(p);
      for (int64_t i = begin; i < end; ++i)
        SLUICE_SIMD(q, latent_attention_one)(p, a, i % p.tokens, i / p.tokens, mine);
    });
  });
}

}  // namespace

extern const Candidate<LatentAttention> latent_attention_absorbed = {
    .name = "cpu.latent_attention.absorbed",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
