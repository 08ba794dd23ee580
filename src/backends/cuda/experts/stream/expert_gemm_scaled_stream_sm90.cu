// Expert GEMM for few rows per expert, FP8, MXFP8 and NVFP4 weights. A unit
// of work is one row block of one expert's weights, over all of k, as in
// expert_gemm_mxfp4_stream_sm90. There is one kernel descriptor per format.
//
// Wins    up to about 16 rows per expert: weights arrive at the rate of a plain streaming read.
// Loses   for more rows to expert_gemm_scaled_tile_sm90: an SM loads x again for every 64 rows of weights.
// Limits  see supports() below. Sums are split at the same k for any batch, so the kernel is batch-invariant.
// Source  original; the contract is ops/expert_gemm.h, the measurements are docs/lab/cuda-formats.md.
#include "backends/cuda/experts/cards.h"
#include "backends/cuda/experts/cost/config.h"
#include "backends/cuda/experts/cost/cost.h"

namespace sluice::cuda {
namespace {

struct ScaledStreamData {
  std::string_view name;
  WeightFormat format;
};
constexpr ScaledStreamData kMxfp8 = {"cuda.expert_gemm.mxfp8_stream_sm90", {DType::kE4M3}};
constexpr ScaledStreamData kFp8Blocks = {"cuda.expert_gemm.fp8_blocks_stream_sm90",
                                         {DType::kE4M3, WeightScales::kBlocks}};
constexpr ScaledStreamData kFp8Rows = {"cuda.expert_gemm.fp8_rows_stream_sm90",
                                       {DType::kE4M3, WeightScales::kRows}};
constexpr ScaledStreamData kNvfp4 = {"cuda.expert_gemm.nvfp4_stream_sm90", {DType::kE2M1, WeightScales::kNv}};

template <const ScaledStreamData& kData>
struct ScaledStream {
  static Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
    Refusal r;
    need_expert_blocks(r, p, d);
    need_format(r, ExpertGemm::format(p), kData.format, "decoded in registers");
    r.need(p.experts <= kListExpertsMax,
           "experts <= " + std::to_string(kListExpertsMax) + " (32 for each lane that counts)", "experts",
           p.experts);
    return r;
  }
  // One configuration per number of columns (rows of x per unit).
  static std::vector<Config> configs(const ExpertGemm::Problem& p, const DeviceInfo& d) {
    std::vector<Config> out;
    for (const int columns : {8, 16}) {
      const StreamLaunch launch{.columns = columns};
      out.push_back({.name = launch.name(p.w),
                     .cost_us = stream_cost_us(stream_constants(kData.format), p, d, launch),
                     .launches = {launch.launch()}});
    }
    return out;
  }
  static Status enqueue(const ExpertGemm::Problem&, std::span<const KernelLaunch>, const ExpertGemm::Args&,
                        Workspace, Stream);
  static constexpr Candidate<ExpertGemm> make() {
    return {.name = kData.name,
            .backend = Backend::kCuda,
            .supports = supports,
            .configs = configs,
            .enqueue_config = enqueue_config_of<ExpertGemm, ScaledStream>(),
            .launch_text = stream_launch_text,
            .batch_invariant = true,
            .alignment_bytes = 16,
            .planned = !kHasKernels};
  }
};

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp8_stream_sm90 = ScaledStream<kMxfp8>::make();
extern const Candidate<ExpertGemm> expert_gemm_fp8_blocks_stream_sm90 = ScaledStream<kFp8Blocks>::make();
extern const Candidate<ExpertGemm> expert_gemm_fp8_rows_stream_sm90 = ScaledStream<kFp8Rows>::make();
extern const Candidate<ExpertGemm> expert_gemm_nvfp4_stream_sm90 = ScaledStream<kNvfp4>::make();

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/experts/stream/stream_long.cuh"

namespace sluice::cuda {
namespace {

template <WeightFormat kFormat>
struct WeightsOf;
template <>
struct WeightsOf<Mxfp8Codes::kFormat> : DecodedWeights<Mxfp8Codes> {};
template <>
struct WeightsOf<Fp8BlockCodes::kFormat> : DecodedWeights<Fp8BlockCodes> {};
template <>
struct WeightsOf<Fp8RowCodes::kFormat> : DecodedWeights<Fp8RowCodes> {};
template <>
struct WeightsOf<Nvfp4Codes::kFormat> : DecodedWeights<Nvfp4Codes> {};

template <const ScaledStreamData& kData>
Status ScaledStream<kData>::enqueue(const ExpertGemm::Problem& p, std::span<const KernelLaunch> launches,
                                    const ExpertGemm::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  using Weights = WeightsOf<kData.format>;
  const ExpertParameters parameters = expert_parameters(p, a);
  const bool gated = is_gated(p.act);
  return StreamLaunch::of(launches[0]).columns == 8
             ? launch_long<8, Weights>(kData.name, gated, parameters, stream)
             : launch_long<16, Weights>(kData.name, gated, parameters, stream);
}

}  // namespace
}  // namespace sluice::cuda
#endif
