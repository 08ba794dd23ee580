// Sampling by scans. First, threads compute the largest logit and the sums of e^x over chunks of a row in parallel. Then one thread
// per row gathers the few largest logits in order and adds up their weights. If the sampled token is not among them, it gathers more.
//
// Wins    always: it is the only kernel of Sample on a CPU. In real distributions the sampled token is among the first few hundred,
//         so only those are sorted. A scan for logits above a threshold runs at memory bandwidth.
// Loses   time with flat distributions without top_k: one thread may sort the whole row.
// Limits  none beyond the contract. Arithmetic is in double, so the bounds of each token's share are exact to
//         about 2^-50.
// Source  original; the contract is ops/sample.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/sample_scan.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/card.h"
#include "backends/cpu/kernels/sample_draw.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/logits.h"
#include "ops/sample.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
void sample_largest(const Sample::Problem& p, const Sample::Args& a, int64_t row, int64_t chunk, Chunk* out) {
  const int64_t begin = chunk * kLogitChunk, n = std::min(kLogitChunk, p.vocab - begin);
  with_float(p.logits,
             [&]<class T>(const T*) { out->largest = largest(a.logits.row<const T>(row) + begin, n); });
}

void sample_sums(const Sample::Problem& p, const Sample::Args& a, int64_t row, int64_t chunk, float base,
                 Chunk* out) {
  const int64_t begin = chunk * kLogitChunk, n = std::min(kLogitChunk, p.vocab - begin);
  const float temperature = temperature_of(p, a, row);
  with_float(p.logits, [&]<class T>(const T*) {
    const T* x = a.logits.row<const T>(row) + begin;
    out->plain = sum_of_weights(x, n, base, 1);
    out->tempered =
        temperature > 0 && temperature != 1 ? sum_of_weights(x, n, base, temperature) : out->plain;
  });
}

int64_t sample_gather(const Sample::Problem& p, const Sample::Args& a, int64_t row, int64_t k, Entry* out) {
  int64_t count = 0;
  with_float(p.logits,
             [&]<class T>(const T*) { count = gather(a.logits.row<const T>(row), p.vocab, k, out); });
  return count;
}

// The lowest id with the largest logit, whose value is known and above -inf.
int64_t sample_first(const Sample::Problem& p, const Sample::Args& a, int64_t row, int64_t begin,
                     float value) {
  int64_t id = 0;
  with_float(p.logits, [&]<class T>(const T*) {
    id = next_above(a.logits.row<const T>(row), begin, p.vocab, std::nextafter(value, kNothing));
  });
  return id;
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(sample_largest);
HWY_EXPORT(sample_sums);
HWY_EXPORT(sample_gather);
HWY_EXPORT(sample_first);

namespace {

constexpr int64_t kFirstGather = 512;  // enough for nearly every sample from a trained model

int64_t chunks_of(const Sample::Problem& p) { return (p.vocab + kLogitChunk - 1) / kLogitChunk; }

// At most this many threads sample rows at a time. Each thread has scratch memory for one row; greedy rows need none.
int64_t rooms_of(const Sample::Problem& p, int64_t threads) { return std::min(p.rows, threads); }

float largest_of(const Chunk* chunks, int64_t count) {
  float out = chunks[0].largest;
  for (int64_t c = 1; c < count; ++c) out = std::max(out, chunks[c].largest);
  return out;
}

// Samples a row whose numbers are finite and whose temperature is above 0.
int64_t draw_row(Queue& q, const Sample::Problem& p, const Sample::Args& a, int64_t row, const RowSums& sums,
                 Entry* entries) {
  const DrawParams params = draw_params(a, row);
  const bool cut = params.top_k > 0 && params.top_k < p.vocab;
  const int64_t limit = cut ? params.top_k : p.vocab;
  for (int64_t k = cut ? limit : std::min(kFirstGather, limit);; k = std::min(16 * k, limit)) {
    const int64_t count = SLUICE_SIMD(q, sample_gather)(p, a, row, k, entries);
    const bool all = k == limit || count < k;
    const double total = cut ? mass_of(params, sums.largest, entries, count) : sums.tempered;
    const int64_t picked =
        draw(params, sums.largest, total, {entries, count, all ? Reach::kAll : Reach::kSome});
    if (picked >= 0) return entries[picked].id;
  }
}

void sample_row(Queue& q, const Sample::Problem& p, const Sample::Args& a, int64_t row, const Chunk* chunks,
                Entry* entries) {
  const RowSums sums = row_sums(chunks, chunks_of(p));
  int32_t& token = a.token.as<int32_t>()[row];
  float& logprob = a.logprob.as<float>()[row];
  token = 0;
  logprob = std::numeric_limits<float>::quiet_NaN();
  if (sums.largest == -std::numeric_limits<float>::infinity()) return;
  const bool greedy = !(temperature_of(p, a, row) > 0) || std::isinf(sums.largest);
  const int64_t id =
      greedy ? SLUICE_SIMD(q, sample_first)(p, a, row, sums.largest_chunk * kLogitChunk, sums.largest)
             : draw_row(q, p, a, row, sums, entries);
  token = static_cast<int32_t>(id);
  const double logit = load2(a.logits, row, id);
  logprob = static_cast<float>(logit - sums.largest - std::log(sums.plain));
}

Refusal supports(const Sample::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const Sample::Problem& p, const DeviceInfo& d) {
  const double exponentials = 2.0 * static_cast<double>(p.rows * p.vocab);
  return roofline_us<Sample>(p, d, 0.3, d.f32_flops_per_us) + 50 * exponentials / d.f32_flops_per_us;
}

int64_t entries_of(const Sample::Problem& p) { return p.greedy ? 1 : p.vocab; }

size_t workspace_bytes(const Sample::Problem& p, const DeviceInfo& d) {
  return static_cast<size_t>(p.rows * chunks_of(p)) * sizeof(Chunk) +
         static_cast<size_t>(rooms_of(p, d.cores) * entries_of(p)) * sizeof(Entry);
}

Status enqueue(const Sample::Problem& p, const Sample::Args& a, Workspace workspace, Stream stream) {
  SLUICE_TRY(check_scratch("cpu.sample.scan", p, workspace_bytes, workspace, stream));
  return submit(stream, [p, a, workspace](Queue& q) {
    const int64_t per_row = chunks_of(p);
    const size_t chunk_bytes = static_cast<size_t>(p.rows * per_row) * sizeof(Chunk),
                 room_bytes = static_cast<size_t>(entries_of(p)) * sizeof(Entry);
    const int64_t rooms = rooms_of(p, slots_in(workspace.bytes - chunk_bytes, room_bytes, *q.pool));
    auto* chunks = reinterpret_cast<Chunk*>(workspace.data);
    auto* entries = reinterpret_cast<Entry*>(chunks + p.rows * per_row);
    q.pool->run(p.rows * per_row, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i)
        SLUICE_SIMD(q, sample_largest)(p, a, i / per_row, i % per_row, chunks + i);
    });
    q.pool->run(p.rows * per_row, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / per_row;
        const float base = largest_of(chunks + row * per_row, per_row);
        if (std::isfinite(base)) SLUICE_SIMD(q, sample_sums)(p, a, row, i % per_row, base, chunks + i);
      }
    });
    run_in_slots(*q.pool, rooms, p.rows, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t row = begin; row < end; ++row) {
        sample_row(q, p, a, row, chunks + row * per_row, entries + thread * entries_of(p));
      }
    });
  });
}

}  // namespace

extern const Candidate<Sample> sample_scan = {
    .name = "cpu.sample.scan",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
