// The kernel of the expert GEMMs in bf16 for many rows an expert: pairs of blocks, a cluster of two SMs, walk a list of tiles
// that both halve, and what both of them multiply comes from the L2 once (docs/notes/cuda-bf16-experts.md).
//
// Either the pair shares rows of x, and each block has row blocks of its own, or it shares weights, and each has columns of its
// own. Of what is shared each block fetches a half into both. So a stage is empty when both blocks have read it: those who
// multiply say so to both. Two warpgroups multiply, some warps of a third fetch (expert_gemm_bf16_pair_fetch.cuh), and others of
// it may bring rows of tokens into order (expert_gemm_bf16_pair_gather.cuh).
#pragma once
#include "backends/cuda/experts/epilogue_rows.cuh"
#include "backends/cuda/experts/pairs_producer.cuh"

namespace sluice::cuda {

#ifdef __CUDACC__

// Adds up a tile, N >= its rows, and gives its stages back.
template <int N, class C>
__device__ __forceinline__ void multiply_pair(float (&d)[C::kBlocks][C::kMost / 2], const ExpertParameters& p,
                                              PairRing<C>& ring, int group) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  uint32_t before = 0;  // the stage in front of this one
#pragma unroll 1
  for (int k = 0; k < p.k_blocks; ++k) {
    ring.wait_full();
    if constexpr (!C::kBoxes) tile::fence_for_async();
    // Uniform, so that descriptors are made outside of the lanes' registers.
    const auto stage = static_cast<uint32_t>(uniform(static_cast<int>(ring.stage())));
    const uint64_t x = tile::describe_tile(stage);
    const uint64_t w = tile::describe_tile(stage + C::kXBytes + group * C::kBlocks * C::kBlockBytes);
    tile::fence_operands();
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int b = 0; b < C::kBlocks; ++b)
        tile::multiply<N>(reinterpret_cast<float(&)[N / 2]>(d[b]),
                          w + b * (C::kBlockBytes / tile::kDescribed) + j * tile::kNext16,
                          x + j * tile::kNext16, 1);
    tile::commit_group();
    tile::wait_groups<1>();
    ring.release(before, k > 0);  // what read the stage in front is done
    before = ring.place.stage;
    ring.place.step(stages);
  }
  tile::wait_groups<0>();
#pragma unroll
  for (int b = 0; b < C::kBlocks; ++b) tile::hold(d[b]);
  ring.release(before);
}

// multiply_pair of the fewest columns that the tile's rows fit in, of those that C has between kLeast and kMost: by halves,
// since a chain of that many branches is long where sums are short.
template <int kLeast, int kMost, class C>
__device__ __forceinline__ void multiply_columns(float (&d)[C::kBlocks][C::kMost / 2],
                                                 const ExpertParameters& p, int rows, PairRing<C>& ring,
                                                 int group) {
  if constexpr (kLeast == kMost) {
    multiply_pair<kMost>(d, p, ring, group);
  } else {
    constexpr int kMiddle = kLeast + (kMost - kLeast) / C::kFiner / 2 * C::kFiner;
    if (rows <= kMiddle) {
      multiply_columns<kLeast, kMiddle>(d, p, rows, ring, group);
    } else {
      multiply_columns<kMiddle + C::kFiner, kMost>(d, p, rows, ring, group);
    }
  }
}

