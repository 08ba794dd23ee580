// Log probabilities: a CTA of 1024 threads reads a row once. It computes the sum of e^x, the number of tokens before the sampled
// token, and for each thread the first of its tokens in sampling order. The first `top` tokens of the row belong to threads whose
// first token is among the `top` first of these. Those threads, at most `top`, read their logits again and list the candidates.
//
// Wins    always: it is the only kernel of TopLogprobs. Rows are still in L2 after the product that wrote the logits, and few threads make
//         the second pass.
// Loses   time for few rows, which a cluster of CTAs per row would save: one SM reads only about 100 GB/s from L2.
// Limits  vocab <= 2^19: the list must hold all logits of `top` threads.
// Source  original; the contract is ops/top_logprobs.h.
#include "backends/cuda/card.h"
#include "ops/top_logprobs.h"

namespace sluice::cuda {
namespace {

constexpr int64_t kVocabMax = int64_t{1} << 19;

Refusal supports(const TopLogprobs::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  r.need(p.vocab <= kVocabMax, "vocab <= 2^19 (the list of a row in shared memory)", "vocab", p.vocab);
  return r;
}

// A model that is not fitted: the time in which one SM reads a row from L2, times the number of waves with one row per SM.
double cost_us(const TopLogprobs::Problem& p, const DeviceInfo& d) {
  const double waves = std::ceil(static_cast<double>(p.rows) / d.cores);
  return kRampUs + 6 + waves * 4e-5 * static_cast<double>(p.vocab) +
         TopLogprobs::bytes(p) / d.mem_bytes_per_us;
}

struct Launcher {
  static Status enqueue(const TopLogprobs::Problem&, const TopLogprobs::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<TopLogprobs> top_logprobs_row_sm90 = {
    .name = "cuda.top_logprobs.row_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<TopLogprobs>,
    .enqueue = enqueue_of<TopLogprobs, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/sampling/top_logprobs_row.cuh"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {
namespace {

using namespace logprobs;

struct Parameters {
  const float* logits;
  int64_t stride;  // elements between rows
  const int32_t *token, *row;
  float* logprob;
  int32_t *rank, *top_id;
  float* top_logprob;
  int logit_rows, vocab, top;
  int wide;  // rows begin at multiples of 16 bytes
};

// Writes the result for a row that does not exist.
__device__ __forceinline__ void answer_nothing(const Parameters& p, int64_t question) {
  const int own = static_cast<int>(threadIdx.x);
  if (own == 0) p.logprob[question] = NAN, p.rank[question] = 0;
  if (own < p.top) p.top_id[question * p.top + own] = -1, p.top_logprob[question * p.top + own] = NAN;
}

__global__ void __launch_bounds__(kThreads, 1) top_logprobs(const __grid_constant__ Parameters p) {
  extern __shared__ uint4 shared[];
  Scratch& scratch = *reinterpret_cast<Scratch*>(shared);
  auto* const list = reinterpret_cast<uint64_t*>(reinterpret_cast<unsigned char*>(shared) + kScratchBytes);
  tile::release_next();
  tile::wait_for_previous();
  const int64_t question = blockIdx.x;
  const int own = static_cast<int>(threadIdx.x), which = p.row[question];
  if (which < 0 || which >= p.logit_rows) return answer_nothing(p, question);
  const Row row{.x = p.logits + which * p.stride, .vocab = p.vocab, .wide = p.wide != 0};
  const int token = p.token[which];
  const bool known = token >= 0 && token < p.vocab;
  const float logit = known ? fmaxf(row.x[token], -INFINITY) : -INFINITY;  // NaN becomes -inf
  const Seen seen = pass(row, known ? token : -1, logit);
  const Totals totals = totals_of(seen, scratch);
  const double log_sum = isfinite(totals.largest) ? static_cast<double>(totals.largest) + log(totals.sum)
                                                  : static_cast<double>(NAN);
  if (own == 0) {
    p.logprob[question] = known ? static_cast<float>(static_cast<double>(logit) - log_sum) : NAN;
    p.rank[question] = known ? totals.before + 1 : 0;
  }
  if (p.top == 0) return;
  const int listed = list_first(row, seen, p.top, list, &scratch.listed);
  for (int i = own; i < listed; i += kThreads) {
    const uint64_t place = list[i];
    int before = 0;
    for (int j = 0; j < listed && before < p.top; ++j) before += list[j] < place;
    if (before >= p.top) continue;
    const int64_t to = question * p.top + before;
    p.top_id[to] = draw::id_at(place);
    p.top_logprob[to] = static_cast<float>(static_cast<double>(draw::logit_at(place)) - log_sum);
  }
  if (own >= p.vocab && own < p.top)
    p.top_id[question * p.top + own] = -1, p.top_logprob[question * p.top + own] = NAN;
}

Status Launcher::enqueue(const TopLogprobs::Problem& p, const TopLogprobs::Args& a, Workspace,
                         Stream stream) {
  if (p.rows == 0) return {};
  constexpr int64_t kBytes = 16;
  const Parameters parameters{.logits = a.logits.as<const float>(),
                              .stride = a.logits.stride[0],
                              .token = a.token.as<const int32_t>(),
                              .row = a.row.as<const int32_t>(),
                              .logprob = a.logprob.as<float>(),
                              .rank = a.rank.as<int32_t>(),
                              .top_id = a.top_id.as<int32_t>(),
                              .top_logprob = a.top_logprob.as<float>(),
                              .logit_rows = static_cast<int>(p.logit_rows),
                              .vocab = static_cast<int>(p.vocab),
                              .top = static_cast<int>(p.top),
                              .wide = reinterpret_cast<uintptr_t>(a.logits.data) % kBytes == 0 &&
                                      a.logits.stride[0] * 4 % kBytes == 0};
  const int64_t places = std::min(p.vocab, p.top * share_of(p.vocab));
  const Launch how{.grid = {static_cast<unsigned>(p.rows), 1, 1},
                   .block = {kThreads, 1, 1},
                   .shared_bytes = kScratchBytes + static_cast<size_t>(places) * sizeof(uint64_t)};
  return launch(top_logprobs_row_sm90.name, top_logprobs, how, stream, parameters);
}

}  // namespace
}  // namespace sluice::cuda
#endif
