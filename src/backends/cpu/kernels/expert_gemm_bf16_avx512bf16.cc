// Expert GEMM on bf16 panels by dot products of bf16 pairs (AVX-512 BF16).
//
// Wins    without AMX: every panel is read once for up to four rows of x, and nothing is copied.
// Loses   to AMX: a dot product of 16 pairs takes more than two cycles, a tile of 256 takes sixteen.
// Limits  AVX-512 BF16; layout panels16; x in bf16.
// Source  original; the engine is backends/cpu/panels/dot.h, the contract ops/expert_gemm.h.
#include "backends/cpu/panels/ops.h"

namespace sluice::cpu {
namespace {

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  return panels_supports(p, d, PanelEngine::kDot, DType::kBF16);
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

extern const Candidate<ExpertGemm> expert_gemm_bf16_avx512bf16 = {
    .name = "cpu.expert_gemm.bf16_avx512bf16",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
