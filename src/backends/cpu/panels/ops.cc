#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/panels/ops.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include "backends/cpu/panels/dot.h"
#include "backends/cpu/panels/ops.h"
#include "backends/cpu/panels/tiles.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/expert_tile.h"
#include "backends/cpu/simd/linear_tile.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

void finish_expert_sums(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, const PanelSums& s) {
  with_float(p.y, [&]<class Y>(const Y*) {
    if (is_gated(p.act))
      return finish_tile<Y>(p, a, {s.expert, s.row, s.rows, s.panel / 2 * kPanelRows}, s.sums[0], s.sums[1]);
    for (int64_t i = 0; i < s.panels; ++i)
      finish_tile<Y>(p, a, {s.expert, s.row, s.rows, (s.panel + i) * kPanelRows}, s.sums[i], nullptr);
  });
}

void finish_linear_sums(const Linear::Problem& p, const Linear::Args& a, const PanelSums& s) {
  with_float(p.y, [&]<class Y>(const Y*) {
    for (int64_t i = 0; i < s.panels; ++i)
      finish_linear_tile<Y>(p, a, {s.row, s.rows, (s.panel + i) * kPanelRows}, s.sums[i]);
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(finish_expert_sums);
HWY_EXPORT(finish_linear_sums);

namespace {

PanelJob job_of(const ExpertGemm::Problem& p, const ExpertGemm::Args& a) {
  const PanelShape shape = ExpertGemm::panels(p);
  return {.input = {.x = a.x.as<const BF16>(),
                    .stride = a.x.stride[0],
                    .order = a.order.as<const int32_t>(),
                    .slots = p.slots,
                    .width = p.width,
                    .padded = shape.width},
          .codes = a.w.as<const uint8_t>(),
          .scales = a.w_scale.as<const uint8_t>(),
          .mxfp4 = p.w == DType::kE2M1,
          .panels = shape.panels,
          .experts = p.experts,
          .rows = p.rows,
          .row_begin = a.row_begin.as<const int32_t>(),
          .row_count = a.row_count.as<const int32_t>()};
}

PanelJob job_of(const Linear::Problem& p, const Linear::Args& a) {
  const PanelShape shape = panel_shape(p.features, false, p.width);
  return {
      .input = {.x = a.x.as<const BF16>(), .stride = a.x.stride[0], .width = p.width, .padded = shape.width},
      .codes = a.w.as<const uint8_t>(),
      .panels = shape.panels,
      .rows = p.tokens};
}

size_t scratch_bytes(const PanelJob& job, const DeviceInfo& d, PanelEngine engine) {
  return engine == PanelEngine::kDot ? dot_scratch_bytes(job) : tile_scratch_bytes(job, d.cores);
}

template <class Problem>
Status check_panel_scratch(const Problem& p, Workspace workspace, Stream stream, PanelEngine engine) {
  if (engine == PanelEngine::kDot) return {};  // all threads share it
  return check_scratch<Problem>(
      "cpu.panels.tiles", p,
      [](const Problem& problem, const DeviceInfo& d) {
        return panels_workspace(problem, d, PanelEngine::kTiles);
      },
      workspace, stream);
}

void run(const PanelJob& job, Queue& q, PanelEngine engine, const PanelSink& sink) {
  engine == PanelEngine::kDot ? run_dot(job, *q.pool, sink) : run_tiles(job, *q.pool, sink);
}

void need_engine(Refusal& r, const DeviceInfo& d, PanelEngine engine, DType w) {
  uint32_t needed = kAvx512;
  if (engine == PanelEngine::kTiles || w == DType::kBF16) needed |= kAvx512Bf16;
  if (engine == PanelEngine::kTiles) needed |= kAmxBf16;
  if ((d.cpu_features & needed) != needed)
    r.need(false, features_text(needed) + " (the kernel uses these instructions)",
           "cpu_features=" + features_text(d.cpu_features));
}

void need_panels_and_bf16(Refusal& r, WeightLayout layout, DType x) {
  if (layout != WeightLayout::kPanels16)
    r.need(false, "layout panels16 (a vector is one pair of 16 rows)", "layout=" + std::string(word(layout)));
  if (x != DType::kBF16)
    r.need(false, "x in bf16 (the products are of bf16 pairs)", std::string("x=") + text(x));
}

// The work of a job with `rows` rows for `active` experts.
struct Load {
  double rows, active, bytes, flops;
  DType w;
};

// Measured at 3.5 GHz. kDotFlopsPerUs: dot products of pairs with four rows at a time. kDecodeCycles: to decode an mxfp4 block of 512
// weights for up to four rows. kRowCycles: for each of these rows. kTileFlopsShare: share of the device's listed rate that whole tiles
// reach. Each engine reaches a share of the memory bandwidth. Memory and arithmetic overlap, except for a part of the shorter one.
constexpr double kCyclesPerUs = 3500, kDotFlopsPerUs = 0.085e6, kTileFlopsShare = 0.65;
// With one row, its products overlap with the decoding; with more rows they do not.
constexpr double kDecodeCycles = 32, kRowCycles = 36;
constexpr double kDotMemShare = 0.68, kFmaMemShare = 0.9, kTileMemShare = 0.75;
constexpr double kExposed = 0.3;

double arithmetic_us(const Load& load, const DeviceInfo& d, PanelEngine engine) {
  const double per_expert = load.rows / load.active;
  if (engine == PanelEngine::kTiles) {
    const double padding = std::ceil(per_expert / 16) * 16 / per_expert;
    return load.flops * padding / (kTileFlopsShare * d.bf16_flops_per_us);
  }
  if (load.w == DType::kBF16) return load.flops / (kDotFlopsPerUs * d.cores);
  const double blocks = load.flops / (2 * per_expert) / (kMxBlock * kPanelRows);
  const double cycles = std::ceil(per_expert / 4) * kDecodeCycles + per_expert * kRowCycles;
  return blocks * cycles / (kCyclesPerUs * d.cores);
}

double cost(const Load& load, const DeviceInfo& d, PanelEngine engine) {
  if (load.rows == 0) return 0;
  const double share = engine == PanelEngine::kTiles ? kTileMemShare
                       : load.w == DType::kBF16      ? kDotMemShare
                                                     : kFmaMemShare;
  const double memory = load.bytes / (d.mem_bytes_per_us * share),
               arithmetic = arithmetic_us(load, d, engine);
  return d.launch_us + std::max(memory, arithmetic) + kExposed * std::min(memory, arithmetic);
}

// Op is ExpertGemm or Linear. Has the data with which the sink converts sums to y.
template <class Op>
struct Destination {
  const typename Op::Problem& problem;
  const typename Op::Args& args;
  Queue& queue;
};

}  // namespace

Refusal panels_supports(const ExpertGemm::Problem& p, const DeviceInfo& d, PanelEngine engine, DType w) {
  Refusal r;
  need_engine(r, d, engine, w);
  need_panels_and_bf16(r, p.layout, p.x);
  if (ExpertGemm::format(p) != WeightFormat{w})
    r.need(false, "w in " + text(WeightFormat{w}), "w=" + text(ExpertGemm::format(p)));
  return r;
}

Refusal panels_supports(const Linear::Problem& p, const DeviceInfo& d, PanelEngine engine, DType w) {
  Refusal r;
  need_engine(r, d, engine, w);
  need_panels_and_bf16(r, p.layout, p.x);
  return r;
}

size_t panels_workspace(const ExpertGemm::Problem& p, const DeviceInfo& d, PanelEngine engine) {
  return scratch_bytes(job_of(p, {}), d, engine);
}

size_t panels_workspace(const Linear::Problem& p, const DeviceInfo& d, PanelEngine engine) {
  return scratch_bytes(job_of(p, {}), d, engine);
}

double panels_cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d, PanelEngine engine) {
  const double rows = ExpertGemm::expected_rows(p);
  return cost({rows, active_experts(rows, p.experts), ExpertGemm::bytes(p), ExpertGemm::flops(p), p.w}, d,
              engine);
}

double panels_cost_us(const Linear::Problem& p, const DeviceInfo& d, PanelEngine engine) {
  return cost({static_cast<double>(p.tokens), 1, Linear::bytes(p), Linear::flops(p), DType::kBF16}, d,
              engine);
}

Status enqueue_panels(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace workspace, Stream s,
                      PanelEngine engine) {
  SLUICE_TRY(check_panel_scratch(p, workspace, s, engine));
  return submit(s, [p, a, workspace, engine](Queue& q) {
    PanelJob job = job_of(p, a);
    job.scratch = workspace.data;
    job.scratch_bytes = workspace.bytes;
    const Destination<ExpertGemm> to{p, a, q};
    run(job, q, engine, {&to, [](const void* context, const PanelSums& sums) {
                           const auto& y = *static_cast<const Destination<ExpertGemm>*>(context);
                           SLUICE_SIMD(y.queue, finish_expert_sums)(y.problem, y.args, sums);
                         }});
  });
}

Status enqueue_panels(const Linear::Problem& p, const Linear::Args& a, Workspace workspace, Stream s,
                      PanelEngine engine) {
  SLUICE_TRY(check_panel_scratch(p, workspace, s, engine));
  return submit(s, [p, a, workspace, engine](Queue& q) {
    PanelJob job = job_of(p, a);
    job.scratch = workspace.data;
    job.scratch_bytes = workspace.bytes;
    const Destination<Linear> to{p, a, q};
    run(job, q, engine, {&to, [](const void* context, const PanelSums& sums) {
                           const auto& y = *static_cast<const Destination<Linear>*>(context);
                           SLUICE_SIMD(y.queue, finish_linear_sums)(y.problem, y.args, sums);
                         }});
  });
}

}  // namespace sluice::cpu
#endif  // HWY_ONCE
