// A dense layer for up to eight rows: weights pass once, and the rows of x stay in registers, a single one in shared memory.
//
// CTAs, one an SM, have equal shares of the features, counted in sixteens or in eights. A unit of work is a slab of 16 features, or of
// the last eight of a share, and the whole width. A producer warp keeps a ring of stages full by TMA: 16 features
// x 512 of k, eight boxes of 64, or eight features x 1024. Of each stage a consumer warp multiplies one box (two), the
// weights as the 16-row operand of mma.sync and the rows of x as its 8 columns. So a warp needs every eighth box of x alone,
// which it loads once, straight into the order of its operands, and keeps over all units where the width allows. After a unit the
// warps' sums are added up through shared memory, in their order; thread t finishes row t % 16 of the unit for token t / 16.
//
// The ring is full of weights before the previous launch has ended. It is so large that no second CTA of a dense layer fits an SM: SMs
// that the previous launch leaves first would get two, and others none. The attention of a step that decodes has its shared memory
// beside it, and its registers where this kernel has no more than 80.
//
// A single row stands in shared memory, in the place of the last stage. So threads have few registers, and one short loop goes over the
// stages of a unit. More rows would have to be in shared memory as a whole before the first product, and would be read there again and
// again.
//
// With a norm of x before it, products take x times the norm's weight, and the inverse root of a row is a factor of its sums. Each warp
// scales the boxes that it multiplies, and adds up their squares; the warps' squares are added in their order, as the sums are.
//
// End says where a unit's weights are and what becomes of its sums:
//
//   Maps                                  tensor maps of the weights; prefetch(maps)
//   kEights                               whether shares may end with eight features
//   kNorms                                whether x is normed; Out then has a Norm, `norm`
//   fetch(slab, policy, to, maps, k, feature, full)   a box of the unit of 16 (slab) or 8 features that begins at `feature`
//   Out                                   a part of the launch's parameters
//   Token(out)                            what a thread keeps of its token
//   Unit(out, token, first, end)          of features [first, end), 16 at most: begins loads for which nothing waits before
//   store(out, token, first, sum)         which all threads of the first four warps call, with the sum of their element
#pragma once
#include <type_traits>

#include "backends/cuda/kernels/linear_stream.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/divisor.cuh"
#include "backends/cuda/tile/l2_policy.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/mma.cuh"
#include "backends/cuda/tile/operand.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/warp.cuh"

namespace sluice::cuda::stream {

using B16 = __nv_bfloat16;

constexpr int kEight = kStreamEight, kSlab = kStreamSlab, kBlock = 64;  // k of a box
constexpr int kWarps = 8, kConsumers = kWarps * 32, kThreads = kConsumers + 32;
constexpr int kEightBytes = kEight * tile::kSwizzledRowBytes, kBoxBytes = 2 * kEightBytes;  // of a box
constexpr int kStageBytes = kWarps * kBoxBytes, kStages = 7;
// Stages on their way while the ring fills for the first time: with more, what others wait for stands behind them.
constexpr int kInFlight = 3;
constexpr int kSumBytes = kWarps * 32 * 16;  // of a unit: four sums of each lane
constexpr int kSums = kStages * kStageBytes, kFull = kSums + 2 * kSumBytes, kEmpty = kFull + 8 * kStages,
              kSharedBytes = kEmpty + 8 * kStages;
static_assert(2 * (kSharedBytes + 1024) > 228 << 10, "one CTA on an SM");
static_assert(kStreamRowsMost * kSlab <= kConsumers);

// A norm of x, of at most kStreamNormWidthMost columns.
struct Norm {
  const B16* weight;
  float eps;
};
constexpr int kRowsMost = static_cast<int>(kStreamRowsMost), kSquares = kSharedBytes,
              kSquareBytes = kWarps * kRowsMost * 4;
template <class End>
constexpr int kSharedBytesOf = kSharedBytes + (End::kNorms ? kSquareBytes : 0);

struct Rows {
  const B16* x;
  int64_t x_stride;
  int tokens, width, k_blocks,
      chunks;        // a chunk is a box for each consumer warp: a stage of a slab, half of one of eight
  int each, shares;  // what is shared out: so many features, so many times
  tile::Divisor ctas;
  uint32_t zero;  // 0, which the compiler does not know

