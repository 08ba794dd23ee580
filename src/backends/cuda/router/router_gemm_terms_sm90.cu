// Router GEMM with f32 weights and bf16 activations on tensor cores: each weight becomes the sum of three bf16 terms.
//
// This is the tile kernel (router_gemm_tile_sm90.cu) with another mainloop. Stages hold the weights in f32.
// A consumer warpgroup loads them into registers, splits each into three bf16 terms of 8 bits (24 bits in
// total), and multiplies the three by the same rows of x: three wgmmas with the A operand in registers. It
// splits 16 values of k while the tensor cores multiply the previous 16. The smallest terms are added first.
//
// Wins    from 64 tokens on: 6.9 us against 9.4 us of splitk_sm90 at 64 tokens of 3072 x 256, 7.0 us against 18.9 us at 192
//         (router_candidates.csv).
// Loses   for few tokens to splitk_sm90, whose warps load rows without a ring: 6.9 us against 4.8 us at 8 tokens.
// Limits  see supports() in router_gemm_tile_candidate.h. The tiling depends on the number of tokens, so the kernel is not
//         batch-invariant. If x is infinite and a term of the weight is zero, the logit is NaN.
// Bytes   as router_gemm_tile_sm90.cu, with 4 bytes per value of w.
// Source  original; the contract is ops/router_gemm.h, the design is docs/lab/cuda-router.md.
#include "backends/cuda/router/router_gemm_terms.h"
#include "backends/cuda/router/router_gemm_tile_candidate.h"

namespace sluice::cuda {
namespace {

constexpr RouterTileData kData = {.name = "cuda.router_gemm.terms_sm90",
                                  .weights = DType::kF32,
                                  .why = "tile_sm90 supports bf16 weights",
                                  .hidden_min = 128,
                                  .configs = router_terms_configs};

struct Launcher {
  static Status enqueue(const RouterGemm::Problem&, std::span<const KernelLaunch>, const RouterGemm::Args&,
                        Workspace, Stream);
};

}  // namespace

extern const Candidate<RouterGemm> router_gemm_terms_sm90 = RouterTileCandidate<kData, Launcher>::make();

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/tile/split_terms.cuh"
#include "backends/cuda/tile/wgmma_registers.cuh"

namespace sluice::cuda {
namespace {

using Parameters = RouterTileParameters;
using Place = RouterTilePlace;

template <int kGroups, int kTokens, RouterSource kSource>
struct Kernel : RouterTileFrame<kGroups, kTokens, kSource, float> {
  using Frame = RouterTileFrame<kGroups, kTokens, kSource, float>;
  using typename Frame::Sums;
  // one of the two boxes of a stage: half of its k, for all rows of w
  static constexpr int kBoxBytes = Frame::kExperts * tile::kSwizzledRowBytes;

  static __device__ int arrivals(const Parameters&) { return kGroupThreads; }

  // Rows 0 to 7 of a warp's operand are its experts 0, 2, 4, 6, 1, 3, 5, 7; rows 8 to 15 are the next 8 experts in the same
  // order. Half a warp then reads 32 bytes of 4 rows whose swizzles map to different banks; adjacent rows would collide.
  static __device__ int row_of(int lane) { return lane / 4 % 4 * 2 + lane / 16; }

