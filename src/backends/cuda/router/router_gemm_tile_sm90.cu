// Router GEMM for many tokens: tiles of experts x tokens by wgmma; k is split over a cluster.
//
// A CTA has a ring of stages of 64 values of k: its experts' weights and its tokens' activations. One producer warp fills
// the ring by TMA. The consumers' wgmmas have experts as M (64 rows) and tokens as N. So a tile can have any multiple of
// 16 tokens, and a plan can be chosen whose tiles just fill the SMs. A cluster spans splits of k, tiles of experts and
// tiles of tokens. CTAs with the same tokens or experts share them by multicast: each loads some rows for all, and a
// stage is refilled after all have released it. The tokens of a tile are divided among its splits; every split sends each
// other split its partial sums of that split's tokens, and adds up its own tokens in the order of the splits.
//
// A launch is short and executes most of its code once, from a cold instruction cache. So loops
// here are not unrolled unless their bodies are a few instructions; unrolled loops cost up to 3 us.
//
// Wins    from 256 tokens of 128 experts on, from 96 of 256 or 384 (from 128 of 4096 x 256; wide_sm90 wins 128 of 7168 x 384), from 64 of
//         512 (router_candidates.csv, plain launches): 5.6 us against 10.4 us of wide_sm90 at 1024 tokens of 2880 x 128.
// Loses   for few tokens to kernels with smaller tiles: 4.1 us against 2.4 us of splitk_sm90 at 8 tokens of 2880 x 128.
// Limits  see supports() in router_gemm_tile_candidate.h. The tiling depends on the number of tokens, so the kernel is not batch-invariant.
// Bytes   reads x once for each tile of experts and w once for each tile of tokens, from L2 except the first time.
// Source  original; the contract is ops/router_gemm.h, the measurements are docs/lab/cuda-router.md.
#include "backends/cuda/measured_cost.h"
#include "backends/cuda/router/router_gemm_tile_candidate.h"

namespace sluice::cuda {
namespace {

std::vector<Config> configs(const RouterGemm::Problem& p, const DeviceInfo& d) {
  return router_tile_configs(p, measured_us("cuda.router_gemm.tile_sm90", p, d));
}

constexpr RouterTileData kData = {.name = "cuda.router_gemm.tile_sm90",
                                  .weights = DType::kBF16,
                                  .why = "wgmma operand",
                                  .hidden_min = 0,
                                  .configs = configs};

struct Launcher {
  static Status enqueue(const RouterGemm::Problem&, std::span<const KernelLaunch>, const RouterGemm::Args&,
                        Workspace, Stream);
};

}  // namespace

extern const Candidate<RouterGemm> router_gemm_tile_sm90 = RouterTileCandidate<kData, Launcher>::make();

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/tile/wgmma.cuh"

namespace sluice::cuda {
namespace {

using Parameters = RouterTileParameters;
using Place = RouterTilePlace;

template <int kGroups, int kTokens, RouterSource kSource>
struct Kernel : RouterTileFrame<kGroups, kTokens, kSource, __nv_bfloat16> {
  using Frame = RouterTileFrame<kGroups, kTokens, kSource, __nv_bfloat16>;
  using typename Frame::Sums;

  // The empty barrier at which this thread arrives when its warpgroup has read a stage, or 0. The first threads
  // of a warpgroup arrive: one thread for each CTA that multicasts to this CTA, at the barrier in that CTA.
  static __device__ uint32_t release_barrier_of_this_thread(const Parameters& p, const Place& at,
                                                            const uint64_t* empty) {
    const int i = threadIdx.x % kGroupThreads;
    if (i >= p.readers()) return 0;
    const uint32_t here = tile::shared_address(empty);
    if (!p.shared()) return here;
    int across = at.across, along = i;
    if (i >= p.behind) {
      across = i - p.behind, along = at.along;
      if (across >= at.across) ++across;  // skips this CTA, at whose barrier a thread i < behind arrives
    }
    return tile::remote_address(here, p.rank(at.split, across, along));
  }