// Multiplies one tile, of which this warpgroup has something, and writes its rows of y.
template <class C, bool kGated>
__device__ __forceinline__ void multiply_pair_tile(const ExpertParameters& p, const ExpertTile& t,
                                                   int first_block, PairRing<C>& ring) {
  const int all_warps = uniform(static_cast<int>(threadIdx.x / 32)), warp = all_warps % 4,
            group = all_warps / 4 - 1;
  float d[C::kBlocks][C::kMost / 2];
#pragma unroll
  for (int b = 0; b < C::kBlocks; ++b)
#pragma unroll
    for (float& sum : d[b]) sum = 0;
  multiply_columns<C::kLeast, C::kMost>(d, p, t.rows, ring, group);
  EpilogueRows<kGated> finish[C::kBlocks];
  read_rows(finish, p, t.expert, first_block, warp);
  const tile::ActivationValues act = activation_of(p, t.expert);
  const uint32_t staging = ring.base + ring.at.pieces + static_cast<uint32_t>(group * C::kStagedBytes);
  const int blocks = min(C::kBlocks, p.row_blocks - first_block);
  if (!has_epilogue_by_rows<kGated>(p, act, first_block + blocks - 1)) {
    static_assert(C::kStagedBytes >= StraightEpilogue<kGated>::kStagingBytes);
    if (has_straight_epilogue<kGated>(p, act)) {
      epilogue_straight<C::kMost, C::kBlocks, kGated>(d, p, act, t, first_block, finish,
                                                      StraightEpilogue<kGated>(staging, group));
    } else {
      epilogue_general<C::kMost, C::kBlocks, kGated>(d, p, act, t, first_block, finish);
    }
    return;
  }
  const StagedRows piece{staging, warp, 1 + group};
#pragma unroll
  for (int b = 0; b < C::kBlocks; ++b) {
    if (b >= blocks) break;
    const auto write = [&]<Activation kAct>() {
      epilogue_by_rows<C::kMost, kAct, C::kStagedBytes>(d[b], p, t, first_block + b, finish[b].bias, piece);
    };
    if constexpr (kGated) {
      write.template operator()<Activation::kSwiGlu>();
    } else if (act.which == Activation::kRelu2) {
      write.template operator()<Activation::kRelu2>();
    } else {
      write.template operator()<Activation::kIdentity>();
    }
  }
}

// A tile of which this warpgroup has nothing.
template <class C>
__device__ __forceinline__ void pass_tile(const ExpertParameters& p, PairRing<C>& ring) {
#pragma unroll 1
  for (int k = 0; k < p.k_blocks; ++k) {
    ring.wait_full();
    ring.release(ring.place.stage);
    ring.place.step(static_cast<uint32_t>(ring.at.stages));
  }
}

template <class C, bool kGated>
__device__ __forceinline__ void multiply_pairs(const ExpertParameters& p, const PairSchedule<C>& list,
                                               PairRing<C> ring) {
  const int group = uniform(static_cast<int>(threadIdx.x / 128)) - 1;
  const int all = list.tiles();
  int count = 0;
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x / 2); index < all;
       index += static_cast<int>(gridDim.x / 2), ++count) {
    ring.wait_full();
    const uint4 published = tile::load_shared(ring.published(count));
    const ExpertTile t{uniform(static_cast<int>(published.x)), uniform(static_cast<int>(published.y)),
                       uniform(static_cast<int>(published.z)), uniform(static_cast<int>(published.w))};
    const int first_block = first_of_group<C>(t.first_block, group, static_cast<int>(ring.rank));
    if (t.rows > 0 && first_block < p.row_blocks) {
      multiply_pair_tile<C, kGated>(p, t, first_block, ring);
    } else {
      pass_tile(p, ring);
    }
  }
}

