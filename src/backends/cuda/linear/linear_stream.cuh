// A dense layer for up to eight rows. Weights are read once; rows of x stay in registers, or in shared memory if there is only one row.
//
// There is one CTA per SM. CTAs have equal shares of the features, in multiples of sixteen or eight. A unit of
// work is 16 features (a slab) over the whole width; the last unit of a share may have eight. A producer warp
// fills a ring of stages by TMA: 16 features x 512 values of k in eight boxes of 64, or eight features x 1024. A
// consumer warp multiplies one box of each stage (two boxes of eight features): mma.sync has features as M (16)
// and rows of x as N (8). So a warp needs only every eighth box of x. It loads these boxes once, directly in the
// order of its operands, and keeps them for all units if the width allows. After a unit, the warps' sums are
// added in order through shared memory; thread t computes the output of row t % 16 of the unit for token t / 16.
//
// The ring is full of weights before the previous launch has ended. It is so large that no second CTA of a dense layer
// fits on an SM; otherwise the SMs that become free first would get two CTAs, and others none. The shared memory of a
// decode attention kernel fits next to the ring, and its registers fit if this kernel has at most 80. With room for
// narrow tiles of attention there are nine stages, which hold most of a CTA's share of gpt-oss's output projection.
//
// If there is only one row, it is in shared memory, after the ring or in place of the last stage. So threads need few
// registers, and one short loop covers the stages of a unit. Several rows are in registers instead, because in shared
// memory all of them would have to arrive before the first product, and every unit would read them from there.
//
// End is a type that defines where a unit's weights are and what is done with its sums:
//
//  Maps                                  tensor maps of the weights; prefetch(maps)
//   kEights                               true if the last unit of a share may have eight features
//   fetch(slab, policy, to, maps, k, feature, full)   loads a box of the unit of 16 (slab) or 8 features that begins at `feature`
//   Out                                   End's part of the launch's parameters
//   Token(out)                            what a thread keeps for its token
//   Unit(out, token, first, end)          starts the loads of the epilogue for features [first, end), at most 16
//   store(out, token, first, sum)         called by all threads of the first four warps, with the sum of the thread's element
#pragma once
#include <type_traits>

#include "backends/cuda/launch.h"
#include "backends/cuda/linear/linear_stream_layout.cuh"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/l2_policy.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/mma.cuh"
#include "backends/cuda/tile/operand.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/warp.cuh"

namespace sluice::cuda::stream {

template <class Place, class End>
__device__ __forceinline__ void produce(const typename End::Maps& w, const Rows& p, uint32_t ring) {
  const uint64_t policy = tile::read_once();
  const tile::Ring barriers = Place::barriers(ring);
  tile::RingPlace place;
  const int end = p.end();
#pragma unroll 1
  for (int feature = p.first(); feature < end; feature += kSlab) {
    const bool slab = !End::kEights || feature + kEight < end;
    const int boxes_max = slab ? kWarps : 2 * kWarps, bytes = slab ? kBoxBytes : kEightBytes;
#pragma unroll 1
    for (int first = 0; first < p.k_blocks; first += boxes_max) {
      const uint32_t full = barriers.full_of(place.stage);
      if (place.parity == 0 && place.stage >= kInFlight)
        tile::barrier_wait_by_warp(full - kInFlight * tile::Ring::kBytes, 0);
      barriers.acquire_by_warp(place);
      const int boxes = min(boxes_max, p.k_blocks - first);
      barriers.expect_by_warp(place.stage, static_cast<uint32_t>(boxes * bytes));
      const uint32_t to = ring + place.stage * kStageBytes;
#pragma unroll 1
      for (int i = 0; i < boxes; ++i)
        End::fetch(slab, policy, to + i * bytes, w, (first + i) * kBlock, feature, full);
      place.step(p.stages);
    }
  }
}

// kBlocks of a consumer warp's boxes of x. Lane (g, c) has, of row g, the eight values at 8 c in each half of a box.
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

// Always true, but known only once the operands of `sum` have been loaded. An arrival that
// does not depend on this may overtake the loads (docs/lab/how-the-expert-gemms-work.md).
__device__ __forceinline__ uint32_t has_loaded(float sum) {
  constexpr uint32_t kNever = 0x7fc12345u;  // a NaN that no sum can produce: mma gives 0x7fffffff
  return __float_as_uint(sum) != kNever;
}

// Releases a stage without waiting for its products: the arrival depends on the loaded bits through a mask
// that is zero, which the compiler does not know. Used for a single row, so that the next stage loads
// during the products of this one. With several rows, this would spill registers and take 2% longer.
struct Release {
  uint32_t zero, loaded = 0;