  // Features [first, end) of this CTA.
  __device__ __forceinline__ int first() const { return share(static_cast<int>(blockIdx.x)); }
  __device__ __forceinline__ int end() const { return share(static_cast<int>(blockIdx.x) + 1); }

 private:
  __device__ __forceinline__ int share(int cta) const { return shares * cta / ctas * each; }
};

constexpr int kRowStages = kStages - 1, kRowAt = kRowStages * kStageBytes,
              kRowWidthMost = kStageBytes / 2;  // of a single row

template <class End>
__device__ __forceinline__ void produce(const typename End::Maps& w, const Rows& p, uint32_t ring,
                                        int stages) {
  const uint64_t policy = tile::read_once();
  tile::RingPlace place;
  const int end = p.end();
#pragma unroll 1
  for (int feature = p.first(); feature < end; feature += kSlab) {
    const bool slab = !End::kEights || feature + kEight < end;
    const int boxes_most = slab ? kWarps : 2 * kWarps, bytes = slab ? kBoxBytes : kEightBytes;
#pragma unroll 1
    for (int first = 0; first < p.k_blocks; first += boxes_most) {
      const uint32_t full = ring + kFull + 8 * place.stage;
      if (place.parity == 0 && place.stage >= kInFlight) tile::barrier_wait_by_warp(full - 8 * kInFlight, 0);
      tile::barrier_wait_by_warp(ring + kEmpty + 8 * place.stage, place.parity ^ 1);
      const int boxes = min(boxes_most, p.k_blocks - first);
      tile::barrier_expect_by_warp(full, static_cast<uint32_t>(boxes * bytes));
      const uint32_t to = ring + place.stage * kStageBytes;
#pragma unroll 1
      for (int i = 0; i < boxes; ++i)
        End::fetch(slab, policy, to + i * bytes, w, (first + i) * kBlock, feature, full);
      place.step(stages);
    }
  }
}

// A consumer warp's boxes of x: lane (g, c) has of row g the eight values at 8 c of each half of a box. kBlocks at once.
template <int kBlocks>
struct RowsOfX {
  tile::Eight<B16> half[kBlocks][2];

  __device__ __forceinline__ void load(const Rows& p, int first_chunk, int warp, int lane) {
    const int row = lane / 4;
    const B16* x = p.x + row * p.x_stride;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int k = ((first_chunk + i) * kWarps + warp) * kBlock + h * 32 + lane % 4 * 8;
        tile::load_inputs(half[i][h], x + k, row < p.tokens && k < p.width, true);
      }
  }
};

// The norm's weights of a warp's boxes, where the warp's sums of two units will be: no warp writes there but this one. They are asked for
// before the wait for the previous launch. Scales x by them, and adds up squares of x: in the same order for a single row and for more.
class WarpNorm {
 public:
  static constexpr int kAtOnce = 4;  // boxes of 16-byte pieces, one a lane
  static_assert(kWarps * 2 * kAtOnce * kBlock == kStreamNormWidthMost &&
                kSumBytes == kWarps * kAtOnce * kBlock * 2);

