// The experts of a layer in turn: the kernels of the four operations one after the other. Both products have the same types
// and layout, so the same kernel serves both.
//
// Wins    always on a CPU: h and g of some tokens stay in a near cache, and a call costs next to nothing.
// Loses   nothing yet.
// Limits  those of the kernels.
// Source  original; the contract is ops/expert_mlp.h.
#include "dispatch/expert_mlp_in_turn.h"

namespace sluice::cpu {

extern const Candidate<GroupRows> group_rows_counting;
extern const Candidate<ExpertGemm> expert_gemm_mxfp4_amx, expert_gemm_mxfp4_avx512, expert_gemm_bf16_amx,
    expert_gemm_bf16_avx512bf16, expert_gemm_panels_f32, expert_gemm_dot, expert_gemm_fragments_plain;
extern const Candidate<Combine> combine_columns;

namespace {

template <const Candidate<ExpertGemm>& kGemm>
Candidate<ExpertMlp> in_turn(std::string_view name) {
  return ExpertMlpInTurn<group_rows_counting, kGemm, kGemm, combine_columns>::card(name);
}

}  // namespace

extern const Candidate<ExpertMlp> expert_mlp_mxfp4_amx =
    in_turn<expert_gemm_mxfp4_amx>("cpu.expert_mlp.mxfp4_amx");
extern const Candidate<ExpertMlp> expert_mlp_mxfp4_avx512 =
    in_turn<expert_gemm_mxfp4_avx512>("cpu.expert_mlp.mxfp4_avx512");
extern const Candidate<ExpertMlp> expert_mlp_bf16_amx =
    in_turn<expert_gemm_bf16_amx>("cpu.expert_mlp.bf16_amx");
extern const Candidate<ExpertMlp> expert_mlp_bf16_avx512bf16 =
    in_turn<expert_gemm_bf16_avx512bf16>("cpu.expert_mlp.bf16_avx512bf16");
extern const Candidate<ExpertMlp> expert_mlp_panels_f32 =
    in_turn<expert_gemm_panels_f32>("cpu.expert_mlp.panels_f32");
extern const Candidate<ExpertMlp> expert_mlp_dot = in_turn<expert_gemm_dot>("cpu.expert_mlp.dot");
extern const Candidate<ExpertMlp> expert_mlp_fragments_plain =
    in_turn<expert_gemm_fragments_plain>("cpu.expert_mlp.fragments_plain");

}  // namespace sluice::cpu
