// Device code of the tile kernels of dense layers. linear_tile.h lists the kernels.
//
// A producer warp fills a ring of stages of 64 k by TMA: weights of the tile's features, and rows of x. A consumer
// warpgroup multiplies 64 features by all rows of the tile: wgmma has features as M (64) and rows as N, both from
// shared memory. CTAs are persistent and process one tile after the other; the ring continues from tile to tile.
//
// Split sums: the CTAs of a cluster have the same tile and split k. The tile's rows are divided among them. A CTA
// sends every other CTA its sums of that CTA's rows, and adds up its own rows in the order of the parts of k.
//
// Sums are stored to y by TMA if the tile has boxes (linear_boxes.cuh), otherwise by every warpgroup (LinearFinish).
#pragma once
#include "backends/cuda/linear/linear_tile.h"

#if defined(__CUDACC__)
#include <utility>

#include "backends/cuda/launch.h"
#include "backends/cuda/linear/linear_boxes.cuh"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/l2_policy.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/registers.cuh"
#include "backends/cuda/tile/ring.cuh"
#include "backends/cuda/tile/split_sum.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/tensor_map.h"
#include "backends/cuda/tile/warp.cuh"
#include "backends/cuda/tile/wgmma.cuh"

namespace sluice::cuda {

template <class C>
__device__ __forceinline__ void linear_init_ring(const LinearTileParameters& p, uint32_t base, int warp) {
#pragma unroll 1
  for (int i = warp; i < p.at.stages; i += C::kThreads / 32)
    linear_ring(p, base).init_by_warp(i, 1, 4 * C::kGroups);
}

// The producer warp. It loads weights of the first stages before the wait for the previous launch.
template <class C>
__device__ __forceinline__ void linear_produce(const CUtensorMap& w, const CUtensorMap& x,
                                               const LinearTileParameters& p, uint32_t base) {
  constexpr int kBlock = static_cast<int>(kLinearBlock);
  const uint64_t policy = p.token_tiles == 1 ? tile::read_once() : tile::read_often();
  const LinearTileShare mine(p);
  tile::RingPlace place;
  int begun = min(p.at.stages, mine.steps);
  LinearTilePlace to = linear_tile_place<C>(p, mine.tile);
  const tile::Ring ring = linear_ring(p, base);
#pragma unroll 1
  for (int i = 0; i < begun; ++i) {
    const uint32_t full = ring.expect_by_warp(i, C::kStageBytes);
    tile::copy_box_by(policy, base + i * C::kStageBytes, w, (mine.first_step + i) * kBlock, to.feature, full);
  }
  tile::wait_for_previous();
#pragma unroll 1
  for (int i = 0; i < begun; ++i)
    tile::copy_box(base + i * C::kStageBytes + C::kWeightBytes, x, (mine.first_step + i) * kBlock, to.token,
                   ring.full_of(i));
  place.step_by(static_cast<uint32_t>(begun), static_cast<uint32_t>(p.at.stages));
#pragma unroll 1
  for (int tile = mine.tile; tile < p.tiles; tile += mine.stride, begun = 0) {
    to = linear_tile_place<C>(p, tile);
#pragma unroll 1
    for (int i = begun; i < mine.steps; ++i) {
      ring.acquire_by_warp(place);
      const uint32_t stage = base + place.stage * C::kStageBytes,
                     full = ring.expect_by_warp(place.stage, C::kStageBytes);
      tile::copy_box_by(policy, stage, w, (mine.first_step + i) * kBlock, to.feature, full);
      tile::copy_box(stage + C::kWeightBytes, x, (mine.first_step + i) * kBlock, to.token, full);
      place.step(static_cast<uint32_t>(p.at.stages));
    }
  }
}

// Computes a warpgroup's sums of a tile over this CTA's part of k.
template <class C>
__device__ __forceinline__ void linear_multiply(float (&d)[C::kN / 2], const LinearTileParameters& p,
                                                uint32_t base, int group, int steps, tile::RingPlace& place) {
  const uint64_t a = tile::describe_tile(base + static_cast<uint32_t>(group) * C::kGroupBytes),
                 b = tile::describe_tile(base + C::kWeightBytes);
  const uint32_t one = threadIdx.x % 32 == 0;
  tile::Ring ring = linear_ring(p, base);
  uint32_t stages = p.at.stages, before = 0;
  // Keeps these values in registers; otherwise the compiler recomputes them in every step.
  asm volatile("" : "+r"(ring.full), "+r"(ring.empty), "+r"(stages));
#pragma unroll
  for (float& sum : d) sum = 0;
#pragma unroll 1
  for (int i = 0; i < steps; ++i) {
    ring.wait(place);
    const uint64_t stage = place.stage * (C::kStageBytes / tile::kDescribed);
    tile::fence_operands();
#pragma unroll
    for (int k = 0; k < kLinearBlock / 16; ++k)
      tile::multiply<C::kN>(d, a + stage + k * tile::kNext16, b + stage + k * tile::kNext16, 1);
    tile::commit_group();
    tile::wait_groups<1>();
    ring.release(before, one & static_cast<uint32_t>(i > 0));
    before = place.stage;
    place.step(stages);
  }
  tile::wait_groups<0>();
  tile::hold(d);
  ring.release(before, one);
}

// Sends the other CTAs of the cluster this CTA's sums of their rows, 16 bytes per thread and
// group of eight rows. Then adds up the sums of its own rows, in the order of the parts of k.
template <class C>
__device__ __forceinline__ void linear_exchange(float (&d)[C::kN / 2], const LinearTileParameters& p,
                                                uint32_t base, int rank, int rows) {
  constexpr uint32_t kSumBytes = C::kConsumers * 16;
  const tile::SplitInbox inbox{base + p.at.inbox + threadIdx.x * 16, base + p.at.received};
  const uint32_t room = LinearEights<C>::most(rows, p.splits);  // maximum groups of eight rows per CTA
  const LinearEights<C> own(rows, rank, p.splits);
  if (threadIdx.x == 0)
    inbox.expect(static_cast<uint32_t>((own.high - own.low) * (p.splits - 1)) * kSumBytes);
  tile::cluster_wait();
#pragma unroll 1
  for (int i = 1; i < p.splits; ++i) {
    const int to = tile::rank_after(rank, i, p.splits);
    const LinearEights<C> theirs(rows, to, p.splits);
    const tile::SplitInbox peer = inbox.of(to);
#pragma unroll
    for (int j = 0; j < C::kEights; ++j)
      if (j >= theirs.low && j < theirs.high)
        peer.store((rank * room + j - theirs.low) * kSumBytes,
                   make_uint4(__float_as_uint(d[4 * j]), __float_as_uint(d[4 * j + 1]),
                              __float_as_uint(d[4 * j + 2]), __float_as_uint(d[4 * j + 3])));
  }
  inbox.wait();
#pragma unroll
  for (int j = 0; j < C::kEights; ++j) {
    if (j < own.low || j >= own.high) continue;
    float sum[4] = {};
#pragma unroll 1
    for (int part = 0; part < p.splits; ++part) {
      const uint4 theirs = tile::load_shared(inbox.sums + (part * room + j - own.low) * kSumBytes);
      const bool is_own = part == rank;
      sum[0] += is_own ? d[4 * j] : __uint_as_float(theirs.x);
      sum[1] += is_own ? d[4 * j + 1] : __uint_as_float(theirs.y);
      sum[2] += is_own ? d[4 * j + 2] : __uint_as_float(theirs.z);
      sum[3] += is_own ? d[4 * j + 3] : __uint_as_float(theirs.w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) d[4 * j + i] = sum[i];
  }
}

// Stores a warpgroup's sums to y, a few rows of x at a time, through shared memory, where
// the features of a row become contiguous, so that 16 lanes write 64 features, four each.
template <class C>
struct LinearFinish {
  static constexpr int kPitch = LinearTileKind::kPitch, kTake = C::kStagedEights,
                       kRounds = C::kEights / kTake, kBuffer = 8 * kTake * kPitch;
  static_assert(C::kEights % kTake == 0);

  const LinearOutput& out;
  LinearTilePlace to;
  LinearEights<C> own;  // groups of eight rows whose y this CTA writes
  int barrier, row, feature;
  float* put;
  const float* get;

  __device__ __forceinline__ LinearFinish(const LinearOutput& its_out, float* staging,
                                          const LinearTilePlace& its_place, const LinearEights<C>& its_own,
                                          int its_barrier)
      : out(its_out), to(its_place), own(its_own), barrier(its_barrier) {
    const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
    row = thread / 16, feature = to.feature + thread % 16 * 4;
    put = staging + 2 * (lane % 4) * kPitch + thread / 32 * 16 + lane / 4;
    get = staging + row * kPitch + thread % 16 * 4;
  }
  __device__ __forceinline__ bool has(int round) const {
    return round * kTake >= own.low && round * kTake < own.high;
  }
  __device__ __forceinline__ int64_t token(int round, int q) const {
    return to.token + (round * kTake + q) * 8 + row;
  }
  // Writes the sums of a round to buffer `buffer`. tile/wgmma.cuh has the order of the registers.
  __device__ __forceinline__ void stage(const float (&d)[C::kN / 2], int round, int buffer) const {
#pragma unroll
    for (int q = 0; q < kTake; ++q)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        put[buffer * kBuffer + (8 * q + i % 2) * kPitch + i / 2 * 8] = d[4 * (round * kTake + q) + i];
  }

  using Biases = RawBiases<4, 1>;
  // The first of the thread's four features, in a 64-feature tile that begins at `first`.
  static __device__ __forceinline__ int feature_of_thread(int first) {
    return first + static_cast<int>(threadIdx.x) % 16 * 4;
  }

  // For tiles whose 64 features are all in bounds, with aligned vectors of four. The residual is loaded one round ahead.
  __device__ __forceinline__ void vectors(const float (&d)[C::kN / 2], const Biases& bias) const {
    uint4 more[2][kTake];
    const auto ask = [&](int round) {
#pragma unroll
      for (int q = 0; q < kTake; ++q)
        more[round % 2][q] =
            load_raw_four(out.residual, token(round, q) * out.residual_stride + feature, out.y_f32,
                          out.residual && has(round) && token(round, q) < out.tokens);
    };
    ask(0);
    tile::sync_threads<128>(barrier);  // all threads have read the last rounds of the previous tile
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (round + 1 < kRounds) ask(round + 1);
      if (!has(round)) continue;
      stage(d, round, round % 2);
      // all threads have written this round, and have read the round before the previous one
      tile::sync_threads<128>(barrier);
#pragma unroll
      for (int q = 0; q < kTake; ++q) {
        float sum[4];
        tile::load(sum, get + round % 2 * kBuffer + 8 * q * kPitch);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] += bias.value(i);
        add_raw_four(sum, more[round % 2][q], out.y_f32);
        if (token(round, q) < out.tokens) out.store_together(token(round, q), feature, sum);
      }
    }
  }
  // For any features and addresses. The loop keeps the code short.
  __device__ __forceinline__ void elements(const float (&d)[C::kN / 2]) const {
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) {
      if (!has(round)) continue;
      tile::sync_threads<128>(barrier);  // all threads have read the previous round
#pragma unroll
      for (int r = 0; r < kRounds; ++r)
        if (r == round) stage(d, r, 0);
      tile::sync_threads<128>(barrier);
#pragma unroll 1
      for (int i = 0; i < 4 * kTake; ++i) {
        const int64_t at = token(round, i / 4);
        const int n = feature + i % 4;
        out.store(at, n, get[i / 4 * 8 * kPitch + i % 4] + out.bias_of(n) + out.residual_of(at, n));
      }
    }
  }
  __device__ __forceinline__ void operator()(const float (&d)[C::kN / 2], const Biases& bias) const {
    if (to.feature >= out.features) return;
    if (out.wide && to.feature + 64 <= out.features) {
      vectors(d, bias);
    } else {
      elements(d);
    }
  }
};

