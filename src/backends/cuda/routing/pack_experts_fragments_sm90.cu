// Packs experts into fragments and unpacks them. A CTA handles one row block of one expert.
// It reads the block in checkpoint order, 32 bytes of eight rows per warp instruction.
//
// Wins    always: it is the only kernel of PackExperts. It moves each byte once; four lanes exchange the bytes that they have read by shuffles.
// Loses   half of the bandwidth in e2m1 to bit permutations (2.2 TB/s of bytes read and written; bf16 moves 3.6 TB/s), and more
//         if one small expert is packed alone. CTAs of 128 and 512 threads were slower.
// Limits  none beyond the contract. Rows of bf16 that are not 16-byte aligned are moved element by element.
// Source  original; the contract is ops/pack_experts.h, the layout ops/fragment_layout.h.
#include "backends/cuda/card.h"
#include "ops/pack_experts.h"

namespace sluice::cuda {
namespace {

Refusal supports(const PackExperts::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

struct Launcher {
  static Status enqueue(const PackExperts::Problem&, const PackExperts::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<PackExperts> pack_experts_fragments_sm90 = {
    .name = "cuda.pack_experts.fragments_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<PackExperts>,
    .workspace_bytes = no_workspace<PackExperts>,
    .enqueue = enqueue_of<PackExperts, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include <algorithm>
#include "backends/cuda/launch.h"
#include "backends/cuda/routing/pack_experts.cuh"
#include "backends/cuda/routing/pack_scaled.cuh"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {
namespace {

using namespace pack;  // NOLINT: the shared parts of this kernel

// Finds each row's largest scale, and whether one of its scales is NaN. kShare adjacent threads handle a row.
__device__ void find_tops(const Parameters& p, const RowBlock& at, Shared* shared) {
  constexpr int kShare = kThreads / kRows;
  const int row = threadIdx.x / kShare, first = threadIdx.x % kShare;
  int top = 0, nan = 0;
  if (shared->row[row] >= 0) {
    const uint8_t* scales = at.row_scales + static_cast<int64_t>(shared->row[row]) * p.blocks;
    for (int b = first; b < p.blocks; b += kShare) {
      const int scale = scales[b];
      if (scale == 255) nan = 1;
      if (scale != 255) top = max(top, scale);
    }
  }
#pragma unroll
  for (int step = kShare / 2; step > 0; step /= 2) {
    top = max(top, __shfl_xor_sync(kAllLanes, top, step));
    nan |= __shfl_xor_sync(kAllLanes, nan, step);
  }
  if (first == 0) {
    shared->top[row] = static_cast<uint8_t>(top), shared->nan[row] = nan != 0;
    if (blockIdx.z == 0) at.top[row] = static_cast<uint8_t>(top);
  }
  clear_behind(p, at);
  __syncthreads();
}

// Moves the scales through shared memory, where they are in packed order, kTileBlocks k blocks at a time.
// So accesses to global memory are adjacent bytes of a row on one side and whole words on the other.
template <bool kUnpack>
__device__ void move_scales(const Parameters& p, const RowBlock& at, Shared* shared) {
  const int k_blocks = static_cast<int>(at.shape.k_blocks);
  for (int first = blockIdx.z * kTileBlocks; first < k_blocks; first += gridDim.z * kTileBlocks) {
    const int count = min(kTileBlocks, k_blocks - first);
    const auto words = [&](auto f) {
      for (int i = threadIdx.x; i < count * kTileWords; i += kThreads)
        f(reinterpret_cast<uint32_t*>(at.scales) + first * kTileWords + i,
          reinterpret_cast<uint32_t*>(shared->tile + i / kTileWords * kTileStride) + i % kTileWords);
    };
    // Calls f(byte of the tile, row, its byte in the checkpoint or null) for each byte.
    const auto bytes = [&](auto f) {
      for (int i = threadIdx.x; i < kRows * 2 * kTileBlocks; i += kThreads) {
        const int row = i / (2 * kTileBlocks), group = i % (2 * kTileBlocks), b = 2 * first + group;
        if (group >= 2 * count) continue;
        const int64_t place = fragment_scale_index({1, 1}, {0, row}, group % 2 * kMxBlock);
        const bool there = shared->row[row] >= 0 && b < p.blocks;
        f(shared->tile + group / 2 * kTileStride + place, row,
          there ? at.row_scales + static_cast<int64_t>(shared->row[row]) * p.blocks + b : nullptr);
      }
    };
    if constexpr (kUnpack) {
      words([](const uint32_t* global, uint32_t* tile) { *tile = *global; });
      __syncthreads();
      bytes([&](const uint8_t* tile, int row, uint8_t* scale) {
        if (!scale) return;
        const int value = *tile == kFragmentNan ? 255 : fragment_scale(*tile, at.top[row]);
        *scale = static_cast<uint8_t>(value);
      });
    } else {
      bytes([&](uint8_t* tile, int row, const uint8_t* scale) {
        *tile = scale ? fragment_stored_scale(*scale, shared->top[row]) : uint8_t{0};
      });
      __syncthreads();
      words([](uint32_t* global, const uint32_t* tile) { *global = *tile; });
    }
    __syncthreads();
  }
}

// Transposes the bytes of four registers: register i gets byte i of every register.
__device__ __forceinline__ void transpose_bytes(uint32_t (&v)[4]) {
  const uint32_t a = __byte_perm(v[0], v[1], 0x5140), b = __byte_perm(v[2], v[3], 0x5140);
  const uint32_t c = __byte_perm(v[0], v[1], 0x7362), d = __byte_perm(v[2], v[3], 0x7362);
  v[0] = __byte_perm(a, b, 0x5410), v[1] = __byte_perm(a, b, 0x7632);
  v[2] = __byte_perm(c, d, 0x5410), v[3] = __byte_perm(c, d, 0x7632);
}

// Transposes registers over four adjacent lanes: lane i gets register i of each lane, in lane order.
__device__ __forceinline__ void transpose_lanes(uint32_t (&v)[4]) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const bool upper = (lane & bit) != 0;  // keeps v[i + bit] and sends v[i]
      const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? v[i] : v[i + bit], bit);
      if (upper) {
        v[i] = got;
      } else {
        v[i + bit] = got;
      }
    }
  }
}

// A packed word holds four checkpoint bytes, one per pair of codes. Packing and
// unpacking are linear over xor, so they are defined by the images of single bits.
struct WordOfBytes {
  __host__ __device__ static constexpr uint32_t image(int bit) {
    const uint32_t code = 1u << bit % 4;
    return fragment_word(bit % 8 < 4 ? fragment_pair_of(code, 0) : fragment_pair_of(0, code), bit / 8);
  }
};
struct BytesOfWord {
  __host__ __device__ static constexpr uint32_t image(int bit) {
    uint32_t out = 0;
    for (int pair = 0; pair < 4; ++pair) {
      const uint32_t bits = fragment_pair(1u << bit, pair);
      out |= (fragment_code_of(bits, 0) | fragment_code_of(bits, 1) << 4) << (8 * pair);
    }
    return out;
  }
};
// Mask of the result bits that come from a bit `distance` positions lower.
template <class Map>
__host__ __device__ constexpr uint32_t moved_by(int distance) {
  uint32_t out = 0;
  for (int bit = 0; bit < 32; ++bit)
    if (bit + distance >= 0 && bit + distance < 32) out |= Map::image(bit) & 1u << (bit + distance);
  return out;
}
// Applies the map with shifts: one shift per distance that occurs, for all bits that move by that distance.
template <class Map, int kDistance = -31>
__device__ __forceinline__ uint32_t mapped(uint32_t in) {
  if constexpr (kDistance > 31) {
    return 0;
  } else {
    constexpr uint32_t kMask = moved_by<Map>(kDistance);
    const uint32_t more = mapped<Map, kDistance + 1>(in);
    if constexpr (kMask == 0) return more;
    if constexpr (kDistance < 0) return more ^ (in >> -kDistance & kMask);
    return more ^ (in << (kDistance & 31) & kMask);
  }
}
__device__ __forceinline__ uint32_t word_of_bytes(uint32_t bytes) { return mapped<WordOfBytes>(bytes); }
__device__ __forceinline__ uint32_t bytes_of_word(uint32_t word) { return mapped<BytesOfWord>(word); }

// A thread's part of a pair of rows: 8 bytes (16 codes along the width) of row r and of row r + 8. Lane i
// of four has step i of a k block. The bytes of both rows go to the words of that step in all four lanes.
struct Thread {
  int low;        // row in the row block; the other row is low + 8
  int step;       // one of the four steps of a k block
  int64_t at[2];  // byte offset of each row, or -1
};
__device__ __forceinline__ Thread thread_of(const Parameters& p, const Shared& shared) {
  const int t = threadIdx.x % kGroupThreads, low = t / 32 * 16 + t % 32 / 4;
  const auto place = [&](int row) {
    return shared.row[row] < 0 ? -1 : static_cast<int64_t>(shared.row[row]) * p.row_bytes;
  };
  return {low, t % 4, {place(low), place(low + 8)}};
}

__device__ void pack_codes(const Parameters& p, const RowBlock& at, const Shared& shared) {
  const Thread me = thread_of(p, shared);
  const bool nan[2] = {shared.nan[me.low], shared.nan[me.low + 8]};
  uint4* to = reinterpret_cast<uint4*>(at.codes) + threadIdx.x % kGroupThreads;
  const int k_blocks = static_cast<int>(at.shape.k_blocks), stride = stride_of(kGroups);
  const auto byte_of = [&](int kb) { return static_cast<int64_t>(kb) * 32 + me.step * 8; };
  // All lanes of a warp process the same k block, because they exchange bytes.
  for (int first = first_of(kThreads) / kGroupThreads; first < k_blocks; first += kAhead * stride) {
    uint2 part[kAhead][2] = {};
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int64_t byte = byte_of(first + j * stride);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (me.at[i] >= 0 && byte < p.row_bytes)
          part[j][i] = __ldcs(reinterpret_cast<const uint2*>(at.rows + me.at[i] + byte));
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int kb = first + j * stride;
      if (kb >= k_blocks) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!nan[i] || byte_of(kb) >= p.row_bytes) continue;
        const int64_t row = shared.row[me.low + 8 * i];
        if (at.row_scales[row * p.blocks + 2 * kb + me.step / 2] == 255) part[j][i] = {};
      }
      uint32_t v[4] = {part[j][0].x, part[j][1].x, part[j][0].y, part[j][1].y};
      transpose_bytes(v);
      transpose_lanes(v);
      to[static_cast<int64_t>(kb) * kGroupThreads] = {word_of_bytes(v[0]), word_of_bytes(v[1]),
                                                      word_of_bytes(v[2]), word_of_bytes(v[3])};
    }
  }
}