  // one word is enough, because one load brings all four
  __device__ __forceinline__ void after(const uint4& v) { loaded |= v.x; }
  __device__ __forceinline__ void operator()(uint32_t barrier) const {
    tile::arrive_by_lane(barrier, (loaded & zero) == 0);
  }
};

// A lane's weights in a box of kFeatures. Four lanes have 16 bytes each
// of 32 values of k, so half a box is two k steps of mma.sync (mma.cuh).
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
  // Adds the products with both halves of a box of x.
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

// Multiplies the stages of a unit of kFeatures, beginning with chunk `first`, up to the last chunk of x in `x`.
template <class Place, int kFeatures, int kBlocks>
__device__ __forceinline__ void multiply_stages(float (&d)[2][4], const Rows& p, uint32_t ring,
                                                tile::RingPlace& place, const uint32_t (&at)[2],
                                                const RowsOfX<kBlocks>& x, int first, int warp) {
  constexpr int kChunks = kSlab / kFeatures, kBytes = kBoxBytes / kChunks;  // per stage; per box
  static_assert(kBlocks % kChunks == 0);
#pragma unroll
  for (int i = 0; i < kBlocks; i += kChunks) {
    if (first + i >= p.chunks) break;
    Place::barriers(ring).wait_by_warp(place);
#pragma unroll
    for (int m = 0; m < kChunks; ++m) {
      if ((first + i + m) * kWarps + warp < p.k_blocks) {
        const Box<kFeatures> box(ring + place.stage * kStageBytes + (m * kWarps + warp) * kBytes, at);
        box.multiply(d, x.half[i + m][0].word[0], x.half[i + m][1].word[0]);
      }
    }
    Place::barriers(ring).release(place.stage, has_loaded(d[0][0]) & has_loaded(d[1][0]));
    place.step(Place::kStages);
  }
}

// The token, and the row in a unit, of the output that this thread computes.
__device__ __forceinline__ int token_of_thread() { return static_cast<int>(threadIdx.x) / kSlab; }
__device__ __forceinline__ int row_of_thread() { return static_cast<int>(threadIdx.x) % kSlab; }

// Stores a warp's sums of a unit in the order of mma(), four per lane. For a single row, stores only
// that row's column; threads of other tokens then read the same values, but never store results.
template <class Place>
__device__ __forceinline__ void leave_sums(float* sums, int warp, int lane, const float (&of_lane)[4]) {
  if constexpr (!Place::kSingle) {
    tile::store(sums + (warp * 32 + lane) * 4, of_lane);
  } else if (lane % 4 == 0) {
    sums[warp * kSlab + lane / 4] = of_lane[0];
    sums[warp * kSlab + 8 + lane / 4] = of_lane[2];
  }
}
// The sum of this thread's element over all warps.
template <class Place>
__device__ __forceinline__ float sum_of_warps(const float* sums) {
  const int token = token_of_thread(), row = row_of_thread();
  const int lane = row % 8 * 4 + token / 2, of_lane = row / 8 * 2 + token % 2;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i)
    total += sums[Place::kSingle ? i * kSlab + row : (i * 32 + lane) * 4 + of_lane];
  return total;
}

// Copies the single row of x to shared memory, with zeros past its width. A warp copies the boxes that it multiplies.
__device__ __forceinline__ void copy_row(const Rows& p, uint32_t to, int warp, int lane) {
  constexpr int kPieces = kBlock / 8, kAtOnce = 32 / kPieces;  // 16-byte pieces of a box; boxes per pass
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

// Multiplies the stages of a unit, for a single row.
template <class Place>
__device__ __forceinline__ void multiply_row(float (&d)[2][4], const Rows& p, uint32_t ring,
                                             tile::RingPlace& place, const uint32_t (&at)[2], bool slab,
                                             int warp, int c) {
  constexpr int kRowBoxBytes = kBlock * 2;
  const uint32_t row = ring + p.row_at + c * 16;
#pragma unroll 1
  for (int first = 0; first < p.k_blocks; first += slab ? kWarps : 2 * kWarps) {
    Place::barriers(ring).wait_by_warp(place);
    const uint32_t empty = Place::barriers(ring).empty_of(place.stage);
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
      release(empty);
    } else if (first + warp < p.k_blocks) {
      const uint32_t x = row + (first + warp) * kRowBoxBytes;
      const uint4 first_half = tile::load_shared(x), second_half = tile::load_shared(x + 64);
      const Box<kSlab> w(stage + warp * kBoxBytes, at);
      w.before(release);
      release(empty);
      w.multiply(d, first_half, second_half);
    } else {
      release(empty);
    }
    place.step(p.stages);
  }
}

