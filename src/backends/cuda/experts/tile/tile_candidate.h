// The kernel descriptors of expert_gemm_*_tile_sm90 and expert_gemm_*_fp8_tile_sm90, which differ only in data. The .cu files say when each kernel wins and loses.
#pragma once
#include "backends/cuda/experts/cost/cost.h"
#include "backends/cuda/experts/tile/tile_call.h"

namespace sluice::cuda {

struct TileKernelData {
  std::string_view name;
  WeightFormat weights;
  std::string_view why;  // why other weight types are refused; the refusal's text ends with it
  bool fp8 = false;      // rounds rows of x to FP8 first
};

template <const TileKernelData& kData>
struct TileCandidate {
  static Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
    Refusal r;
    need_expert_blocks(r, p, d);
    need_format(r, ExpertGemm::format(p), kData.weights, kData.why);
    if (kData.fp8) r.need(p.fp8_x, "fp8_x=1 (rows of x are rounded to FP8)", "fp8_x=0");
    return r;
  }
  static std::vector<Config> configs(const ExpertGemm::Problem& p, const DeviceInfo& d) {
    return tile_configs(kData.fp8 ? with_fp8_x(p) : p, d);
  }
  static std::string launch_text(const ExpertGemm::Problem& p, const KernelLaunch& launch) {
    return tile_launch_text(kData.fp8 ? with_fp8_x(p) : p, launch);
  }
  static Status enqueue(const ExpertGemm::Problem& p, std::span<const KernelLaunch> launches,
                        const ExpertGemm::Args& a, Workspace w, Stream stream) {
    return enqueue_tiles(kData.name, p, launches, a, w, stream);
  }
  static constexpr Candidate<ExpertGemm> make() {
    return {.name = kData.name,
            .backend = Backend::kCuda,
            .supports = supports,
            .configs = configs,
            .enqueue_config = enqueue_config_of<ExpertGemm, TileCandidate>(),
            .launch_text = launch_text,
            .batch_invariant = true,
            .alignment_bytes = 16,
            .planned = !kHasKernels};
  }
};

}  // namespace sluice::cuda