template <class C, bool kGated>
__global__ void __launch_bounds__(C::kThreads, 1)
    expert_gemm_pairs(const __grid_constant__ ExpertParameters p, const __grid_constant__ PairShared at,
                      const __grid_constant__ ExpertMaps<C> x, const __grid_constant__ PairGather gather) {
  extern __shared__ uint8_t dynamic[];
  uint8_t* base = dynamic + (1024 - tile::shared_address(dynamic) % 1024) % 1024;
  const auto rank = static_cast<uint32_t>(uniform(static_cast<int>(tile::cluster_rank())));
  PairRing<C> ring{tile::shared_address(base), at, rank,
                   tile::remote_address(tile::shared_address(base), rank ^ 1)};
  if (threadIdx.x < static_cast<unsigned>(at.stages)) {
    tile::barrier_init(reinterpret_cast<uint64_t*>(base + at.full) + threadIdx.x, C::kFills);
    tile::barrier_init(reinterpret_cast<uint64_t*>(base + at.empty) + threadIdx.x, 2 * C::kGroups * 4);
    tile::barrier_visible();
  }
  if (C::kGathers && threadIdx.x == 0) {
    tile::store_shared_word(ring.base + at.begun, 0);
    for (int i = 0; i < PairGather::kWarps; ++i)
      tile::barrier_init(reinterpret_cast<uint64_t*>(base + at.came) + i, 1);
    tile::barrier_visible();
  }
  __syncwarp();
  tile::cluster_arrive();
  if (C::kBoxes && threadIdx.x < C::kMaps) tile::prefetch_map(x.of[threadIdx.x]);
  if (!p.settled) tile::wait_for_previous();
  PairSchedule<C> list{reinterpret_cast<int32_t*>(base + at.before),
                       reinterpret_cast<uint16_t*>(base + at.expert), 0,
                       ceil_div(p.row_blocks, C::kRowBlocks)};
  list.make(p, reinterpret_cast<int32_t*>(base + at.scratch));
  tile::cluster_wait();  // the other block runs, and its barriers are there
  // Uniform, or the compiler expects lanes apart in all that follows: each copy would take three times as many instructions.
  const int warp = uniform(static_cast<int>(threadIdx.x / 32));
  if (warp < 4) {
    tile::keep_registers<C::kFetch>();
    if (warp == 0) {
      fetch_pair_weights(p, list, ring);
    } else if (C::kRows != XSource::kInOrder || warp == 1) {
      tile::wait_for_previous();
      if constexpr (C::kWholeBoxes) {
        if (warp == 1) {
          fetch_pair_boxes(p, gather, x, list, ring);
        } else if constexpr (C::kGathers) {
          gather_pair_rows<C>(p, gather, list, ring.gather_place(warp - 2), warp - 2);
        }
      } else if constexpr (C::kRows == XSource::kRowBoxes) {
        fetch_pair_tokens(p, x.of[0], list, ring, warp - 1);
      } else {
        fetch_pair_rows(p, list, ring);
      }
    }
  } else {
    tile::wait_for_previous();
    tile::release_next();
    tile::take_registers<C::kMultiply>();
    multiply_pairs<C, kGated>(p, list, ring);
  }
  // Nobody leaves while the other block may still arrive or copy here.
  __syncwarp();
  tile::cluster_publish();
  tile::cluster_wait();
}

// One launch, as launch_tiles() of a CTA pair.
template <class C>
Status launch_pairs(const TileCall& call) {
  const ExpertGemm::Problem& p = call.problem;
  const Queue& queue = queue_of(call.stream);
  ExpertMaps<C> x{};
  const Tensor rows_of_x =
      C::kGathers ? make_tensor(call.ordered, DType::kBF16, {p.rows, p.width}, Backend::kCuda) : call.args.x;
  for (int i = 0; C::kBoxes && i < C::kMaps; ++i) {
    const int rows = (C::kLeast + i * C::kFiner) / (C::kSharesX ? 2 : 1);
    SLUICE_TRY(tile::map_rows(x.of[i], rows_of_x, C::kWholeBoxes ? rows : 1));
  }
  const PairShared at = pair_shared<C>(static_cast<int>(p.experts));
  const Launch how{.grid = {static_cast<unsigned>(queue.sms / 2 * 2), 1, 1},
                   .block = {C::kThreads, 1, 1},
                   .shared_bytes = static_cast<size_t>(at.bytes),
                   .cluster = {2, 1, 1},
                   .cooperative = C::kGathers};
  PairGather gather;
  if constexpr (C::kGathers)
    gather = pair_gather<C>(p, call.args, call.ordered, queue.sms / 2, C::kRowsMost, C::kRowBlocks,
                            queue.grid_words);
  const auto kernel = is_gated(p.act) ? expert_gemm_pairs<C, true> : expert_gemm_pairs<C, false>;
  return launch(call.name, kernel, how, call.stream, expert_parameters(p, call.args), at, x, gather);
}

#endif

}  // namespace sluice::cuda