  template <class Out>
  __device__ __forceinline__ WarpNorm(const Out& out, const Rows& p, uint32_t ring, int warp, int lane)
      : at_(ring + kSums + warp * (kAtOnce * kBlock * 2)), lane_(lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int k = first_of(i, warp);
      tile::copy_16(at_ + i * kSumBytes + lane * 16, out.norm.weight + k, k < p.width);
    }
    tile::end_copies();
  }
  // A single row to `to`, as copy_row() leaves it, but scaled. The sum of the squares of what this lane loads: to add up the lanes' here
  // would keep the first products waiting.
  __device__ __forceinline__ float scale_row(const Rows& p, uint32_t to, int warp) const {
    tile::Eight<B16> x[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      tile::load_inputs(x[i], p.x + first_of(i, warp), first_of(i, warp) < p.width, true);
    wait();
    float sum = scale(x[0], lane_ * 16) + scale(x[1], kSumBytes + lane_ * 16);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (first_of(i, warp) < p.k_blocks * kBlock)
        tile::store_shared(to + first_of(i, warp) * 2, x[i].word[0]);
    __syncwarp();
    return sum;
  }
  // Of the warp's boxes, from what scale_row() gave its lanes.
  static __device__ __forceinline__ float sum_of_lanes(float sum) {
    sum += __shfl_xor_sync(0xffffffffu, sum, 4);
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    return sum_of_four(sum);
  }
  // The row of this lane's group, whose boxes are in registers. The sum of the squares of the warp's boxes.
  template <int kBlocks>
  __device__ __forceinline__ float scale_rows(RowsOfX<kBlocks>& x) const {
    static_assert(kBlocks > kAtOnce && kBlocks <= 2 * kAtOnce);
    wait();
    float of[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float half[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t from = i * kBlock * 2 + h * 64 + lane_ % 4 * 16;
        half[h] = scale(x.half[i][h], from);
        if (i + kAtOnce < kBlocks) half[h] += scale(x.half[(i + kAtOnce) % kBlocks][h], kSumBytes + from);
      }
      of[i] = half[0] + half[1];
    }
    __syncwarp();
    return sum_of_four((of[0] + of[1]) + (of[2] + of[3]));
  }

 private:
  // Of piece `lane` of the boxes that are loaded at once.
  __device__ __forceinline__ int first_of(int i, int warp) const {
    constexpr int kPieces = kBlock / 8;
    return ((i * kAtOnce + lane_ / kPieces) * kWarps + warp) * kBlock + lane_ % kPieces * 8;
  }
  static __device__ __forceinline__ void wait() {
    tile::wait_copies<0>();
    __syncwarp();
  }
  __device__ __forceinline__ float scale(tile::Eight<B16>& x, uint32_t weights) const {
    return tile::scale_by(x, {tile::load_shared(at_ + weights)});
  }
  static __device__ __forceinline__ float sum_of_four(float sum) {
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }

  uint32_t at_;
  int lane_;
};

struct NoNorm {
  template <class Out>
  __device__ __forceinline__ NoNorm(const Out&, const Rows&, uint32_t, int, int) {}
};
template <class End>
using NormOf = std::conditional_t<End::kNorms, WarpNorm, NoNorm>;

// Whether the operands of a sum have been loaded: always true, but evaluating it waits for them. An arrival that does not depend on
// it may pass the loads (docs/notes/how-the-expert-gemms-work.md).
__device__ __forceinline__ uint32_t has_loaded(float sum) {
  constexpr uint32_t kNever = 0x7fc12345u;  // a NaN that no sum can be: theirs is 0x7fffffff
  return __float_as_uint(sum) != kNever;
}

// The same without waiting for the products: it depends on the bits that were loaded, by a mask that is zero, which the compiler does not
// know. For a single row, whose next stage can then be loaded while this one is multiplied; more rows lack the registers (they spill, and
// take 2% longer).
struct Release {
  uint32_t zero, loaded = 0;

  __device__ __forceinline__ void after(const uint4& v) { loaded |= v.x; }  // one load brings all four
  __device__ __forceinline__ void operator()(uint32_t ring, const tile::RingPlace& place) const {
    tile::arrive_by_lane(ring + kEmpty + 8 * place.stage, (loaded & zero) == 0);
  }
};

// A lane's weights of a box of kFeatures. Four lanes cover 32 of k in 16 bytes each, so a half of a box is two steps of mma.sync (mma.cuh).
template <int kFeatures>
struct Box {
  uint4 low[2], high[2] = {};