__device__ void unpack_codes(const Parameters& p, const RowBlock& at, const Shared& shared) {
  const Thread me = thread_of(p, shared);
  const uint4* from = reinterpret_cast<const uint4*>(at.codes) + threadIdx.x % kGroupThreads;
  const int k_blocks = static_cast<int>(at.shape.k_blocks), stride = stride_of(kGroups);
  for (int first = first_of(kThreads) / kGroupThreads; first < k_blocks; first += kAhead * stride) {
    uint4 words[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
      if (const int64_t kb = first + j * stride; kb < k_blocks) words[j] = __ldcs(from + kb * kGroupThreads);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int64_t kb = first + j * stride, byte = kb * 32 + me.step * 8;
      if (kb >= k_blocks) break;
      uint32_t v[4] = {bytes_of_word(words[j].x), bytes_of_word(words[j].y), bytes_of_word(words[j].z),
                       bytes_of_word(words[j].w)};
      transpose_lanes(v);
      transpose_bytes(v);
      const uint2 part[2] = {{v[0], v[2]}, {v[1], v[3]}};
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (me.at[i] >= 0 && byte < p.row_bytes)
          *reinterpret_cast<uint2*>(at.rows + me.at[i] + byte) = part[i];
    }
  }
}

template <bool kUnpack>
__global__ void __launch_bounds__(kThreads, 1) pack_fp4(const __grid_constant__ Parameters p) {
  __shared__ Shared shared;
  tile::release_next();
  tile::wait_for_previous();
  const RowBlock at = row_block(p);
  find_rows(p, at.block, &shared);
  if constexpr (kUnpack) {
    move_scales<true>(p, at, &shared);
    unpack_codes(p, at, shared);
  } else {
    find_tops(p, at, &shared);
    move_scales<false>(p, at, &shared);
    pack_codes(p, at, shared);
  }
}

