// Attention of few queries: every warp loops over its own keys,
// 16 at a time, and at the end the warps' sums are joined.
//
// A team of warps computes a tile of 16 or 32 queries (8 if narrow) of one sequence and one kv head. A team is a
// cluster, a CTA, or a part of a CTA whose other parts compute other kv heads of the same sequence. Tile t of 16
// positions belongs to warp t % (warps of the team), whatever other rows the step has, and partial results are joined
// in the order of warps and CTAs. So a row's result depends only on its sequence and on the size of the team.
//
// Every warp has its own ring. One lane issues the TMA loads of 16 keys and their values, and no warp waits for
// another. A stage is refilled by the same warp that has read it, so stages have no empty barriers, and the ring
// is not a tile::Ring. In the products (mma.cuh) queries are rows, so a thread has the weights of two queries, g
// and g + 8 of 16. With eight queries per tile half of a product is idle, which costs nothing, because the
// kernel is bandwidth-bound. How operands are formed depends on the type of the caches (decode_tile.cuh).
//
// A key that a query does not attend to has weight zero, but zero times NaN is NaN. A weight is also a sum of two terms, whose products with an infinity may
// add up to NaN. So a warp whose sums are not finite loops over its keys again, without tensor cores, and adds only values of keys that a query attends to.
#pragma once
#include <cuda.h>

#include "backends/cuda/attention/decode_join.cuh"
#include "backends/cuda/attention/decode_tile.cuh"
#include "backends/cuda/attention/rows.cuh"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/ring.cuh"
#include "backends/cuda/tile/warp.cuh"

namespace sluice::cuda::attention {

// kOfGroups: groups of 16 queries per tile. T: layout and products of keys and values (decode_tile.cuh). kNarrow:
// tiles of eight queries and fewer stages, so that a CTA of the next dense layer has shared memory for its weights.
template <class T, int kOfGroups, bool kNarrow>
struct DecodeShape {
  using Tile = T;
  static constexpr int kDim = Tile::kDim, kGroups = kOfGroups;
  static constexpr int kWarps = 8, kThreads = 32 * kWarps, kKeys = Tile::kKeys,
                       kStages = kNarrow ? Tile::kFewStages : Tile::kStages;
  static constexpr int kTileBytes = Tile::kBytes, kStageBytes = 2 * kTileBytes;
  static constexpr int kRingBytes = kStages * kStageBytes;
  // Rows of a group of 16 that a lane has; if narrow, its second row is zero.
  static constexpr int kRows = kNarrow ? 1 : 2;
  static constexpr int kQueries = 8 * kRows * kGroups,
                       kPartialRow = kDim + 8;        // floats; padded against bank conflicts
  static constexpr int kFours = kQueries * kDim / 4;  // groups of 4 elements of y per tile
  static_assert(kQueries * kPartialRow * 4 <= kRingBytes);
  // Shared memory: the rings, then what the CTAs of a cluster send each other. Includes the bytes for alignment.
  static constexpr int kJoinAt = kWarps * kRingBytes,
                       kSharedBytes = kJoinAt + ClusterJoin<DecodeShape>::kBytes + 1024;
};

struct DecodeCall {
  Step step;
  Tiling tiling;
  // maximum number of tiles of queries; cluster and heads are as in AttentionDecode
  int tiles, cluster, heads;
  int cluster_log;  // log2 of cluster
  int beside;  // the previous launch is prefill.cuh for the same step, so this kernel does not wait for it
};

template <class Shape>
class DecodeWarp {
 public:
  using Tile = typename Shape::Tile;
  static constexpr int kDim = Tile::kDim, kGroups = Shape::kGroups, kRows = Shape::kRows;

  __device__ __forceinline__ DecodeWarp(const Step& p, const Queries& of, int kv_head, int last_query)
      : p_(p), of_(of), kv_head_(kv_head), lane_(threadIdx.x % 32) {
    const Span low = of.span_of(p, of.first), high = of.span_of(p, last_query);
    seen_by_some_ = {low.first, high.end};
    seen_by_all_ = {high.first, low.end};
  }