  __device__ __forceinline__ Box(uint32_t box, const uint32_t (&at)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      low[h] = tile::load_shared(box + at[h]);
      if constexpr (kFeatures == kSlab) high[h] = tile::load_shared(box + at[h] + kEightBytes);
    }
  }
  __device__ __forceinline__ void before(Release& release) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      release.after(low[h]);
      if constexpr (kFeatures == kSlab) release.after(high[h]);
    }
  }
  // The product with both halves of x.
  __device__ __forceinline__ void multiply(float (&d)[2][4], const uint4& first, const uint4& second) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4& b = h == 0 ? first : second;
      const uint32_t a0[4] = {low[h].x, high[h].x, low[h].y, high[h].y}, b0[2] = {b.x, b.y};
      const uint32_t a1[4] = {low[h].z, high[h].z, low[h].w, high[h].w}, b1[2] = {b.z, b.w};
      tile::mma(d[0], a0, b0);
      tile::mma(d[1], a1, b1);
    }
  }
};

// The stages of a unit of kFeatures from chunk `first` on, as far as x is there.
template <int kFeatures, int kBlocks>
__device__ __forceinline__ void multiply_stages(float (&d)[2][4], const Rows& p, uint32_t ring,
                                                tile::RingPlace& place, const uint32_t (&at)[2],
                                                const RowsOfX<kBlocks>& x, int first, int warp) {
  constexpr int kChunks = kSlab / kFeatures, kBytes = kBoxBytes / kChunks;  // of a stage; of a box
  static_assert(kBlocks % kChunks == 0);
#pragma unroll
  for (int i = 0; i < kBlocks; i += kChunks) {
    if (first + i >= p.chunks) break;
    tile::barrier_wait_by_warp(ring + kFull + 8 * place.stage, place.parity);
#pragma unroll
    for (int m = 0; m < kChunks; ++m) {
      if ((first + i + m) * kWarps + warp < p.k_blocks) {
        const Box<kFeatures> box(ring + place.stage * kStageBytes + (m * kWarps + warp) * kBytes, at);
        box.multiply(d, x.half[i + m][0].word[0], x.half[i + m][1].word[0]);
      }
    }
    tile::arrive_by_lane(ring + kEmpty + 8 * place.stage, has_loaded(d[0][0]) & has_loaded(d[1][0]));
    place.step(kStages);
  }
}

// What a thread finishes of a unit.
__device__ __forceinline__ int token_of_thread() { return static_cast<int>(threadIdx.x) / kSlab; }
__device__ __forceinline__ int row_of_thread() { return static_cast<int>(threadIdx.x) % kSlab; }

// The sum of this thread's element, of four sums of each lane of each warp, as mma() leaves them.
__device__ __forceinline__ float sum_of_warps(const float* sums) {
  const int token = token_of_thread(), row = row_of_thread();
  const int lane = row % 8 * 4 + token / 2, of_lane = row / 8 * 2 + token % 2;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += sums[(i * 32 + lane) * 4 + of_lane];
  return total;
}

// The inverse root of the mean square of this thread's token, from squares[warps][rows].
__device__ __forceinline__ float inverse_root(const float* squares, int width, float eps) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += squares[i * kRowsMost + token_of_thread()];
  return 1.f / sqrtf(sum / static_cast<float>(width) + eps);
}

// The row x into shared memory, zeros behind its width: by each warp what it multiplies.
__device__ __forceinline__ void copy_row(const Rows& p, uint32_t to, int warp, int lane) {
  constexpr int kPieces = kBlock / 8, kAtOnce = 32 / kPieces;  // of 16 bytes, of a box; boxes
  const int piece = lane % kPieces;
#pragma unroll 2
  for (int box = warp + lane / kPieces * kWarps; box < p.k_blocks; box += kAtOnce * kWarps) {
    const int k = box * kBlock + piece * 8;
    tile::copy_16(to + k * 2, p.x + k, k < p.width);
  }
  tile::end_copies();
  tile::wait_copies<0>();
  __syncwarp();
}