  // Computes a consumer warpgroup's share of the tile over this CTA's split of k. If the problem has fewer
  // experts than the operand has rows, the sums of the other rows are arbitrary, and nothing reads them.
  static __device__ void multiply_all(Sums& sums, const Parameters& p, const Place& at, const uint8_t* ring,
                                      uint64_t* full, uint64_t* empty) {
    const int group = uniform(threadIdx.x / kGroupThreads);
    const uint32_t release_barriers = release_barrier_of_this_thread(p, at, empty);
    const uint32_t stage = p.stage_bytes / tile::kDescribed, all = p.stages * stage;
    uint64_t a = tile::describe_tile(ring + group * kGroupBytes),
             b = tile::describe_tile(ring + p.weight_bytes);
    tile::RingPlace place;
    int steps = at.steps, awaited = steps - p.stages, stages = p.stages, shared = p.shared();
    uint32_t barriers = tile::shared_address(full);
    // Keeps these values in registers; otherwise the compiler recomputes them in every step.
    asm volatile("" : "+r"(steps), "+r"(awaited), "+r"(stages), "+r"(shared), "+r"(barriers));
    constexpr uint32_t kBarrier = sizeof(uint64_t);
    uint32_t before = 0;
    int here = 0;
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      if (!here) tile::barrier_wait(barriers + place.stage * kBarrier, place.parity);
      tile::fence_operands();
#pragma unroll
      for (int k = 0; k < kRouterStep / 16; ++k)
        tile::multiply<kTokens>(sums, a + k * tile::kNext16, b + k * tile::kNext16, k > 0 ? 1 : i);
      tile::commit_group();
      // Everything that the next step needs is computed while this step's wgmmas run. With one warpgroup and a
      // small tile this matters most: nothing hides the instructions between wait_groups and the next multiply.
      const uint32_t release = release_barriers + before * kBarrier;
      // Releases the stage of the previous step, but only if a producer waits for it: a CTA that has loaded everything may have exited.
      const bool releases = release_barriers != 0 && i > 0 && i <= awaited;
      before = place.stage;
      a += stage, b += stage;
      if (static_cast<int>(++place.stage) == stages) {
        place.stage = 0, place.parity ^= 1;
        a -= all, b -= all;
      }
      here = tile::barrier_test(barriers + place.stage * kBarrier, place.parity);
      tile::wait_groups<1>();
      if (releases && shared) tile::barrier_arrive_remote(release);
      if (releases && !shared) tile::barrier_arrive(release);
    }
    tile::wait_groups<0>();
    tile::hold(sums);
  }

  static __device__ int arrivals(const Parameters& p) { return p.readers(); }
  static __device__ int row_of(int lane) { return lane / 4; }
};

template <int kGroups, int kTokens, RouterSource kSource>
__global__ void __launch_bounds__(Kernel<kGroups, kTokens, kSource>::kThreads)
    router_gemm_tile(const __grid_constant__ CUtensorMap w,  // [experts, hidden]
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
            router_gemm_tile<kGroups, kTokens, kSource>,
            Kernel<kGroups, kTokens, kSource>::kThreads};
  }
};
constexpr auto kInstances = router_tile_instances<kRouterTiles, Kernels>();
constexpr RouterTileInstance kPlain = Kernels::instance<1, 64, RouterSource::kLoads>();

Status Launcher::enqueue(const RouterGemm::Problem& p, std::span<const KernelLaunch> launches,
                         const RouterGemm::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  return launch_tile(p, a, router_tile_plan(launches[0]), stream);
}

}  // namespace

Status launch_tile(const RouterGemm::Problem& p, const RouterGemm::Args& a, const RouterTilePlan& plan,
                   Stream stream) {
  return launch_router_tile(router_gemm_tile_sm90.name, kInstances, kPlain, p, a, plan, stream);
}

}  // namespace sluice::cuda
#endif