  // Processes all keys of warp `mine` of `warps`. place: the next stage of the ring, kept between calls. If the
  // problem is settled, keys written before this step are loaded before the wait for the previous launch.
  __device__ __forceinline__ void walk(const CUtensorMap& k_map, const CUtensorMap& v_map, int last_query,
                                       int mine, int warps, uint32_t ring, uint32_t barriers,
                                       tile::RingPlace& place, bool beside, bool one_by_one) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) largest_[i][r] = kNothing, sum_[i][r] = 0;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
        value_[i][n][0] = value_[i][n][1] = value_[i][n][2] = value_[i][n][3] = 0;
    }
    const int first = seen_by_some_.first / Shape::kKeys,
              end = (seen_by_some_.end + Shape::kKeys - 1) / Shape::kKeys;
    first_ = first + (mine - first % warps + warps) % warps, step_ = warps;
    const int count = first_ < end ? (end - 1 - first_) / warps + 1 : 0;
    pages_ = page_of(lane_, count), next_pages_ = page_of(lane_ + 32, count);
    uint32_t absent = 0;  // mask of the stages whose page is absent
    const auto issue = [&](int i, uint32_t stage) {
      if (i > 0 && i % 32 == 0) pages_ = next_pages_, next_pages_ = page_of(i + 32 + lane_, count);
      const int page = __shfl_sync(0xffffffffu, pages_, i % 32);
      const bool there = page >= 0 && page < p_.pages;
      absent = (absent & ~(1u << stage)) | (there ? 0u : 1u << stage);
      // Rows outside the tensor of the map arrive as zeros.
      const int row = there ? (page * p_.kv_heads + kv_head_) * p_.page_size + position(i) % p_.page_size
                            : p_.pages * p_.kv_heads * p_.page_size;
      const uint32_t to = ring + stage * Shape::kStageBytes, barrier = barriers + 8 * stage;
      tile::barrier_expect_by_warp(barrier, Shape::kStageBytes);
      Tile::fetch(to, k_map, row, barrier);
      Tile::fetch(to + Shape::kTileBytes, v_map, row, barrier);
    };
    // Number of positions that were written before this step.
    const int64_t old = p_.settled ? of_.kv_len - of_.rows(p_.group) : 0;
    int asked = 0;
    for (; asked < Shape::kStages && asked < count && position(asked) + Shape::kKeys <= old; ++asked)
      issue(asked, (place.stage + asked) % Shape::kStages);
    if (!beside) tile::wait_for_previous();
    for (; asked < Shape::kStages && asked < count; ++asked)
      issue(asked, (place.stage + asked) % Shape::kStages);
    load_queries(last_query);
    for (int i = 0; i < count; ++i) {
      tile::barrier_wait_by_warp(barriers + 8 * place.stage, place.parity);
      take(ring + place.stage * Shape::kStageBytes, position(i), (absent >> place.stage & 1) != 0,
           one_by_one);
      __syncwarp();
      if (i + Shape::kStages < count) issue(i + Shape::kStages, place.stage);
      place.step(Shape::kStages);
    }
  }

  // True if some sum of values in this warp is NaN or infinite.
  __device__ __forceinline__ bool any_not_finite() const {
    float all = 0;  // sum of (value x 0), which is NaN if some value is NaN or infinite
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) all = fmaf(value_[i][n][e], 0.f, all);
      }
    }
    return __any_sync(0xffffffffu, all != 0.f);
  }

  // Stores the sums of values to `values` (in this warp's ring, which is free by now), and the largest scores and sums of weights.
  __device__ __forceinline__ void leave(float* values, float* largest, float* sum) {
    const int g = lane_ / 4, c = lane_ % 4;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float all = sum_[i][r];
        all += __shfl_xor_sync(0xffffffffu, all, 1);
        all += __shfl_xor_sync(0xffffffffu, all, 2);
        const int query = 16 * i + 8 * r + g;
        if (c == 0) largest[query] = largest_[i][r], sum[query] = all;
        Tile::store_row(value_[i], r, c, values + query * Shape::kPartialRow);
      }
    }
  }

 private:
  __device__ __forceinline__ int position(int i) const { return (first_ + i * step_) * Shape::kKeys; }
  __device__ __forceinline__ int page_of(int i, int count) const {
    return i < count ? p_.page_table[static_cast<int64_t>(of_.sequence) * p_.pages_per_seq +
                                     position(i) / p_.page_size]
                     : -1;
  }

  // Loads queries as the first operand (mma.cuh), with zeros past the last query, and computes the positions that each query attends to.
  __device__ __forceinline__ void load_queries(int last_query) {
    const auto* q = static_cast<const __nv_bfloat16*>(p_.q);
    const int g = lane_ / 4, c = lane_ % 4;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int query = of_.first + 16 * i + 8 * r + g;
        const bool there = r < kRows && query <= last_query;
        span_[i][r] = there ? of_.span_of(p_, query) : Span{0, 0};
        const __nv_bfloat16* from = q + (there ? of_.place(p_, query, kv_head_, kDim, p_.q_stride) : 0);
#pragma unroll
        for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const __nv_bfloat16* at = from + 16 * k + Tile::query_place(half, c);
            query_[i][k][2 * half + r] = there ? two_of(p_, at) : 0;
          }
        }
      }
    }
  }

  // Processes keys `at` to at + 15.
  __device__ __forceinline__ void take(uint32_t stage, int at, bool absent, bool one_by_one) {
    const bool whole = !absent && at >= seen_by_all_.first && at + Shape::kKeys <= seen_by_all_.end;
    const uint32_t values = stage + Shape::kTileBytes;
    float score[kGroups][2][4] = {};
    Tile::score(score, query_, stage);
    if (!whole) hide(score, at, absent);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) weigh(score[i], i);
    // Masks that clear values of keys to which no query of the tile attends.
    uint32_t kept[2] = {0xffffffffu, 0xffffffffu};
    if (!whole) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int j = at + 8 * half + 2 * (lane_ % 4);
        kept[half] = (seen_by_some_.sees(j) ? 0xffffu : 0u) | (seen_by_some_.sees(j + 1) ? 0xffff0000u : 0u);
      }
    }
    if (one_by_one) return add_one_by_one(score, values, at);
    Tile::add_values(value_, score, values, kept);
  }

  __device__ __forceinline__ void hide(float (&score)[kGroups][2][4], int at, bool absent) const {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int j = at + 8 * n + 2 * (lane_ % 4) + e % 2;
          if (absent || !span_[i][e / 2].sees(j)) score[i][n][e] = kNothing;
        }
      }
    }
  }

  // Converts the scores of a group of queries to weights, and rescales the previous sums to the new largest score.
  __device__ __forceinline__ void weigh(float (&score)[2][4], int i) {
    if constexpr (kRows == 1) score[0][2] = score[0][3] = score[1][2] = score[1][3] = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float most = kNothing;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          score[n][e] *= p_.scale;
          most = fmaxf(most, score[n][e]);
        }
      }
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      most = fmaxf(most, largest_[i][r]);
      const float base = base_of(most), factor = rescale(largest_[i][r], base);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          score[n][e] = exp2_of(score[n][e] - base);
          sum += score[n][e];
        }
      }
      largest_[i][r] = most;
      if (factor != 1.f) {
        sum_[i][r] *= factor;
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) value_[i][n][2 * r] *= factor, value_[i][n][2 * r + 1] *= factor;
      }
      sum_[i][r] += sum;
    }
  }

  // Adds weighted values without tensor cores, and only those of keys to which the query attends.
  __device__ __forceinline__ void add_one_by_one(const float (&weight)[kGroups][2][4], uint32_t values,
                                                 int at) {
#pragma unroll 1
    for (int key = 0; key < Shape::kKeys; ++key) {
      const int from = lane_ / 4 * 4 + key % 8 / 2;
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float even = key < 8 ? weight[i][0][2 * r] : weight[i][1][2 * r],
                      odd = key < 8 ? weight[i][0][2 * r + 1] : weight[i][1][2 * r + 1];
          const float mine = __shfl_sync(0xffffffffu, key % 2 ? odd : even, from);
          const bool sees = span_[i][r].sees(at + key);
          Tile::add_one(value_[i], r, sees, mine, values, key, lane_ % 4);
        }
      }
    }
  }

  const Step& p_;
  const Queries of_;
  const int kv_head_, lane_;
  Span seen_by_some_, seen_by_all_;
  int first_ = 0, step_ = 1;          // this warp's tiles of keys: the first, and the distance to the next
  int pages_ = -1, next_pages_ = -1;  // page of its tile 32 n + lane; the same for the next n
  uint32_t query_[kGroups][kDim / 16][4];
  Span span_[kGroups][2];
  float value_[kGroups][kDim / 8][4];
  float largest_[kGroups][2], sum_[kGroups][2];
};