// Chunk: what a thread moves at once. Eight bf16 if rows are aligned to 16 bytes and are whole chunks, otherwise one.
template <bool kUnpack, class Chunk>
__global__ void __launch_bounds__(kThreads, 1) pack_bf16(const __grid_constant__ Parameters p) {
  __shared__ Shared shared;
  tile::release_next();
  tile::wait_for_previous();
  const RowBlock at = row_block(p);
  find_rows(p, at.block, &shared);
  constexpr int kElements = sizeof(Chunk) / sizeof(uint16_t);
  constexpr int kRowChunks = static_cast<int>(kFragmentWidth) / kElements, kBlockChunks = kRows * kRowChunks;
  const int64_t chunks = at.shape.k_blocks * kBlockChunks;
#pragma unroll 4
  for (int64_t i = first_of(kThreads); i < chunks; i += stride_of(kThreads)) {
    const int row = static_cast<int>(i) % kBlockChunks / kRowChunks;
    const int64_t k = i / kBlockChunks * kFragmentWidth + i % kRowChunks * kElements;
    const bool there = shared.row[row] >= 0 && k < p.problem.width;
    auto* packed = reinterpret_cast<Chunk*>(reinterpret_cast<uint16_t*>(at.codes) +
                                            fragment_bf16_index(at.shape, {0, row}, k));
    auto* plain = reinterpret_cast<Chunk*>(at.rows + shared.row[row] * p.row_bytes) + k / kElements;
    if (!kUnpack) *packed = there ? *plain : Chunk{};
    if (kUnpack && there) *plain = *packed;
  }
}

