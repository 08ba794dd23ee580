// Expert GEMM for few rows an expert and some popular ones, mxfp4 weights: the stream kernel for experts of few rows, then
// tiles for the others, which are dequantised once for 32 rows and not for each 8 or 16.
//
// Wins    over the stream alone at 3 to 5 rows an expert, where the routing may be skewed: Zipf 1.0 takes a tenth less. Tiles for
//         all take as much less again.
// Loses   uniform routing: the second launch finds nothing and costs some 2 us. Few rows: nobody is popular.
//         See mxfp4_stream_sm90. More rows: mxfp4_tile_sm90.
// Limits  those of both. Not batch invariant: a row is summed in another order where its expert has more rows.
// Source  original; the contract is ops/expert_gemm.h, the measurements are docs/notes/cuda-mxfp4.md.
#include <climits>
#include <string>

#include "backends/cuda/card.h"
#include "backends/cuda/expert_gemm_mxfp4.h"

namespace sluice::cuda {

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_stream_sm90, expert_gemm_mxfp4_tile_sm90;

namespace {

// Rows of an expert that the stream still serves: with units of 8, half of another one costs as much as a tile.
int stream_rows_most(const ExpertGemm::Problem& p) { return mxfp4_stream_columns(p) == 8 ? 12 : 16; }

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  return expert_gemm_mxfp4_stream_sm90.supports(p, d);  // tiles take whatever the stream does
}

// The stream without what popular experts cost it, and what that should come to for a second launch to be worth it: more than
// the 2.4 us that one costs, since under uniform routing it brings nothing.
double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kWorthUs = 6;
  return mxfp4_stream_uniform_us(p, d) + kWorthUs;
}

std::string in_words(const ExpertGemm::Problem& p, const DeviceInfo&) {
  const int most = stream_rows_most(p);
  return "units of 64 x " + std::to_string(mxfp4_stream_columns(p)) + " for experts of 1 to " +
         std::to_string(most) + " rows, then tiles of 384 x 16 to 32 for experts of " +
         std::to_string(most + 1) + " rows or more";
}

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  const int most = stream_rows_most(p);
  SLUICE_TRY(enqueue_mxfp4_stream(p, a, stream, {.rows_most = most}));
  if (p.rows <= most) return {};
  return enqueue_mxfp4_tiles_behind(p, a, stream, {.rows_least = most + 1, .turn = 1});
}

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_stream_tile_sm90 = {
    .name = "cuda.expert_gemm.mxfp4_stream_tile_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<ExpertGemm>,
    .enqueue = enqueue,
    .batch_invariant = false,
    .alignment_bytes = 16,
    .launches = in_words,
};

}  // namespace sluice::cuda