  // Computes a warpgroup's share of the tile over this CTA's split of k. Every thread reads weights, so every thread releases stages.
  static __device__ void multiply_all(Sums& sums, const Parameters& p, const Place& at, const uint8_t* ring,
                                      uint64_t* full, uint64_t* empty) {
    constexpr int kProducts = kRouterStep / 16, kNext8Rows = 8 * tile::kSwizzledRowBytes;
    const int thread = threadIdx.x % kGroupThreads, lane = thread % kWarp, row = row_of(lane);
    const uint32_t stage = p.stage_bytes;
    // Address of this thread's first two values of 8: four adjacent lanes hold adjacent pairs.
    const uint32_t first = tile::shared_address(ring) + threadIdx.x / kWarp * (16 * tile::kSwizzledRowBytes) +
                           tile::swizzled(row, lane % 4 * sizeof(float2));
    uint64_t x = tile::describe_tile(ring + p.weight_bytes);
    tile::RingPlace place;
    int steps = at.steps, awaited = steps - p.stages, stages = p.stages;
    uint32_t barriers = tile::shared_address(full), releases = tile::shared_address(empty);
    // Keeps these values in registers; otherwise the compiler recomputes them in every step.
    asm volatile("" : "+r"(steps), "+r"(awaited), "+r"(stages), "+r"(barriers), "+r"(releases));
    constexpr uint32_t kBarrier = sizeof(uint64_t);
    // before: the previous stage. weights: bytes from the start of the ring to this stage's weights.
    uint32_t before = 0, weights = 0;
    int here = 0;
    uint32_t a[2][tile::kTermsOfF32][4];
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      if (!here) tile::barrier_wait(barriers + place.stage * kBarrier, place.parity);
#pragma unroll
      for (int k = 0; k < kProducts; ++k) {
        // Values 16 k to 16 k + 15 are two chunks of 8 in one of the two boxes. The exclusive or selects a chunk of a swizzled row.
        const uint32_t box = weights + k / 2 * kBoxBytes;
        const uint32_t low = box + (first ^ (k % 2 * 64)), high = box + (first ^ (k % 2 * 64 + 32));
        const float2 value[4] = {tile::load_shared_floats(low), tile::load_shared_floats(low + kNext8Rows),
                                 tile::load_shared_floats(high), tile::load_shared_floats(high + kNext8Rows)};
        uint32_t term[4][tile::kTermsOfF32];
#pragma unroll
        for (int j = 0; j < 4; ++j) tile::split_terms(term[j], value[j]);
        // All wgmma groups but the latest are complete: registers a[k % 2] are free, and from k == 1 on so is the previous stage.
        tile::wait_groups<1>();
        if (k == 1)
          tile::arrive_by_lane(releases + before * kBarrier, static_cast<uint32_t>(i > 0 && i <= awaited));
#pragma unroll
        for (int t = 0; t < tile::kTermsOfF32; ++t)
#pragma unroll
          for (int j = 0; j < 4; ++j) a[k % 2][t][j] = term[j][t];
        tile::fence_operands();
#pragma unroll
        for (int t = tile::kTermsOfF32 - 1; t >= 0; --t)
          tile::multiply_registers<kTokens>(sums, a[k % 2][t], x + k * tile::kNext16,
                                            k > 0 || t < tile::kTermsOfF32 - 1 ? 1 : i);
        tile::commit_group();
      }
      before = place.stage;
      weights += stage, x += stage / tile::kDescribed;
      if (static_cast<int>(++place.stage) == stages) {
        place.stage = 0, place.parity ^= 1;
        x -= weights / tile::kDescribed, weights = 0;
      }
      here = tile::barrier_test(barriers + place.stage * kBarrier, place.parity);
    }
    tile::wait_groups<0>();
    tile::hold(sums);
  }
};

template <int kGroups, int kTokens, RouterSource kSource>
__global__ void __launch_bounds__(Kernel<kGroups, kTokens, kSource>::kThreads)
    router_gemm_terms(const __grid_constant__ CUtensorMap w,  // [experts, hidden]
                      const __grid_constant__ CUtensorMap x,  // [tokens, hidden]
                      const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  using This = Kernel<kGroups, kTokens, kSource>;
  This::template run<This>(w, x, p, shared);
}

struct Kernels {
  template <int kGroups, int kTokens, RouterSource kSource>
  static constexpr RouterTileInstance instance() {
    return {{kGroups, kTokens},
            router_gemm_terms<kGroups, kTokens, kSource>,
            Kernel<kGroups, kTokens, kSource>::kThreads};
  }
};
constexpr auto kInstances = router_tile_instances<kRouterTermTiles, Kernels>();
constexpr RouterTileInstance kPlain = Kernels::instance<1, 64, RouterSource::kLoads>();

Status Launcher::enqueue(const RouterGemm::Problem& p, std::span<const KernelLaunch> launches,
                         const RouterGemm::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  return launch_router_tile(router_gemm_terms_sm90.name, kInstances, kPlain, p, a,
                            router_tile_plan(launches[0]), stream);
}

}  // namespace

}  // namespace sluice::cuda
#endif
