// A dense layer for up to eight rows: weights pass once, and the rows of x stay in registers.
//
// CTAs, one an SM, have equal shares of the features, counted in sixteens or in eights: configs(). A unit of work is a slab
// of 16 features, or of the last eight of a share, and the whole width. A producer warp keeps a ring of stages full by TMA: 16 features
// x 512 of k, eight boxes of 64, or eight features x 1024. Of each stage a consumer warp multiplies one box (two), the
// weights as the 16-row operand of mma.sync and the rows of x as its 8 columns. So a warp needs every eighth box of x alone,
// which it loads once, straight into the order of its operands, and keeps over all units where the width allows. After a unit the
// warps' sums are added up through shared memory, in their order.
//
// The ring is full of weights before the previous launch has ended. It is so large that no second CTA of a dense layer fits an SM: SMs
// that the previous launch leaves first would get two, and others none. The attention of a step that decodes fits beside it.
//
// Wins    one to some rows.
// Loses   where features are many, to tiles; more rows its registers do not hold.
// Limits  see supports(). The order of a sum depends on the width alone, so a row's bits do not depend on the batch. Rows of x that
//         are not 16-byte aligned go through the kernel of fma_sm90.
// Bytes   w once; x once a CTA, and for widths beyond 4096 once a unit.
// Source  original; the contract is ops/linear.h.
#include "backends/cuda/kernels/linear.h"

