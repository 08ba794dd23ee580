// The CTA-pair kernel of the expert GEMMs in bf16, for many rows an expert. A pair is a cluster of two CTAs
// on two SMs. Pairs walk a list of tiles, each CTA takes half of a tile, and what both multiply comes from
// the L2 once (docs/notes/cuda-bf16-experts.md).
//
// Either the pair shares rows of x, and each CTA has its own row blocks; or it shares weights, and each CTA
// has its own rows of x. Each CTA copies half of what is shared into both. So a stage is empty when both CTAs
// have read it: consumer warps release it in both. There are two consumer warpgroups. Warps of a third are
// producers (pairs_producer.cuh), and others of it may gather rows of tokens into order
// (producer_gather.cuh).
#pragma once
#include "backends/cuda/experts/epilogue_rows.cuh"
#include "backends/cuda/experts/pairs_producer.cuh"

namespace sluice::cuda {

#ifdef __CUDACC__

// Mainloop of a tile, N >= its rows. Releases its stages.
template <int N, class C>
__device__ __forceinline__ void multiply_pair(float (&d)[C::kBlocks][C::kTileN / 2],
                                              const ExpertParameters& p, PairRing<C>& ring, int group) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  uint32_t previous = 0;  // stage
#pragma unroll 1
  for (int k = 0; k < p.k_blocks; ++k) {
    ring.wait_full();
    if constexpr (!C::kBoxes) tile::fence_for_async();
    // Uniform, so that descriptors are computed in uniform registers.
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
    ring.release(previous, k > 0);  // the products of the previous stage are done
    previous = ring.place.stage;
    ring.place.step(stages);
  }
  tile::wait_groups<0>();
#pragma unroll
  for (int b = 0; b < C::kBlocks; ++b) tile::hold(d[b]);
  ring.release(previous);
}

// Calls multiply_pair with the least N between kLeast and kMost that holds the tile's rows, by bisection: a
// chain of that many branches takes long where sums are short.
template <int kLeast, int kMost, class C>
__device__ __forceinline__ void multiply_columns(float (&d)[C::kBlocks][C::kTileN / 2],
                                                 const ExpertParameters& p, int rows, PairRing<C>& ring,
                                                 int group) {
  if constexpr (kLeast == kMost) {
    multiply_pair<kMost>(d, p, ring, group);
  } else {
    constexpr int kMiddle = kLeast + (kMost - kLeast) / C::kStepN / 2 * C::kStepN;
    if (rows <= kMiddle) {
      multiply_columns<kLeast, kMiddle>(d, p, rows, ring, group);
    } else {
      multiply_columns<kMiddle + C::kStepN, kMost>(d, p, rows, ring, group);
    }
  }
}