template <class C>
__device__ __forceinline__ void linear_consume(const LinearTileParameters& p, uint8_t* shared, int group) {
  const uint32_t base = tile::shared_address(shared);
  const LinearTileShare mine(p);
  auto* const staging = reinterpret_cast<float*>(shared + p.at.staging + group * C::kStagingBytes);
  tile::RingPlace place;
  [[maybe_unused]] tile::RingPlace box;
  tile::wait_for_previous();
#pragma unroll 1
  for (int tile = mine.tile; tile < p.tiles; tile += mine.stride) {
    LinearTilePlace to = linear_tile_place<C>(p, tile);
    to.feature += group * 64;
    const auto biases = [&] {
      if constexpr (C::kBoxed) {
        return typename LinearBoxes<C>::Biases(p.out, LinearBoxes<C>::feature_of_lane(to.feature));
      } else {
        return typename LinearFinish<C>::Biases(p.out, LinearFinish<C>::feature_of_thread(to.feature));
      }
    }();
    float d[C::kN / 2];
    linear_multiply<C>(d, p, base, group, mine.steps, place);
    const int rows = min(C::kN, p.out.tokens - to.token);
    if constexpr (C::kSplits) {
      if (p.splits > 1) linear_exchange<C>(d, p, base, mine.rank, rows);
    }
    const LinearEights<C> own(rows, mine.rank, p.splits);
    if constexpr (C::kBoxed) {
      if (p.boxed) {
        if (to.feature < p.out.features) LinearBoxes<C>(p.at, base, group).add(d, p.out, biases, own, box);
        continue;
      }
      LinearFinish<C>(p.out, staging, to, own, 1 + group)(
          d, {p.out, LinearFinish<C>::feature_of_thread(to.feature)});
    } else {
      LinearFinish<C>(p.out, staging, to, own, 1 + group)(d, biases);
    }
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kNarrow ? 2 : 1)
    linear_tile(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                const __grid_constant__ CUtensorMap y, const __grid_constant__ CUtensorMap residual,
                const __grid_constant__ LinearTileParameters p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const int warp = tile::uniform(static_cast<int>(threadIdx.x) / 32);
  constexpr int kProducer = C::kConsumers / 32;
  tile::release_next();
  if (warp == kProducer) {
    tile::prefetch_map(w);
    tile::prefetch_map(x);
  }
  linear_init_ring<C>(p, tile::shared_address(shared), warp);
  if (warp == 0) tile::barrier_init_by_warp(reinterpret_cast<uint64_t*>(shared + p.at.received), 1);
  if constexpr (C::kBoxed) LinearBoxes<C>::init(shared, p.at);
  tile::barrier_visible();
  __syncthreads();
  const bool clustered = C::kSplits && p.splits > 1;
  if (clustered) tile::cluster_arrive();
  if (warp >= kProducer) {
    if constexpr (C::kMovesRegisters) tile::keep_registers<C::kProducerRegisters>();
    if (warp == kProducer) {
      linear_produce<C>(w, x, p, tile::shared_address(shared));
      if (clustered) tile::cluster_wait();
    } else {
      // Here and not at the end of the kernel: compute-sanitizer's racecheck hangs if a warp waits for the cluster after other warps of its CTA have exited.
      if (clustered) tile::cluster_wait();
      if constexpr (C::kBoxed) {
        const int group = warp - kProducer - 1;
        if (p.boxed && group < C::kGroups) {
          const LinearTileShare mine(p);
          tile::wait_for_previous();
          LinearBoxes<C>(p.at, tile::shared_address(shared), group).serve(y, residual, p, group, mine);
        }
      }
    }
  } else {
    if constexpr (C::kMovesRegisters) tile::take_registers<C::kConsumerRegisters>();
    linear_consume<C>(p, shared, tile::uniform(warp / 4));
  }
}

inline LinearTileParameters linear_tile_parameters(const Linear::Problem& p, const LinearTileLaunch& l,
                                                   const LinearOutput& out) {
  const LinearTileKind& kind = kLinearTiles[l.kind];
  const auto token_tiles = static_cast<int>(linear_parts(p.tokens, kind.n)),
             feature_tiles = static_cast<int>(linear_parts(p.features, kind.features()));
  return {.steps = static_cast<int>(linear_parts(p.width, kLinearBlock)),
          .splits = l.splits,
          .tiles = token_tiles * feature_tiles,
          .token_tiles = token_tiles,
          .feature_tiles = feature_tiles,
          .boxed = false,
          .at = linear_tile_shared(kind, l.splits),
          .out = out};
}
inline Launch linear_tile_how(const LinearTileLaunch& l, const LinearTileParameters& p) {
  // With this many rows or more, CTAs that share rows of x would start too far apart as a dependent launch (tile/dependent.cuh).
  constexpr int kDependentRows = 4096;
  return {.grid = {static_cast<unsigned>(l.grid), 1, 1},
          .block = {static_cast<unsigned>(kLinearTiles[l.kind].threads()), 1, 1},
          .shared_bytes = static_cast<size_t>(p.at.bytes),
          .cluster = {static_cast<unsigned>(l.splits), 1, 1},
          .dependent = p.out.tokens < kDependentRows};
}

inline Status launch_linear_tile(std::string_view name, LinearTileKernel kernel, const Linear::Problem& p,
                                 const LinearTileLaunch& l, const Linear::Args& a, Stream stream) {
  const LinearTileKind& kind = kLinearTiles[l.kind];
  const auto mapped = [](const Tensor& t) { return aligned_rows(t, tile::kMapStrideBytes); };
  LinearTileParameters parameters = linear_tile_parameters(p, l, linear_output(p, a));
  // A box ends at a multiple of 16 bytes. If a row of features does not, the box would overwrite bytes that may belong to a wider matrix.
  parameters.boxed = kind.boxed() && p.y == DType::kBF16 && p.features % 8 == 0 && mapped(a.y) &&
                     (!p.residual || mapped(a.residual));
  CUtensorMap w, x, y{}, residual{};
  SLUICE_TRY(tile::map_rows(w, a.w, kind.features()));
  SLUICE_TRY(tile::map_rows(x, a.x, kind.n));
  if (parameters.boxed) SLUICE_TRY(tile::map_rows(y, a.y, kind.box_rows()));
  if (parameters.boxed && p.residual) SLUICE_TRY(tile::map_rows(residual, a.residual, kind.box_rows()));
  return launch(name, kernel, linear_tile_how(l, parameters), stream, w, x, y, residual, parameters);
}

// Launches a kernel of kLinearTiles. The entries [kFirst, kFirst + kCount) are compiled here.
template <size_t kFirst, size_t... kIndex>
constexpr std::array<LinearTileKernel, sizeof...(kIndex)> linear_tile_kernels(
    std::index_sequence<kIndex...>) {
  return {linear_tile<LinearTiles<kLinearTiles[kFirst + kIndex].groups, kLinearTiles[kFirst + kIndex].n>>...};
}
template <size_t kFirst, size_t kCount>
Status launch_linear_tile(std::string_view name, const Linear::Problem& p, const LinearTileLaunch& l,
                          const Linear::Args& a, Stream stream) {
  static constexpr auto kKernels = linear_tile_kernels<kFirst>(std::make_index_sequence<kCount>());
  return launch_linear_tile(name, kKernels[static_cast<size_t>(l.kind) - kFirst], p, l, a, stream);
}

}  // namespace sluice::cuda
#endif