// The stages of a unit of a single row.
__device__ __forceinline__ void multiply_row(float (&d)[2][4], const Rows& p, uint32_t ring,
                                             tile::RingPlace& place, const uint32_t (&at)[2], bool slab,
                                             int warp, int c) {
  constexpr int kRowBoxBytes = kBlock * 2;
  const uint32_t row = ring + kRowAt + c * 16;
#pragma unroll 1
  for (int first = 0; first < p.k_blocks; first += slab ? kWarps : 2 * kWarps) {
    tile::barrier_wait_by_warp(ring + kFull + 8 * place.stage, place.parity);
    const uint32_t stage = ring + place.stage * kStageBytes;
    Release release{p.zero};
    if (!slab) {
#pragma unroll 1
      for (int box = warp; box < 2 * kWarps && first + box < p.k_blocks; box += kWarps) {
        const uint32_t x = row + (first + box) * kRowBoxBytes;
        const Box<kEight> w(stage + box * kEightBytes, at);
        w.before(release);
        w.multiply(d, tile::load_shared(x), tile::load_shared(x + 64));
      }
      release(ring, place);
    } else if (first + warp < p.k_blocks) {
      const uint32_t x = row + (first + warp) * kRowBoxBytes;
      const uint4 first_half = tile::load_shared(x), second_half = tile::load_shared(x + 64);
      const Box<kSlab> w(stage + warp * kBoxBytes, at);
      w.before(release);
      release(ring, place);
      w.multiply(d, first_half, second_half);
    } else {
      release(ring, place);
    }
    place.step(kRowStages);
  }
}

// kBlocks: chunks of x that a warp holds; 0: a single row, in shared memory. A wider x is loaded part by part, anew for each unit.
template <class End, int kBlocks>
__device__ __forceinline__ void consume(const Rows& p, const typename End::Out& out, uint8_t* shared,
                                        int warp) {
  constexpr bool kSingle = kBlocks == 0, kNorms = End::kNorms;
  const uint32_t ring = tile::shared_address(shared);
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
  const uint32_t at[2] = {tile::swizzled(g, c * 16), tile::swizzled(g, c * 16 + 64)};
  tile::RingPlace place;
  [[maybe_unused]] std::conditional_t<kSingle, int, RowsOfX<kBlocks>> x;
  int turn = 0;
  const int begin = p.first(), end = p.end();
  const NormOf<End> norm(out, p, ring, warp, lane);
  [[maybe_unused]] float* const squares = reinterpret_cast<float*>(shared + kSquares);  // [warps][rows]
  const typename End::Token token(out);
  tile::wait_for_previous();
  [[maybe_unused]] float lane_squares = 0;  // of a single row
  if constexpr (kSingle && kNorms) {
    lane_squares = norm.scale_row(p, ring + kRowAt, warp);
  } else if constexpr (kSingle) {
    copy_row(p, ring + kRowAt, warp, lane);
  }
#pragma unroll 1
  for (int feature = begin; feature < end; feature += kSlab) {
    float d[2][4] = {};
    const typename End::Unit unit(out, token, feature, end);
    const bool slab = !End::kEights || feature + kEight < end;
    if constexpr (kSingle) {
      multiply_row(d, p, ring, place, at, slab, warp, c);
      if constexpr (kNorms) {
        if (feature == begin) {
          const float sum = norm.sum_of_lanes(lane_squares);
          if (lane == 0) squares[warp * kRowsMost] = sum;
        }
      }
    } else {
#pragma unroll 1
      for (int first = 0; first < p.chunks; first += kBlocks) {
        if (feature == begin || p.chunks > kBlocks) x.load(p, first, warp, lane);
        if constexpr (kNorms) {
          if (feature == begin) {
            const float sum = norm.scale_rows(x);
            if (c == 0) squares[warp * kRowsMost + g] = sum;
          }
        }
        if (slab) {
          multiply_stages<kSlab, kBlocks>(d, p, ring, place, at, x, first, warp);
        } else {
          multiply_stages<kEight, kBlocks>(d, p, ring, place, at, x, first, warp);
        }
      }
    }
    float* const mine = reinterpret_cast<float*>(shared + kSums) + turn * (kSumBytes / 4);
    const float of_lane[4] = {d[0][0] + d[1][0], d[0][1] + d[1][1], d[0][2] + d[1][2], d[0][3] + d[1][3]};
    tile::store(mine + (warp * 32 + lane) * 4, of_lane);
    // All have read the unit before the previous one by now, whose place the next one's sums take.
    tile::sync_threads<kConsumers>(1);
    if (warp < static_cast<int>(kStreamRowsMost) * kSlab / 32) {
      float sum = sum_of_warps(mine);
      if constexpr (kNorms) sum *= inverse_root(squares, p.width, out.norm.eps);
      unit.store(out, token, feature, sum);
    }
    turn ^= 1;
  }
}