// The loop of a consumer warp. kBlocks: chunks of x in its registers; a wider x is loaded in parts, for every unit again. 0: a single row, in shared memory.
template <class End, int kBlocks, class Place>
__device__ __forceinline__ void consume(const Rows& p, const typename End::Out& out, uint8_t* shared,
                                        int warp) {
  constexpr bool kSingle = kBlocks == 0;
  const uint32_t ring = tile::shared_address(shared);
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
  const uint32_t at[2] = {tile::swizzled(g, c * 16), tile::swizzled(g, c * 16 + 64)};
  tile::RingPlace place;
  [[maybe_unused]] std::conditional_t<kSingle, int, RowsOfX<kBlocks>> x;
  int buffer = 0;
  const int begin = p.first(), end = p.end();
  const typename End::Token token(out);
  tile::wait_for_previous();
  if constexpr (kSingle) copy_row(p, ring + p.row_at, warp, lane);
#pragma unroll 1
  for (int feature = begin; feature < end; feature += kSlab) {
    float d[2][4] = {};
    const typename End::Unit unit(out, token, feature, end);
    const bool slab = !End::kEights || feature + kEight < end;
    if constexpr (kSingle) {
      multiply_row<Place>(d, p, ring, place, at, slab, warp, c);
    } else {
#pragma unroll 1
      for (int first = 0; first < p.chunks; first += kBlocks) {
        if (feature == begin || p.chunks > kBlocks) x.load(p, first, warp, lane);
        if (slab) {
          multiply_stages<Place, kSlab, kBlocks>(d, p, ring, place, at, x, first, warp);
        } else {
          multiply_stages<Place, kEight, kBlocks>(d, p, ring, place, at, x, first, warp);
        }
      }
    }
    float* const mine = reinterpret_cast<float*>(shared + Place::kSums) + buffer * (Place::kSumBytes / 4);
    const float of_lane[4] = {d[0][0] + d[1][0], d[0][1] + d[1][1], d[0][2] + d[1][2], d[0][3] + d[1][3]};
    leave_sums<Place>(mine, warp, lane, of_lane);
    // All warps have read the sums of the unit before the previous one; the sums of the next unit overwrite them.
    tile::sync_threads<kConsumers>(1);
    if (warp < static_cast<int>(kStreamRowsMax) * kSlab / 32)
      unit.store(out, token, feature, sum_of_warps<Place>(mine));
    buffer ^= 1;
  }
}

// The smallest register counts with almost no spills, so
// that a CTA of attention more often fits next to this CTA.
constexpr int registers_of(int blocks) { return blocks == 0 ? 64 : blocks <= 6 ? 80 : 96; }

template <class End, int kBlocks>
__global__ void __maxnreg__(registers_of(kBlocks))
    linear_stream(const __grid_constant__ typename End::Maps w, const __grid_constant__ Rows p,
                  const __grid_constant__ typename End::Out out) {
  using Place = Layout<kBlocks == 0>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const int warp = tile::uniform(static_cast<int>(threadIdx.x) / 32);
  const uint32_t ring = tile::shared_address(shared);
  tile::release_next();
  if (warp == kWarps) End::prefetch(w);
  if (warp < Place::kStages) {
    Place::barriers(ring).init_by_warp(warp, 1, kConsumers);
    tile::barrier_visible();
  }
  __syncthreads();
  if (warp == kWarps) {
    produce<Place, End>(w, p, ring);
  } else {
    consume<End, kBlocks, Place>(p, out, shared, warp);
  }
}

// of: the result of linear_stream_launch(). Rows of x must be aligned to 16 bytes.
template <class End>
Status launch_stream(std::string_view name, const Linear::Problem& p, const KernelLaunch& of, const Tensor& x,
                     const typename End::Maps& w, const typename End::Out& out, Stream to) {
  constexpr int kFew = 6, kMany = 8;  // chunks of x in registers, for widths up to 3072 and 4096
  using Single = Layout<true>;
  using More = Layout<false>;
  const auto k_blocks = static_cast<int>(linear_parts(p.width, kBlock));
  const bool single = p.tokens == 1 && p.width <= kRowWidthMax;
  // A row that is too long for the space after the ring takes the place of the last stage.
  const int stages = !single                                      ? More::kStages
                     : k_blocks * kBlock * 2 <= Single::kRowBytes ? Single::kStages
                                                                  : Single::kStages - 1;
  const Rows rows{.x = x.as<const B16>(),
                  .x_stride = x.stride[0],
                  .tokens = static_cast<int>(p.tokens),
                  .width = static_cast<int>(p.width),
                  .k_blocks = k_blocks,
                  .chunks = (k_blocks + kWarps - 1) / kWarps,
                  .each = of.value[1],
                  .shares = static_cast<int>(linear_parts(p.features, of.value[1])),
                  .stages = stages,
                  .row_at = stages * kStageBytes,
                  .ctas = tile::Divisor(of.value[0]),
                  .zero = 0};
  const Launch how{.grid = {static_cast<unsigned>(of.value[0]), 1, 1},
                   .block = {kThreads, 1, 1},
                   .shared_bytes = static_cast<size_t>(single ? Single::kBytes : More::kBytes)};
  const auto kernel = single                ? linear_stream<End, 0>
                      : rows.chunks <= kFew ? linear_stream<End, kFew>
                                            : linear_stream<End, kMany>;
  return launch(name, kernel, how, to, w, rows, out);
}

}  // namespace sluice::cuda::stream
