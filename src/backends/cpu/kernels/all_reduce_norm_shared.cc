// The sum over ranks: every rank reads the other ranks' rows in place, and computes all rows itself.
//
// Wins    always: it is the only kernel of AllReduceNorm on a CPU.
// Loses   for many ranks and long rows to a sum that is divided among the ranks; there is no such kernel, because groups of CPU
//         devices are mainly for tests.
// Limits  none beyond the contract.
// Source  original; the contract, including the order of the sum, is ops/all_reduce_norm.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/all_reduce_norm_shared.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include <array>
#include <cmath>

#include "backends/cpu/card.h"
#include "backends/cpu/group.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/dot.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

// The x of all ranks.
using Parts = std::array<Tensor, AllReduceNorm::kRanksMax>;

template <class X>
void sum_row(const AllReduceNorm::Problem& p, const Parts& parts, int64_t t, X* stream) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto row = [&](int64_t rank) { return parts[static_cast<size_t>(rank)].row<const X>(t); };
  int64_t i = 0;
  for (; i + lanes <= p.hidden; i += lanes) {
    auto sum = load_f32(row(0) + i);
    for (int64_t rank = 1; rank < p.ranks; ++rank) sum = hn::Add(sum, load_f32(row(rank) + i));
    if (p.residual) sum = hn::Add(sum, load_f32(stream + i));
    store_f32(sum, stream + i);
  }
  for (; i < p.hidden; ++i) {
    float sum = scalar_f32(row(0)[i]);
    for (int64_t rank = 1; rank < p.ranks; ++rank) sum += scalar_f32(row(rank)[i]);
    if (p.residual) sum += scalar_f32(stream[i]);
    store_scalar(sum, stream + i);
  }
}

template <class X, class W>
void norm_row(const X* h, const W* w, X* y, int64_t n, float eps) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float inverse = 1.f / std::sqrt(dot(h, h, n) / static_cast<float>(n) + eps);
  const auto scale = hn::Set(d, inverse);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    store_f32(hn::Mul(hn::Mul(load_f32(h + i), scale), load_f32(w + i)), y + i);
  for (; i < n; ++i) store_scalar(scalar_f32(h[i]) * inverse * scalar_f32(w[i]), y + i);
}

}  // namespace

// Rows [begin, end).
void all_reduce_norm_shared_simd(const AllReduceNorm::Problem& p, const AllReduceNorm::Args& a,
                                 const Parts& parts, int64_t begin, int64_t end) {
  with_float(p.x, [&]<class X>(const X*) {
    with_float(p.w, [&]<class W>(const W*) {
      for (int64_t t = begin; t < end; ++t) {
        X* stream = a.stream.row<X>(t);
        sum_row(p, parts, t, stream);
        if (p.norm)
          norm_row(stream, a.weight.as<const W>(), a.y.row<X>(t), p.hidden, static_cast<float>(p.eps));
      }
    });
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(all_reduce_norm_shared_simd);

namespace {

Refusal supports(const AllReduceNorm::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const AllReduceNorm::Problem& p, const DeviceInfo& d) {
  return roofline_us<AllReduceNorm>(p, d, 0.8, 0.25 * d.f32_flops_per_us);
}

void run_rows(Queue& q, const AllReduceNorm::Problem& p, const AllReduceNorm::Args& a,
              const std::array<Tensor, AllReduceNorm::kRanksMax>& parts) {
  q.pool->run(p.tokens, 2, [&](int64_t begin, int64_t end, int) {
    SLUICE_SIMD(q, all_reduce_norm_shared_simd)(p, a, parts, begin, end);
  });
}

Status enqueue(const AllReduceNorm::Problem& p, const AllReduceNorm::Args& a, Workspace, Stream s) {
  if (p.ranks == 1) return submit(s, [p, a](Queue& q) { run_rows(q, p, a, {a.x}); });
  const GroupQueue& queue = group_queue_of(s);
  if (!queue.member || queue.member->group->ranks() != p.ranks)
    return invalid("all_reduce_norm: wanted a device in a group of " + std::to_string(p.ranks) + ", found " +
                   (queue.member ? "a group of " + std::to_string(queue.member->group->ranks()) : "none"));
  SLUICE_TRY(group_status(queue));
  SLUICE_TRY(submit(s, [p, a](Queue& q) {
    const Member member = *static_cast<GroupQueue&>(q).member;
    if (!member.group->begin(member.rank, p, a.x)) return;
    std::array<Tensor, AllReduceNorm::kRanksMax> parts;
    for (int rank = 0; rank < member.group->ranks(); ++rank)
      parts[static_cast<size_t>(rank)] = member.group->x_of(rank);
    run_rows(q, p, a, parts);
    (void)member.group->done();
  }));
  return group_status(queue);
}

}  // namespace

extern const Candidate<AllReduceNorm> all_reduce_norm_shared = {
    .name = "cpu.all_reduce_norm.shared",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<AllReduceNorm>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
