// The experts of a layer in turn: the kernels of the four operations one after the other. A candidate for each kind of kernel for
// the two products, so that the choice between them is made where all choices are made.
//
// Wins    where no kernel does all, and with many tokens: the two products are then all there is.
// Loses   launches and their ramps, to a kernel that does all.
// Limits  those of the kernels.
// Source  original; the contract is ops/expert_mlp.h.
#include "dispatch/expert_mlp_in_turn.h"

namespace sluice::cuda {

extern const Candidate<GroupRows> group_rows_cluster_sm90;
extern const Candidate<ExpertGemm> expert_gemm_mxfp4_stream_sm90, expert_gemm_mxfp4_tile_sm90,
    expert_gemm_bf16_stream_sm90, expert_gemm_bf16_tile_sm90, expert_gemm_fma_sm90;
extern const Candidate<Combine> combine_rows_sm90;

namespace {

template <const Candidate<ExpertGemm>& kGemm>
Candidate<ExpertMlp> in_turn(std::string_view name) {
  Candidate<ExpertMlp> card =
      ExpertMlpInTurn<group_rows_cluster_sm90, kGemm, kGemm, combine_rows_sm90>::card(name);
  card.planned = kGemm.planned;
  return card;
}

}  // namespace

extern const Candidate<ExpertMlp> expert_mlp_mxfp4_stream_sm90 =
    in_turn<expert_gemm_mxfp4_stream_sm90>("cuda.expert_mlp.mxfp4_stream_sm90");
extern const Candidate<ExpertMlp> expert_mlp_mxfp4_tile_sm90 =
    in_turn<expert_gemm_mxfp4_tile_sm90>("cuda.expert_mlp.mxfp4_tile_sm90");
extern const Candidate<ExpertMlp> expert_mlp_bf16_stream_sm90 =
    in_turn<expert_gemm_bf16_stream_sm90>("cuda.expert_mlp.bf16_stream_sm90");
extern const Candidate<ExpertMlp> expert_mlp_bf16_tile_sm90 =
    in_turn<expert_gemm_bf16_tile_sm90>("cuda.expert_mlp.bf16_tile_sm90");
extern const Candidate<ExpertMlp> expert_mlp_fma_sm90 =
    in_turn<expert_gemm_fma_sm90>("cuda.expert_mlp.fma_sm90");

}  // namespace sluice::cuda