// Finds tile `at`. Returns false if there are fewer tiles, which cannot happen if tiles are single rows.
template <class Shape>
__device__ __forceinline__ bool find(const DecodeCall& call, int at, TileSearch& search, Queries& of) {
  if (own_row(call.step, call.tiling, at, of)) return true;
  if (!find_tile<Shape::kThreads>(call.step, call.tiling, at, search)) return false;
  of = search.found;
  return true;
}

// Joins the warps of a team, which have the same tile, and writes the tile's rows
// of one kv head. first: the team's first warp. thread: index within the team.
template <class Shape, class SinkOf>
__device__ __forceinline__ void write_team(const Step& p, const Queries& of, int kv_head, int last_query,
                                           const Partials<Shape>& partials, const float* ring, int first,
                                           int warps, int thread, const SinkOf& sink) {
  constexpr int kAcross = Shape::kDim / 4;
#pragma unroll 1
  for (int place = thread; place < Shape::kFours; place += 32 * warps) {
    const int query = place / kAcross, four = place % kAcross * 4;
    if (of.first + query > last_query) break;
    write_four<Shape, Shape::kDim>(p, of, kv_head, of.first + query, four,
                                   join_warps(partials, ring, first, warps, query, four),
                                   sink(of.first + query));
  }
}

// Joins the warps of this CTA, then the CTAs of the cluster, and writes this CTA's
// share of the tile. tiles_before: number of tiles that this cluster has joined before.
template <class Shape, class SinkOf>
__device__ __forceinline__ void write_share(const DecodeCall& call, const Queries& of, int kv_head,
                                            int last_query, const Partials<Shape>& partials,
                                            const float* ring, uint64_t& joined, int warp, int thread,
                                            int rank, int tiles_before, const SinkOf& sink) {
  constexpr int kAcross = Shape::kDim / 4;
  constexpr int kFours =
      (Shape::kFours + Shape::kThreads - 1) / Shape::kThreads;  // groups of four elements per thread
  const bool joins = Shape::kFours >= Shape::kThreads || thread < Shape::kFours;
  static_assert(Shape::kFours % Shape::kThreads == 0 || (kFours == 1 && Shape::kFours % 32 == 0));
  FourSums sums[kFours];
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int place = thread + i * Shape::kThreads;
    if (joins) sums[i] = join_warps(partials, ring, 0, Shape::kWarps, place / kAcross, place % kAcross * 4);
  }
  const ClusterJoin<Shape> join(tile::shared_address(ring) + Shape::kJoinAt, tile::shared_address(&joined),
                                rank, call.cluster_log);
  if (warp == 0) tile::barrier_expect_by_warp(&joined, ClusterJoin<Shape>::kBytes);
  tile::cluster_wait();  // all CTAs run, and have read what was sent for the previous tile
