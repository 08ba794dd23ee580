// Expert GEMM on mxfp4 panels by dot products of bf16 pairs (AVX-512 BF16).
//
// Wins    without AMX, up to about six rows an expert: a pair of weights is used as it lies or after one
// lookup. Loses   with more rows to f32 panels where a dot product takes two cycles, and to AMX wherever that
// is. Limits  AVX-512 BF16; layout panels16; x in bf16. Source  original; the engine is
// backends/cpu/panels/dot.h, the contract ops/expert_gemm.h.
#include "backends/cpu/panels/ops.h"

namespace sluice::cpu {
namespace {

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  return panels_supports(p, d, PanelEngine::kDot, DType::kE2M1);
}

double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  return panels_cost_us(p, d, PanelEngine::kDot);
}

size_t workspace_bytes(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  return panels_workspace(p, d, PanelEngine::kDot);
}

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace workspace, Stream s) {
  return enqueue_panels(p, a, workspace, s, PanelEngine::kDot);
}

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_avx512bf16 = {
    .name = "cpu.expert_gemm.mxfp4_avx512bf16",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
