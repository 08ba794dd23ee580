// Expert GEMM on mxfp4 panels by multiply-adds in f32 (AVX-512), up to four rows of x for each decoding.
//
// Wins    up to about two rows an expert, and at any number where there are no tiles: a code becomes 16 floats by one
//         shift and one lookup, and the weights stream past once.
// Loses   more rows, to AMX.
// Limits  AVX-512; layout panels16; x in bf16.
// Source  original; the engine is backends/cpu/panels/dot.h, the contract ops/expert_gemm.h.
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

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_avx512 = {
    .name = "cpu.expert_gemm.mxfp4_avx512",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