// Multiplies one tile of which this warpgroup has row blocks, and writes its rows of y.
template <class C, bool kGated>
__device__ __forceinline__ void multiply_pair_tile(const ExpertParameters& p, const ExpertTile& t,
                                                   int first_block, PairRing<C>& ring) {
  const int all_warps = uniform(static_cast<int>(threadIdx.x / 32)), warp = all_warps % 4,
            group = all_warps / 4 - 1;
  float d[C::kBlocks][C::kTileN / 2];
#pragma unroll
  for (int b = 0; b < C::kBlocks; ++b)
#pragma unroll
    for (float& sum : d[b]) sum = 0;
  multiply_columns<C::kLeastN, C::kTileN>(d, p, t.rows, ring, group);
  EpilogueRows<kGated> epilogue[C::kBlocks];
  read_rows(epilogue, p, t.expert, first_block, warp);
  const tile::ActivationValues act = activation_of(p, t.expert);
  const uint32_t staging = ring.base + ring.at.staging + static_cast<uint32_t>(group * C::kStagedBytes);
  const int blocks = min(C::kBlocks, p.row_blocks - first_block);
  if (!has_epilogue_by_rows<kGated>(p, act, first_block + blocks - 1)) {
    static_assert(C::kStagedBytes >= StraightEpilogue<kGated>::kStagingBytes);
    if (has_straight_epilogue<kGated>(p, act)) {
      epilogue_straight<C::kTileN, C::kBlocks, kGated>(d, p, act, t, first_block, epilogue,
                                                       StraightEpilogue<kGated>(staging, group));
    } else {
      epilogue_general<C::kTileN, C::kBlocks, kGated>(d, p, act, t, first_block, epilogue);
    }
    return;
  }
  const StagedRows staged{staging, warp, 1 + group};
#pragma unroll
  for (int b = 0; b < C::kBlocks; ++b) {
    if (b >= blocks) break;
    const auto write = [&]<Activation kAct>() {
      epilogue_by_rows<C::kTileN, kAct, C::kStagedBytes>(d[b], p, t, first_block + b, epilogue[b].bias,
                                                         staged);
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

// Releases the stages of a tile of which this warpgroup has nothing.
template <class C>
__device__ __forceinline__ void skip_tile(const ExpertParameters& p, PairRing<C>& ring) {
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
    const uint4 tile_words = tile::load_shared(ring.tile_at(count));
    const ExpertTile t{uniform(static_cast<int>(tile_words.x)), uniform(static_cast<int>(tile_words.y)),
                       uniform(static_cast<int>(tile_words.z)), uniform(static_cast<int>(tile_words.w))};
    const int first_block = first_of_group<C>(t.first_block, group, static_cast<int>(ring.rank));
    if (t.rows > 0 && first_block < p.row_blocks) {
      multiply_pair_tile<C, kGated>(p, t, first_block, ring);
    } else {
      skip_tile(p, ring);
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
    tile::barrier_init(reinterpret_cast<uint64_t*>(base + at.full) + threadIdx.x, C::kFullArrivals);
    tile::barrier_init(reinterpret_cast<uint64_t*>(base + at.empty) + threadIdx.x, 2 * C::kGroups * 4);
    tile::barrier_visible();
  }
  if (C::kGathers && threadIdx.x == 0) {
    tile::store_shared_word(ring.base + at.waves_begun, 0);
    for (int i = 0; i < PairGather::kWarps; ++i)
      tile::barrier_init(reinterpret_cast<uint64_t*>(base + at.gather_full) + i, 1);
    tile::barrier_visible();
  }
  __syncwarp();
  tile::cluster_arrive();
  if (C::kBoxes && threadIdx.x < C::kMaps) tile::prefetch_map(x.of[threadIdx.x]);
  if (!p.settled) tile::wait_for_previous();
  PairSchedule<C> list{reinterpret_cast<int32_t*>(base + at.before),
                       reinterpret_cast<uint16_t*>(base + at.expert), 0,
                       ceil_div(p.row_blocks, C::kTileBlocks)};
  list.make(p, reinterpret_cast<int32_t*>(base + at.scratch));
  tile::cluster_wait();  // the peer CTA runs, and its barriers are initialised
  // Uniform: otherwise the compiler expects divergent lanes below, and each copy takes three times as many
  // instructions.
  const int warp = uniform(static_cast<int>(threadIdx.x / 32));
  if (warp < 4) {
    tile::keep_registers<C::kProducerRegisters>();
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
    tile::take_registers<C::kConsumerRegisters>();
    multiply_pairs<C, kGated>(p, list, ring);
  }
  // No CTA leaves while its peer may still arrive or copy here.
  __syncwarp();
  tile::cluster_publish();
  tile::cluster_wait();
}

// Enqueues one launch, as launch_tiles() does for CTA pairs.
template <class C>
Status launch_pairs(const TileCall& call) {
  const ExpertGemm::Problem& p = call.problem;
  const Queue& queue = queue_of(call.stream);
  ExpertMaps<C> x{};
  const Tensor rows_of_x =
      C::kGathers ? make_tensor(call.ordered, DType::kBF16, {p.rows, p.width}, Backend::kCuda) : call.args.x;
  for (int i = 0; C::kBoxes && i < C::kMaps; ++i) {
    const int rows = (C::kLeastN + i * C::kStepN) / (C::kSharesX ? 2 : 1);
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
    gather = pair_gather<C>(p, call.args, call.ordered, queue.sms / 2, C::kRowsMost, C::kTileBlocks,
                            queue.grid_words);
  const auto kernel = is_gated(p.act) ? expert_gemm_pairs<C, true> : expert_gemm_pairs<C, false>;
  return launch(call.name, kernel, how, call.stream, expert_parameters(p, call.args), at, x, gather);
}

#endif

}  // namespace sluice::cuda
