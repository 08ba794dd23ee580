// Log probabilities by scans. Threads compute the largest logit, the sum of e^x and the number of tokens before the sampled one
// over chunks of a row in parallel. Then one thread per row combines the results of its chunks and gathers the most likely tokens.
//
// Wins    always: it is the only kernel of TopLogprobs on a CPU. The rows are in cache after sampling,
//         and a scan for logits above a threshold runs at the cache's bandwidth.
// Limits  none beyond the contract. Sums are in double.
// Source  original; the contract is ops/top_logprobs.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/top_logprobs_scan.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/card.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/logits.h"
#include "ops/top_logprobs.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

// The number of x[0 .. n) above `threshold`; NaN counts as -inf.
HWY_INLINE int64_t count_above(const float* x, int64_t n, float threshold) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto limit = hn::Set(d, threshold);
  int64_t i = 0, count = 0;
  for (; i + lanes <= n; i += lanes)
    count += static_cast<int64_t>(hn::CountTrue(d, hn::Gt(load_f32(x + i), limit)));
  for (; i < n; ++i) count += x[i] > threshold ? 1 : 0;
  return count;
}
// The number of x[0 .. n) that are `threshold` or more; NaN counts as -inf.
HWY_INLINE int64_t count_from(const float* x, int64_t n, float threshold) {
  if (threshold == kNothing) return n;
  return count_above(x, n, std::nextafter(threshold, kNothing));
}

}  // namespace

// `sampled`: the row's sampled token, or -1.
void logprob_chunk(const float* x, int64_t n, int64_t sampled, float sampled_logit, LogprobChunk* out) {
  out->largest = largest(x, n);
  out->sum = std::isfinite(out->largest) ? sum_of_weights(x, n, out->largest, 1) : 0;
  const int64_t lower = std::clamp<int64_t>(sampled, 0, n);  // ids below the sampled one
  out->before = count_from(x, lower, sampled_logit) + count_above(x + lower, n - lower, sampled_logit);
}

int64_t logprob_gather(const float* x, int64_t n, int64_t k, Entry* out) { return gather(x, n, k, out); }

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(logprob_chunk);
HWY_EXPORT(logprob_gather);

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kNothing = -std::numeric_limits<float>::infinity();

int64_t chunks_of(const TopLogprobs::Problem& p) { return (p.vocab + kLogitChunk - 1) / kLogitChunk; }
int64_t room_of(const TopLogprobs::Problem& p) { return gather_room(p.vocab, p.top); }
int64_t rooms_of(const TopLogprobs::Problem& p, int64_t threads) { return std::min(p.rows, threads); }

// One request: a row of logits and its token.
struct Question {
  const float* x;   // null: there is no such row
  int64_t sampled;  // -1: there is no such token
  float logit;      // logit of the token; NaN becomes -inf
};
Question question(const TopLogprobs::Problem& p, const TopLogprobs::Args& a, int64_t q) {
  const int64_t row = a.row.as<const int32_t>()[q];
  if (row < 0 || row >= p.logit_rows) return {nullptr, -1, kNothing};
  const auto* x = a.logits.row<const float>(row);
  const int64_t token = a.token.as<const int32_t>()[row];
  if (token < 0 || token >= p.vocab) return {x, -1, kNothing};
  return {x, token, x[token] > kNothing ? x[token] : kNothing};
}

// ln of the sum of e^x; NaN: no log probability of the row is meaningful.
double log_sum_of(const LogprobChunk* chunks, int64_t count) {
  float largest = chunks[0].largest;
  for (int64_t c = 1; c < count; ++c) largest = std::max(largest, chunks[c].largest);
  if (!std::isfinite(largest)) return kNan;
  double sum = 0;
  for (int64_t c = 0; c < count; ++c)
    sum += chunks[c].sum * std::exp(static_cast<double>(chunks[c].largest) - largest);
  return largest + std::log(sum);
}