#pragma unroll
  for (int i = 0; i < kFours; ++i)
    if (joins) join.send(thread + i * Shape::kThreads, sums[i]);
  tile::barrier_wait_by_warp(&joined, static_cast<uint32_t>(tiles_before) & 1);  // one phase per tile
  if (thread >= join.share) return;
  const int place = rank * join.share + thread, query = of.first + place / kAcross;
  if (query <= last_query)
    write_four<Shape, Shape::kDim>(call.step, of, kv_head, query, place % kAcross * 4, join.joined(thread),
                                   sink(query));
}

// Grid: clusters along x, which loop over tiles; kv heads along y, call.heads per CTA.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kDim == 64 && Shape::kGroups == 1 ? 2 : 1)
    attention_decode(const __grid_constant__ DecodeCall call, const __grid_constant__ CUtensorMap k_map,
                     const __grid_constant__ CUtensorMap v_map) {
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t full[Shape::kWarps][Shape::kStages], joined;
  __shared__ TileSearch search;
  __shared__ Partials<Shape> partials;
  __shared__ Sinks sinks;
  const Step& p = call.step;
  const int warp = tile::uniform(static_cast<int>(threadIdx.x) / 32), warps = Shape::kWarps / call.heads;
  const int team = warp / warps, kv_head = static_cast<int>(blockIdx.y) * call.heads + team;
  const int thread = static_cast<int>(threadIdx.x) - team * warps * 32;  // index within the team
  const int rank = static_cast<int>(blockIdx.x) % call.cluster;
  const uint32_t padding = -tile::shared_address(shared) & 1023u;
  auto* ring = reinterpret_cast<float*>(shared + padding);
  const uint32_t my_ring = tile::shared_address(ring) + warp * Shape::kRingBytes;
  tile::release_next();
#pragma unroll
  for (int s = 0; s < Shape::kStages; ++s) tile::barrier_init_by_warp(&full[warp][s], 1);
  tile::barrier_visible();
  __syncwarp();  // another lane may be the first to arrive at these barriers
  tile::prefetch_map(k_map);
  tile::prefetch_map(v_map);
  const int heads = call.heads * p.group, first_head = static_cast<int>(blockIdx.y) * heads;
  sinks.copy(p, first_head, heads);
  const auto sink = [&](int query) {
    return sinks.of(p, first_head, heads, team * p.group + query % p.group);
  };
  if (!p.settled && !call.beside) tile::wait_for_previous();
  // One round of the cluster barrier per tile: the peer CTAs run, and have read what was sent for the previous tile.
  if (call.cluster > 1) {
    if (warp == 0) tile::barrier_init_by_warp(&joined, 1), tile::barrier_visible();
    __syncwarp();
    tile::cluster_arrive();
  }
  tile::RingPlace place;
  const int clusters = static_cast<int>(gridDim.x) / call.cluster;
  for (int at = static_cast<int>(blockIdx.x) / call.cluster; at < call.tiles; at += clusters) {
    Queries of;
    if (!find<Shape>(call, at, search, of)) {
      if (call.cluster > 1) tile::cluster_wait();
      break;
    }
    const int last_query = min(of.first + Shape::kQueries, of.count) - 1;
    {
      DecodeWarp<Shape> mine(p, of, kv_head, last_query);
#pragma unroll 1
      for (int iteration = 0; iteration < 2; ++iteration) {
        mine.walk(k_map, v_map, last_query, (warp - team * warps) * call.cluster + rank, warps * call.cluster,
                  my_ring, tile::shared_address(&full[warp][0]), place, call.beside != 0, iteration > 0);
        if (!mine.any_not_finite()) break;
      }
      mine.leave(ring + warp * (Shape::kRingBytes / 4), partials.largest[warp], partials.sum[warp]);
    }
    tile::wait_copies<0>();   // of the sinks
    tile::fence_for_async();  // orders this thread's writes to the ring before TMA's next writes
    __syncthreads();
    if (call.cluster == 1) {
      write_team(p, of, kv_head, last_query, partials, ring, team * warps, warps, thread, sink);
      __syncthreads();  // the ring and the results of find_tile() may now be overwritten
      continue;
    }
    write_share(call, of, kv_head, last_query, partials, ring, joined, warp, thread, rank, at / clusters,
                sink);
    if (at + clusters < call.tiles) {
      tile::cluster_publish();
      __syncthreads();  // the ring and the results of find_tile() may now be overwritten
    }
  }
  tile::wait_for_previous();  // a CTA without a tile, or concurrent with the previous launch, has not waited
                              // yet
}

}  // namespace sluice::cuda::attention