// The fewest registers that spill nothing, or next to it: a CTA of attention then has room beside this one for longer.
constexpr int registers_of(int blocks) { return blocks == 0 ? 64 : blocks <= 6 ? 80 : 96; }

template <class End, int kBlocks>
__global__ void __maxnreg__(registers_of(kBlocks))
    linear_stream(const __grid_constant__ typename End::Maps w, const __grid_constant__ Rows p,
                  const __grid_constant__ typename End::Out out) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const int warp = tile::uniform(static_cast<int>(threadIdx.x) / 32);
  const uint32_t ring = tile::shared_address(shared);
  tile::release_next();
  if (warp == kWarps) End::prefetch(w);
  if (warp < kStages) {
    tile::barrier_init_by_warp(reinterpret_cast<uint64_t*>(shared + kFull) + warp, 1);
    tile::barrier_init_by_warp(reinterpret_cast<uint64_t*>(shared + kEmpty) + warp, kConsumers);
    tile::barrier_visible();
  }
  __syncthreads();
  if (warp == kWarps) {
    produce<End>(w, p, ring, kBlocks ? kStages : kRowStages);
  } else {
    consume<End, kBlocks>(p, out, shared, warp);
  }
}

// `of`: what linear_stream_launch() made. x has 16-byte aligned rows.
template <class End>
Status launch_stream(std::string_view name, const Linear::Problem& p, const KernelLaunch& of, const Tensor& x,
                     const typename End::Maps& w, const typename End::Out& out, Stream to) {
  constexpr int kFew = 6, kMany = 8;  // chunks of x in registers: widths up to 3072 and 4096
  const auto k_blocks = static_cast<int>(linear_parts(p.width, kBlock));
  const Rows rows{.x = x.as<const B16>(),
                  .x_stride = x.stride[0],
                  .tokens = static_cast<int>(p.tokens),
                  .width = static_cast<int>(p.width),
                  .k_blocks = k_blocks,
                  .chunks = (k_blocks + kWarps - 1) / kWarps,
                  .each = of.value[1],
                  .shares = static_cast<int>(linear_parts(p.features, of.value[1])),
                  .ctas = tile::Divisor(of.value[0]),
                  .zero = 0};
  const Launch how{.grid = {static_cast<unsigned>(of.value[0]), 1, 1},
                   .block = {kThreads, 1, 1},
                   .shared_bytes = kSharedBytesOf<End>};
  const auto kernel = p.tokens == 1 && p.width <= kRowWidthMost ? linear_stream<End, 0>
                      : rows.chunks <= kFew                     ? linear_stream<End, kFew>
                                                                : linear_stream<End, kMany>;
  return launch(name, kernel, how, to, w, rows, out);
}

}  // namespace sluice::cuda::stream
