// The operations on top of the engines: from a Problem and its Args to a PanelJob, and from sums to y.
#pragma once
#include "backends/cpu/card.h"
#include "backends/cpu/panels/job.h"
#include "ops/expert_gemm.h"
#include "ops/linear.h"

namespace sluice::cpu {

enum class PanelEngine : uint8_t { kDot, kTiles };

// The refusals of every kernel of this engine; `w` is the weight type of the kernel.
Refusal panels_supports(const ExpertGemm::Problem& p, const DeviceInfo& d, PanelEngine engine, DType w);
Refusal panels_supports(const Linear::Problem& p, const DeviceInfo& d, PanelEngine engine, DType w);

size_t panels_workspace(const ExpertGemm::Problem& p, const DeviceInfo& d, PanelEngine engine);
size_t panels_workspace(const Linear::Problem& p, const DeviceInfo& d, PanelEngine engine);

double panels_cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d, PanelEngine engine);
double panels_cost_us(const Linear::Problem& p, const DeviceInfo& d, PanelEngine engine);

Status enqueue_panels(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace workspace, Stream s,
                      PanelEngine engine);
Status enqueue_panels(const Linear::Problem& p, const Linear::Args& a, Workspace workspace, Stream s,
                      PanelEngine engine);

}  // namespace sluice::cpu
