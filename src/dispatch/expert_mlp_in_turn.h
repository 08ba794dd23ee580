// ExpertMlp as kernels of its four parts in turn, with what stands between them in the workspace: a candidate for each choice of
// kernels that is worth it, so that the choice between them is made where all choices are made.
#pragma once
#include <algorithm>

#include "base/arena.h"
#include "dispatch/candidate.h"
#include "ops/expert_mlp.h"

namespace sluice {

// Where that stands: pieces one behind the other, as an Arena would lend them.
struct ExpertMlpBetween {
  GroupRows::Args groups;
  Tensor h, g;
  size_t bytes = 0;  // of all; scratch of the parts comes behind

  // `base` may be null where only the size is asked for.
  static ExpertMlpBetween at(std::byte* base, const ExpertMlp::Problem& p, Backend where) {
    ExpertMlpBetween out;
    const int64_t rows = ExpertMlp::rows(p);
    const auto take = [&](DType dtype, std::initializer_list<int64_t> shape) {
      Tensor t = make_tensor(base ? base + out.bytes : nullptr, dtype, shape, where);
      out.bytes += Arena::footprint(static_cast<size_t>(bytes_of(dtype, elements_of(t))));
      return t;
    };
    out.groups.row_count = take(DType::kI32, {p.experts});
    out.groups.row_begin = take(DType::kI32, {p.experts + 1});
    out.groups.order = take(DType::kI32, {rows});
    out.groups.position = take(DType::kI32, {p.tokens, p.slots});
    out.h = take(p.x, {rows, p.intermediate});
    out.g = take(p.g, {rows, p.hidden});
    return out;
  }
};

template <const Candidate<GroupRows>& kGroup, const Candidate<ExpertGemm>& kUp,
          const Candidate<ExpertGemm>& kDown, const Candidate<Combine>& kCombine>
struct ExpertMlpInTurn {
  using Problem = ExpertMlp::Problem;

  // Every reason of every part.
  static Refusal supports(const Problem& p, const DeviceInfo& d) {
    Refusal r = kGroup.supports(ExpertMlp::group(p), d);
    r.append(kUp.supports(ExpertMlp::up(p), d));
    r.append(kDown.supports(ExpertMlp::down(p), d));
    return r.append(kCombine.supports(ExpertMlp::combine(p), d));
  }
  static double cost_us(const Problem& p, const DeviceInfo& d) {
    return kGroup.cost_us(ExpertMlp::group(p), d) + kUp.cost_us(ExpertMlp::up(p), d) +
           kDown.cost_us(ExpertMlp::down(p), d) + kCombine.cost_us(ExpertMlp::combine(p), d);
  }
  // One scratch for all: each part starts when the one before it is done with its own.
  static size_t workspace_bytes(const Problem& p, const DeviceInfo& d) {
    return ExpertMlpBetween::at(nullptr, p, d.backend).bytes +
           std::max({kGroup.workspace_bytes(ExpertMlp::group(p), d), kUp.workspace_bytes(ExpertMlp::up(p), d),
                     kDown.workspace_bytes(ExpertMlp::down(p), d),
                     kCombine.workspace_bytes(ExpertMlp::combine(p), d)});
  }
  static Status enqueue(const Problem& p, const ExpertMlp::Args& a, Workspace w, Stream s) {
    const ExpertMlpBetween b = ExpertMlpBetween::at(w.data, p, s.where);
    const Workspace rest{w.data + b.bytes, w.bytes - b.bytes};
    SLUICE_TRY(kGroup.enqueue(ExpertMlp::group(p), ExpertMlp::group(a, b.groups), rest, s));
    SLUICE_TRY(kUp.enqueue(ExpertMlp::up(p), ExpertMlp::up(p, a, b.groups, b.h), rest, s));
    SLUICE_TRY(kDown.enqueue(ExpertMlp::down(p), ExpertMlp::down(a, b.groups, b.h, b.g), rest, s));
    return kCombine.enqueue(ExpertMlp::combine(p), ExpertMlp::combine(p, a, b.groups, b.g), rest, s);
  }

  static Candidate<ExpertMlp> card(std::string_view name) {
    return {.name = name,
            .backend = kUp.backend,
            .supports = supports,
            .cost_us = cost_us,
            .workspace_bytes = workspace_bytes,
            .enqueue = enqueue,
            .batch_invariant = kGroup.batch_invariant && kUp.batch_invariant && kDown.batch_invariant &&
                               kCombine.batch_invariant,
            .alignment_bytes = std::max({kGroup.alignment_bytes, kUp.alignment_bytes, kDown.alignment_bytes,
                                         kCombine.alignment_bytes}),
            .in_turn = true};
  }
};

}  // namespace sluice