Status Launcher::enqueue(const PackExperts::Problem& p, const PackExperts::Args& a, Workspace,
                         Stream stream) {
  if (p.experts == 0) return {};
  const Parameters parameters{.problem = p,
                              .rows = a.rows.as<uint8_t>(),
                              .row_scales = a.row_scales.as<uint8_t>(),
                              .packed = a.packed.as<uint8_t>(),
                              .packed_scales = a.packed_scales.as<uint8_t>(),
                              .row_bytes = PackExperts::row_bytes(p),
                              .blocks = static_cast<int>(PackExperts::row_scale_bytes(p))};
  const bool wide = parameters.row_bytes % 16 == 0;
  const WeightFormat format = PackExperts::format(p);
  if (format.scaled() && format != WeightFormat{DType::kE2M1})
    return launch(pack_experts_fragments_sm90.name, p.unpack ? unpack_scaled : pack_scaled,
                  {.grid = {static_cast<unsigned>(PackExperts::shape(p).row_blocks),
                            static_cast<unsigned>(p.experts), 1},
                   .block = {kThreads, 1, 1}},
                  stream, parameters);
  const auto kernel = format.scaled() ? (p.unpack ? pack_fp4<true> : pack_fp4<false>)
                      : p.unpack      ? (wide ? pack_bf16<true, uint4> : pack_bf16<true, uint16_t>)
                                      : (wide ? pack_bf16<false, uint4> : pack_bf16<false, uint16_t>);
  // If there are few row blocks, several CTAs divide each, until there are about as many threads as an H200 runs at once.
  constexpr int64_t kBlocksWanted = 2048 / kThreads * 132;
  const FragmentShape shape = PackExperts::shape(p);
  const int64_t blocks = shape.row_blocks * p.experts;
  const int64_t share = std::clamp<int64_t>(kBlocksWanted / blocks, 1, shape.k_blocks / kGroups + 1);
  const Launch how{.grid = {static_cast<unsigned>(shape.row_blocks), static_cast<unsigned>(p.experts),
                            static_cast<unsigned>(share)},
                   .block = {kThreads, 1, 1}};
  return launch(pack_experts_fragments_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
