// Expert GEMM and dense layers on panels16. The table has one row for each engine and weight type.
//
// mxfp4_avx512      multiply-adds in f32, up to four rows of x per decoding (panels/dot.h).
//   Wins    up to about two rows per expert, and without AMX for any number of rows.
// bf16_avx512bf16   dot products of bf16 pairs; weights are read as stored (panels/dot.h).
//   Wins    without AMX, up to about six rows per expert. For more rows, panels in f32 win if a dot product takes two cycles.
// mxfp4_amx, bf16_amx   tiles of bf16 (panels/tiles.h).
//   Wins    with AMX: bf16 weights for any number of rows, mxfp4 from about two rows per expert on.
// Limits  the instructions in the name; layout panels16; x in bf16.
// Source  original; the contracts are ops/expert_gemm.h and ops/linear.h.
#include "backends/cpu/panels/ops.h"

namespace sluice::cpu {
namespace {

template <class Op, PanelEngine kEngine, DType kWeights>
constexpr Candidate<Op> card(std::string_view name) {
  using Problem = typename Op::Problem;
  return {
      .name = name,
      .backend = Backend::kCpu,
      .supports = [](const Problem& p,
                     const DeviceInfo& d) { return panels_supports(p, d, kEngine, kWeights); },
      .cost_us = [](const Problem& p, const DeviceInfo& d) { return panels_cost_us(p, d, kEngine); },
      .workspace_bytes = [](const Problem& p,
                            const DeviceInfo& d) { return panels_workspace(p, d, kEngine); },
      .enqueue = [](const Problem& p, const typename Op::Args& a, Workspace w,
                    Stream s) { return enqueue_panels(p, a, w, s, kEngine); },
      .batch_invariant = true,
  };
}

constexpr auto kDot = PanelEngine::kDot, kTiles = PanelEngine::kTiles;
constexpr auto kMxfp4 = DType::kE2M1, kBF16 = DType::kBF16;

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_avx512 =
    card<ExpertGemm, kDot, kMxfp4>("cpu.expert_gemm.mxfp4_avx512");
extern const Candidate<ExpertGemm> expert_gemm_mxfp4_amx =
    card<ExpertGemm, kTiles, kMxfp4>("cpu.expert_gemm.mxfp4_amx");
extern const Candidate<ExpertGemm> expert_gemm_bf16_avx512bf16 =
    card<ExpertGemm, kDot, kBF16>("cpu.expert_gemm.bf16_avx512bf16");
extern const Candidate<ExpertGemm> expert_gemm_bf16_amx =
    card<ExpertGemm, kTiles, kBF16>("cpu.expert_gemm.bf16_amx");
extern const Candidate<Linear> linear_bf16_avx512bf16 =
    card<Linear, kDot, kBF16>("cpu.linear.bf16_avx512bf16");
extern const Candidate<Linear> linear_bf16_amx = card<Linear, kTiles, kBF16>("cpu.linear.bf16_amx");

}  // namespace sluice::cpu
