// The kernel descriptors of expert_mlp_*_fewtokens_sm90 (fused_fewtokens.cuh),
// which differ only in data. The .cu files say when each kernel wins and loses.
#pragma once
#include "backends/cuda/experts/cards.h"
#if defined(__CUDACC__)
#include "backends/cuda/experts/fused/fused_fewtokens.cuh"
#endif

namespace sluice::cuda {

struct FewTokensData {
  std::string_view name;
  DType weights;
  std::string_view why;  // why other weight types are refused; the refusal's text ends with it
  FewTokensCost cost;
};

template <const FewTokensData& kData>
struct FewTokensCandidate {
  static Refusal supports(const ExpertMlp::Problem& p, const DeviceInfo& d) {
    Refusal r;
    need_fewtokens(r, p, d);
    need_format(r, {p.w, p.scales}, {kData.weights}, kData.why);
    return r;
  }
  static double cost_us(const ExpertMlp::Problem& p, const DeviceInfo& d) {
    return fewtokens_us(p, d, kData.cost);
  }
#if defined(__CUDACC__)
  static Status enqueue(const ExpertMlp::Problem& p, const ExpertMlp::Args& a, Workspace w, Stream stream) {
    using Weights = std::conditional_t<kData.weights == DType::kE2M1, Mxfp4Weights, Bf16Weights>;
    return enqueue_fewtokens<Weights>(kData.name, ExpertMlp::with_f32_g(p), a, w, stream);
  }
#endif
  static constexpr Candidate<ExpertMlp> make() {
    return {.name = kData.name,
            .backend = Backend::kCuda,
            .supports = supports,
            .cost_us = cost_us,
            .workspace_bytes = fewtokens_workspace_bytes,
            .enqueue = enqueue_of<ExpertMlp, FewTokensCandidate>(),
            .batch_invariant = true,
            .alignment_bytes = 16,
            .planned = !kHasKernels};
  }
};

}  // namespace sluice::cuda
