// Expert GEMM on mxfp4 panels by tiles of bf16 (AMX).
//
// Wins    wherever AMX is: the tiles are so fast that even one row an expert is bound by memory.
// Loses   nowhere that was measured.
// Limits  AMX with bf16; layout panels16; x in bf16.
// Source  original; the engine is backends/cpu/panels/tiles.h, the contract ops/expert_gemm.h.
#include "backends/cpu/panels/ops.h"

namespace sluice::cpu {
namespace {

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  return panels_supports(p, d, PanelEngine::kTiles, DType::kE2M1);
}

double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  return panels_cost_us(p, d, PanelEngine::kTiles);
}

size_t workspace_bytes(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  return panels_workspace(p, d, PanelEngine::kTiles);
}

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace workspace, Stream s) {
  return enqueue_panels(p, a, workspace, s, PanelEngine::kTiles);
}

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_amx = {
    .name = "cpu.expert_gemm.mxfp4_amx",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