namespace sluice::cuda {
namespace {

constexpr int kEight = 8, kSlab = 16, kBlock = 64;  // features that CTAs share out, and of a unit; k of a box
constexpr int64_t kRowsMost = 8;

Refusal supports(const Linear::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_linear_operands(r, p, d);
  r.need(p.tokens <= kRowsMost, "tokens <= 8 (columns of mma.sync)", "tokens", p.tokens);
  return r;
}

std::vector<Config> configs(const Linear::Problem& p, const DeviceInfo& d, const Policy&) {
  // Fitted to linear_candidates.csv of an H200 and an H100, behind a launch of its kind: an H100's memory is the limit, and on an H200
  // what its multiprocessors fetch in this way.
  constexpr double kFixedUs = 0.4, kElementUs = 1.5e-5, kShare = 0.974, kCoreBytesPerUs = 31e3;
  const double us = kFixedUs + kElementUs * static_cast<double>(p.tokens * p.width) +
                    Linear::bytes(p) / std::min(kShare * d.mem_bytes_per_us, kCoreBytesPerUs * d.cores);
  // Shares of eights make the largest one smaller, but boxes of eight features are slower to fetch. On an H100 that pays where it is a
  // quarter smaller (2880 x 4096: 8.87 to 8.27 us), and not where it is a sixth (5120 x 2880: 9.89 to 10.54 us).
  const auto largest = [&](int64_t of) { return of * linear_parts(linear_parts(p.features, of), d.cores); };
  const int32_t each = 4 * largest(kEight) <= 3 * largest(kSlab) ? kEight : kSlab;
  const auto grid = static_cast<int32_t>(std::min<int64_t>(linear_parts(p.features, each), d.cores));
  return {Config{.cost_us = us, .launches = {{.value = {grid, each}}}}};
}

std::string launch_text(const Linear::Problem&, const KernelLaunch& l) {
  return std::to_string(l.value[0]) + " CTAs, features in shares of " + std::to_string(l.value[1]);
}

struct Launcher {
  static Status enqueue(const Linear::Problem&, std::span<const KernelLaunch>, const Linear::Args&, Workspace,
                        Stream);
};

}  // namespace

extern const Candidate<Linear> linear_stream_sm90 = {
    .name = "cuda.linear.stream_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .enqueue_config = enqueue_config_of<Linear, Launcher>(),
    .launch_text = launch_text,
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/l2_policy.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/mma.cuh"
#include "backends/cuda/tile/operand.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/tensor_map.h"
#include "backends/cuda/tile/warp.cuh"

namespace sluice::cuda {
namespace {

using B16 = __nv_bfloat16;

constexpr int kWarps = 8, kConsumers = kWarps * 32, kThreads = kConsumers + 32;
constexpr int kEightBytes = kEight * tile::kSwizzledRowBytes, kBoxBytes = 2 * kEightBytes;  // of a box
constexpr int kStageBytes = kWarps * kBoxBytes, kStages = 7;
constexpr int kSumBytes = kWarps * 32 * 16;  // of a unit: four sums of each lane
constexpr int kSums = kStages * kStageBytes, kFull = kSums + 2 * kSumBytes, kEmpty = kFull + 8 * kStages,
              kSharedBytes = kEmpty + 8 * kStages;
static_assert(2 * (kSharedBytes + 1024) > 228 << 10, "one CTA on an SM");

struct Parameters {
  const B16* x;
  int64_t x_stride;
  int width, k_blocks,
      chunks;        // a chunk is a box for each consumer warp: a stage of a slab, half of one of eight
  int each, shares;  // what is shared out: so many features, so many times
  LinearOutput out;

  // Features [first, end) of this CTA.
  __device__ __forceinline__ int first() const { return share(static_cast<int>(blockIdx.x)); }
  __device__ __forceinline__ int end() const { return share(static_cast<int>(blockIdx.x) + 1); }

 private:
  __device__ __forceinline__ int share(int cta) const {
    return static_cast<int>(static_cast<int64_t>(shares) * cta / static_cast<int>(gridDim.x)) * each;
  }
};

// The weights as boxes of 16 and of 8 features.
struct Maps {
  CUtensorMap slab, eight;
};

__device__ __forceinline__ void produce(const Maps& w, const Parameters& p, uint32_t ring) {
  const uint64_t policy = tile::read_once();
  tile::RingPlace place;
  const int end = p.end();
#pragma unroll 1
  for (int feature = p.first(); feature < end; feature += kSlab) {
    const bool slab = feature + kEight < end;
    const CUtensorMap& map = slab ? w.slab : w.eight;
    const int boxes_most = slab ? kWarps : 2 * kWarps, bytes = slab ? kBoxBytes : kEightBytes;
#pragma unroll 1
    for (int first = 0; first < p.k_blocks; first += boxes_most) {
      const uint32_t full = ring + kFull + 8 * place.stage;
      tile::barrier_wait_by_warp(ring + kEmpty + 8 * place.stage, place.parity ^ 1);
      const int boxes = min(boxes_most, p.k_blocks - first);
      tile::barrier_expect_by_warp(full, static_cast<uint32_t>(boxes * bytes));
      const uint32_t to = ring + place.stage * kStageBytes;
#pragma unroll 1
      for (int i = 0; i < boxes; ++i)
        tile::copy_box_by(policy, to + i * bytes, map, (first + i) * kBlock, feature, full);
      place.step(kStages);
    }
  }
}

// A consumer warp's boxes of x: lane (g, c) has of row g the eight values at 8 c of each half of a box. kBlocks at once.
template <int kBlocks>
struct RowsOfX {
  tile::Eight<B16> half[kBlocks][2];

  __device__ __forceinline__ void load(const Parameters& p, int first_chunk, int warp, int lane) {
    const int row = lane / 4;
    const B16* x = p.x + row * p.x_stride;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int k = ((first_chunk + i) * kWarps + warp) * kBlock + h * 32 + lane % 4 * 8;
        tile::load_inputs(half[i][h], x + k, row < p.out.tokens && k < p.width, true);
      }
  }
};

// Whether the operands of a sum have been loaded: always true, but evaluating it waits for them. An arrival that does not depend on
// it may pass the loads (docs/notes/how-the-expert-gemms-work.md).
__device__ __forceinline__ uint32_t has_loaded(float sum) {
  constexpr uint32_t kNever = 0x7fc12345u;  // a NaN that no sum can be: theirs is 0x7fffffff
  return __float_as_uint(sum) != kNever;
}

// The product of one box of kFeatures. Four lanes cover 32 of k in 16 bytes each, so a half of a box is two steps of mma.sync (mma.cuh).
template <int kFeatures>
__device__ __forceinline__ void multiply_box(float (&d)[2][4], uint32_t box, const uint32_t (&at)[2],
                                             const tile::Eight<B16> (&x)[2]) {
  uint4 low[2], high[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    low[h] = tile::load_shared(box + at[h]);
    if constexpr (kFeatures == kSlab) high[h] = tile::load_shared(box + at[h] + kEightBytes);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint4 b = x[h].word[0];
    const uint32_t a0[4] = {low[h].x, high[h].x, low[h].y, high[h].y}, b0[2] = {b.x, b.y};
    const uint32_t a1[4] = {low[h].z, high[h].z, low[h].w, high[h].w}, b1[2] = {b.z, b.w};
    tile::mma(d[0], a0, b0);
    tile::mma(d[1], a1, b1);
  }
}

// The element of y that a thread finishes, and what is added to its sum: loaded when the unit begins, as raw bits, for which nothing
// waits before the end.
struct Finish {
  int token, row, feature;
  bool mine;
  uint32_t bias, residual;

  // Of features [first, end), 16 at most.
  __device__ __forceinline__ Finish(const LinearOutput& out, int first, int end)
      : token(static_cast<int>(threadIdx.x) / kSlab),
        row(static_cast<int>(threadIdx.x) % kSlab),
        feature(first + row) {
    mine = token < out.tokens && feature < min(end, out.features);
    bias = load_raw(out.bias, feature, out.bias_f32, mine && out.bias);
    residual = load_raw(out.residual, token * out.residual_stride + feature, out.y_f32, mine && out.residual);
  }
  // sums: four of each lane of each warp, as mma() leaves them.
  __device__ __forceinline__ void store(const LinearOutput& out, const float* sums) const {
    if (!mine) return;
    const int lane = row % 8 * 4 + token / 2, of_lane = row / 8 * 2 + token % 2;
    float total = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) total += sums[(i * 32 + lane) * 4 + of_lane];
    total += as_float(bias, out.bias_f32);
    total += as_float(residual, out.y_f32);
    out.store(token, feature, total);
  }
};
static_assert(kRowsMost * kSlab <= kConsumers);

// The stages of a unit of kFeatures from chunk `first` on, as far as x is there.
template <int kFeatures, int kBlocks>
__device__ __forceinline__ void multiply_stages(float (&d)[2][4], const Parameters& p, uint32_t ring,
                                                tile::RingPlace& place, const uint32_t (&at)[2],
                                                const RowsOfX<kBlocks>& x, int first, int warp) {
  constexpr int kChunks = kSlab / kFeatures, kBytes = kBoxBytes / kChunks;  // of a stage; of a box
  static_assert(kBlocks % kChunks == 0);
#pragma unroll
  for (int i = 0; i < kBlocks; i += kChunks) {
    if (first + i >= p.chunks) break;
    tile::barrier_wait_by_warp(ring + kFull + 8 * place.stage, place.parity);
#pragma unroll
    for (int m = 0; m < kChunks; ++m)
      if ((first + i + m) * kWarps + warp < p.k_blocks)
        multiply_box<kFeatures>(d, ring + place.stage * kStageBytes + (m * kWarps + warp) * kBytes, at,
                                x.half[i + m]);
    tile::arrive_by_lane(ring + kEmpty + 8 * place.stage, has_loaded(d[0][0]) & has_loaded(d[1][0]));
    place.step(kStages);
  }
}

// kBlocks: chunks of x that a warp holds. A wider x is loaded part by part, anew for each unit.
template <int kBlocks>
__device__ __forceinline__ void consume(const Parameters& p, uint8_t* shared, int warp) {
  const uint32_t ring = tile::shared_address(shared);
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
  const uint32_t at[2] = {tile::swizzled(g, c * 16), tile::swizzled(g, c * 16 + 64)};
  auto* sums = reinterpret_cast<float*>(shared + kSums);
  tile::RingPlace place;
  RowsOfX<kBlocks> x;
  int turn = 0;
  const int begin = p.first(), end = p.end();
  tile::wait_for_previous();
#pragma unroll 1
  for (int feature = begin; feature < end; feature += kSlab) {
    float d[2][4] = {};
    Finish finish(p.out, feature, end);
    const bool slab = feature + kEight < end;
#pragma unroll 1
    for (int first = 0; first < p.chunks; first += kBlocks) {
      if (feature == begin || p.chunks > kBlocks) x.load(p, first, warp, lane);
      if (slab) {
        multiply_stages<kSlab, kBlocks>(d, p, ring, place, at, x, first, warp);
      } else {
        multiply_stages<kEight, kBlocks>(d, p, ring, place, at, x, first, warp);
      }
    }
    float* const mine = sums + turn * (kSumBytes / 4);
    const float of_lane[4] = {d[0][0] + d[1][0], d[0][1] + d[1][1], d[0][2] + d[1][2], d[0][3] + d[1][3]};
    tile::store(mine + (warp * 32 + lane) * 4, of_lane);
    // All have read the unit before the previous one by now, whose place the next one's sums take.
    tile::sync_threads<kConsumers>(1);
    if (threadIdx.x < kRowsMost * kSlab) finish.store(p.out, mine);
    turn ^= 1;
  }
}

// Registers of half an SM, although no second one fits: attention's CTA has the other half.
template <int kBlocks>
__global__ void __launch_bounds__(kThreads, 2)
    linear_stream(const __grid_constant__ Maps w, const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const int warp = tile::uniform(static_cast<int>(threadIdx.x) / 32);
  const uint32_t ring = tile::shared_address(shared);
  tile::release_next();
  if (warp == kWarps) tile::prefetch_map(w.slab), tile::prefetch_map(w.eight);
  if (warp < kStages) {
    tile::barrier_init_by_warp(reinterpret_cast<uint64_t*>(shared + kFull) + warp, 1);
    tile::barrier_init_by_warp(reinterpret_cast<uint64_t*>(shared + kEmpty) + warp, kConsumers);
    tile::barrier_visible();
  }
  __syncthreads();
  if (warp == kWarps) {
    produce(w, p, ring);
  } else {
    consume<kBlocks>(p, shared, warp);
  }
}

Status Launcher::enqueue(const Linear::Problem& p, std::span<const KernelLaunch> launches,
                         const Linear::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  if (!aligned_rows(a.x, tile::kMapStrideBytes)) return launch_linear_fma(p, a, stream);
  Maps w;
  SLUICE_TRY(tile::map_rows(w.slab, a.w, kSlab));
  SLUICE_TRY(tile::map_rows(w.eight, a.w, kEight));
  constexpr int kFew = 6, kMany = 8;  // chunks of x in registers: widths up to 3072 and 4096
  const auto k_blocks = static_cast<int>(linear_parts(p.width, kBlock));
  const Parameters parameters{.x = a.x.as<const B16>(),
                              .x_stride = a.x.stride[0],
                              .width = static_cast<int>(p.width),
                              .k_blocks = k_blocks,
                              .chunks = (k_blocks + kWarps - 1) / kWarps,
                              .each = launches[0].value[1],
                              .shares = static_cast<int>(linear_parts(p.features, launches[0].value[1])),
                              .out = linear_output(p, a)};
  const Launch how{.grid = {static_cast<unsigned>(launches[0].value[0]), 1, 1},
                   .block = {kThreads, 1, 1},
                   .shared_bytes = kSharedBytes};
  return launch(linear_stream_sm90.name,
                parameters.chunks <= kFew ? linear_stream<kFew> : linear_stream<kMany>, how, stream, w,
                parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