// Appends entries, by id, for tokens whose logit is -inf or NaN, until there are `top`. Returns the number of entries.
int64_t add_impossible(const float* x, int64_t vocab, int64_t top, int64_t count, Entry* out) {
  for (int64_t id = 0; id < vocab && count < top; ++id)
    if (!(x[id] > kNothing)) out[count++] = {kNothing, static_cast<int32_t>(id)};
  return count;
}

void answer(Queue& queue, const TopLogprobs::Problem& p, const TopLogprobs::Args& a, int64_t q,
            const LogprobChunk* chunks, Entry* entries) {
  const Question request = question(p, a, q);
  const double log_sum = request.x ? log_sum_of(chunks, chunks_of(p)) : kNan;
  int64_t before = 0;
  for (int64_t c = 0; request.sampled >= 0 && c < chunks_of(p); ++c) before += chunks[c].before;
  a.logprob.as<float>()[q] = request.sampled < 0 ? kNan : static_cast<float>(request.logit - log_sum);
  a.rank.as<int32_t>()[q] = request.sampled < 0 ? 0 : static_cast<int32_t>(before + 1);
  if (p.top == 0) return;
  int64_t count = 0;
  if (request.x) {
    count = SLUICE_SIMD(queue, logprob_gather)(request.x, p.vocab, p.top, entries);
    count = add_impossible(request.x, p.vocab, std::min(p.top, p.vocab), count, entries);
  }
  for (int64_t i = 0; i < p.top; ++i) {
    a.top_id.row<int32_t>(q)[i] = i < count ? entries[i].id : -1;
    a.top_logprob.row<float>(q)[i] = i < count ? static_cast<float>(entries[i].logit - log_sum) : kNan;
  }
}

Refusal supports(const TopLogprobs::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const TopLogprobs::Problem& p, const DeviceInfo& d) {
  const double exponentials = static_cast<double>(p.rows * p.vocab);
  return roofline_us<TopLogprobs>(p, d, 0.3, d.f32_flops_per_us) + 50 * exponentials / d.f32_flops_per_us;
}

size_t workspace_bytes(const TopLogprobs::Problem& p, const DeviceInfo& d) {
  return static_cast<size_t>(p.rows * chunks_of(p)) * sizeof(LogprobChunk) +
         static_cast<size_t>(rooms_of(p, d.cores) * room_of(p)) * sizeof(Entry);
}

Status enqueue(const TopLogprobs::Problem& p, const TopLogprobs::Args& a, Workspace workspace,
               Stream stream) {
  SLUICE_TRY(check_scratch("cpu.top_logprobs.scan", p, workspace_bytes, workspace, stream));
  return submit(stream, [p, a, workspace](Queue& q) {
    const int64_t per_row = chunks_of(p);
    const size_t chunk_bytes = static_cast<size_t>(p.rows * per_row) * sizeof(LogprobChunk),
                 room_bytes = static_cast<size_t>(room_of(p)) * sizeof(Entry);
    const int64_t rooms = rooms_of(p, slots_in(workspace.bytes - chunk_bytes, room_bytes, *q.pool));
    auto* chunks = reinterpret_cast<LogprobChunk*>(workspace.data);
    auto* entries = reinterpret_cast<Entry*>(chunks + p.rows * per_row);
    q.pool->run(p.rows * per_row, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const Question request = question(p, a, i / per_row);
        const int64_t first = i % per_row * kLogitChunk, n = std::min(kLogitChunk, p.vocab - first);
        if (request.x) {
          SLUICE_SIMD(q, logprob_chunk)
          (request.x + first, n, request.sampled - first, request.logit, chunks + i);
        }
      }
    });
    run_in_slots(*q.pool, rooms, p.rows, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t row = begin; row < end; ++row)
        answer(q, p, a, row, chunks + row * per_row, entries + thread * room_of(p));
    });
  });
}

}  // namespace

extern const Candidate<TopLogprobs> top_logprobs_scan = {
    .name = "cpu.top_logprobs.scan",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
