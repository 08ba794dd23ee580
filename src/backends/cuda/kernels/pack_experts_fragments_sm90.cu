// Packing of experts into fragments and back: a block of threads has one row block of one expert and reads it as it
// lies, 32 bytes of eight rows in each instruction of a warp.
//
// Wins    always so far: bytes are moved once; four lanes exchange what they have read by shuffles.
// Loses   where one small expert is packed alone: a row block is one block of threads, too few of them to fill the card.
// Limits  none beyond the contract. Rows of bf16 that do not lie on 16 bytes go element by element.
// Source  original; the contract is ops/pack_experts.h, the layout ops/fragment_layout.h.
#include "backends/cuda/card.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "ops/pack_experts.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 512, kGroups = kThreads / static_cast<int>(kFragmentThreads);
constexpr int kRows = static_cast<int>(kFragmentRows);
constexpr int kScaleWords = kRows / 2;  // of a block: one for rows r and r + 8
constexpr unsigned kAllLanes = 0xffffffffu;

struct Parameters {
  PackExperts::Problem problem;
  uint8_t *rows, *row_scales, *packed, *packed_scales;
  int64_t row_bytes;
  int blocks;  // scales of a row
};

// One row block of one expert at work.
struct RowBlock {
  FragmentShape shape;
  int64_t block;
  uint8_t *rows, *row_scales;     // of the expert
  uint8_t *codes, *scales, *top;  // of the row block
};
__device__ __forceinline__ RowBlock row_block(const Parameters& p, bool fp4) {
  const PackExperts::Problem& q = p.problem;
  const FragmentShape shape = fragment_shape(q.features, q.gated, q.width);
  const int64_t expert = blockIdx.y, block = blockIdx.x, rows = q.gated ? 2 * q.features : q.features;
  uint8_t* scales = p.packed_scales + expert * shape.scale_bytes();
  return {shape,
          block,
          p.rows + expert * rows * p.row_bytes,
          p.row_scales + expert * rows * p.blocks,
          p.packed + expert * shape.code_bytes(fp4) + block * (shape.code_bytes(fp4) / shape.row_blocks),
          scales + block * shape.k_blocks * kFragmentScaleBytes,
          scales + shape.top_begin() + block * kFragmentRows};
}

// The checkpoint's rows of the block, or -1, and of each the largest scale and whether one of them is NaN.
struct Shared {
  int row[kRows];
  uint8_t top[kRows];
  bool nan[kRows];
};
__device__ __forceinline__ void find_rows(const Parameters& p, int64_t block, Shared* shared) {
  if (threadIdx.x < kRows)
    shared->row[threadIdx.x] = static_cast<int>(PackExperts::source_row(p.problem, {block, threadIdx.x}));
  __syncthreads();
}

// Eight neighbouring threads share a row.
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
    at.top[row] = static_cast<uint8_t>(top);
  }
  // What lies behind the last row block's tops.
  const int64_t used = at.shape.top_begin() + at.shape.row_blocks * kFragmentRows;
  if (at.block + 1 == at.shape.row_blocks && threadIdx.x < at.shape.scale_bytes() - used)
    at.top[kFragmentRows + threadIdx.x] = 0;
  __syncthreads();
}

// Word i of a block's 32 holds rows r and r + 8 of this r: bytes (r, group 0), (r + 8, group 0), (r, 1), (r + 8, 1).
__device__ __forceinline__ int row_of_word(int i) { return i / 8 * 16 + i % 8; }

__device__ void pack_scales(const Parameters& p, const RowBlock& at, const Shared& shared) {
  const int words = static_cast<int>(at.shape.k_blocks) * kScaleWords;
  for (int i = threadIdx.x; i < words; i += kThreads) {
    const int group = i / kScaleWords * 2, low = row_of_word(i % kScaleWords);
    uint32_t word = 0;
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      const int row = low + byte % 2 * 8, b = group + byte / 2, from = shared.row[row];
      if (from < 0 || b >= p.blocks) continue;
      const uint8_t scale = at.row_scales[static_cast<int64_t>(from) * p.blocks + b];
      word |= static_cast<uint32_t>(fragment_stored_scale(scale, shared.top[row])) << (8 * byte);
    }
    reinterpret_cast<uint32_t*>(at.scales)[i] = word;
  }
}

__device__ void unpack_scales(const Parameters& p, const RowBlock& at, const Shared& shared) {
  const int words = static_cast<int>(at.shape.k_blocks) * kScaleWords;
  for (int i = threadIdx.x; i < words; i += kThreads) {
    const int group = i / kScaleWords * 2, low = row_of_word(i % kScaleWords);
    const uint32_t word = reinterpret_cast<const uint32_t*>(at.scales)[i];
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      const int row = low + byte % 2 * 8, b = group + byte / 2, to = shared.row[row];
      if (to < 0 || b >= p.blocks) continue;
      const auto stored = static_cast<uint8_t>(word >> (8 * byte));
      const int scale = fragment_scale(stored, at.top[row]);
      at.row_scales[static_cast<int64_t>(to) * p.blocks + b] =
          static_cast<uint8_t>(stored == kFragmentNan ? 255 : scale);
    }
  }
}

// Bytes 0 to 3 of four registers as a matrix, turned: register i gets byte i of each.
__device__ __forceinline__ void turn_bytes(uint32_t (&v)[4]) {
  const uint32_t a = __byte_perm(v[0], v[1], 0x5140), b = __byte_perm(v[2], v[3], 0x5140);
  const uint32_t c = __byte_perm(v[0], v[1], 0x7362), d = __byte_perm(v[2], v[3], 0x7362);
  v[0] = __byte_perm(a, b, 0x5410), v[1] = __byte_perm(a, b, 0x7632);
  v[2] = __byte_perm(c, d, 0x5410), v[3] = __byte_perm(c, d, 0x7632);
}

// The same over four neighbouring lanes: lane i gets register i of each, in the order of lanes.
__device__ __forceinline__ void turn_lanes(uint32_t (&v)[4]) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const bool upper = (lane & bit) != 0;  // keeps v[i + bit], gives v[i]
      const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? v[i] : v[i + bit], bit);
      if (upper) {
        v[i] = got;
      } else {
        v[i + bit] = got;
      }
    }
  }
}

// Four bytes of a checkpoint, of the four pairs of a word, and the word.
__device__ __forceinline__ uint32_t word_of_bytes(uint32_t bytes) {
  uint32_t word = 0;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair)
    word |= fragment_word(fragment_pair_of(bytes >> (8 * pair) & 15, bytes >> (8 * pair + 4) & 15), pair);
  return word;
}
__device__ __forceinline__ uint32_t bytes_of_word(uint32_t word) {
  uint32_t bytes = 0;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const uint32_t bits = fragment_pair(word, pair);
    bytes |= (fragment_code_of(bits, 0) | fragment_code_of(bits, 1) << 4) << (8 * pair);
  }
  return bytes;
}

// One thread's part of a row pair: 8 bytes (16 of width) of row r and of row r + 8. Lane i of four has step i of a k
// block; what it holds of both rows, byte by byte, goes to the four lanes' words of that step.
struct Thread {
  int low;        // row inside the block; the other one is low + 8
  int step;       // of the four of a k block
  int64_t at[2];  // the rows' first byte, or -1
};
__device__ __forceinline__ Thread thread_of(const Parameters& p, const Shared& shared) {
  const int t = threadIdx.x % static_cast<int>(kFragmentThreads), low = t / 32 * 16 + t % 32 / 4;
  const auto place = [&](int row) {
    return shared.row[row] < 0 ? -1 : static_cast<int64_t>(shared.row[row]) * p.row_bytes;
  };
  return {low, t % 4, {place(low), place(low + 8)}};
}

__device__ void pack_codes(const Parameters& p, const RowBlock& at, const Shared& shared) {
  const Thread me = thread_of(p, shared);
  const bool nan[2] = {shared.nan[me.low], shared.nan[me.low + 8]};
  uint4* to = reinterpret_cast<uint4*>(at.codes) + threadIdx.x % kFragmentThreads;
  // The trip count is the same for all lanes of a warp: they exchange bytes.
#pragma unroll 4
  for (int kb = threadIdx.x / static_cast<int>(kFragmentThreads); kb < at.shape.k_blocks; kb += kGroups) {
    const int64_t byte = static_cast<int64_t>(kb) * 32 + me.step * 8;
    uint2 piece[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (me.at[i] >= 0 && byte < p.row_bytes)
        piece[i] = __ldcs(reinterpret_cast<const uint2*>(at.rows + me.at[i] + byte));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!nan[i] || byte >= p.row_bytes) continue;
      const int64_t row = shared.row[me.low + 8 * i];
      if (at.row_scales[row * p.blocks + 2 * kb + me.step / 2] == 255) piece[i] = {};
    }
    uint32_t v[4] = {piece[0].x, piece[1].x, piece[0].y, piece[1].y};
    turn_bytes(v);
    turn_lanes(v);
    to[static_cast<int64_t>(kb) * kFragmentThreads] = {word_of_bytes(v[0]), word_of_bytes(v[1]),
                                                       word_of_bytes(v[2]), word_of_bytes(v[3])};
  }
}

__device__ void unpack_codes(const Parameters& p, const RowBlock& at, const Shared& shared) {
  const Thread me = thread_of(p, shared);
  const uint4* from = reinterpret_cast<const uint4*>(at.codes) + threadIdx.x % kFragmentThreads;
#pragma unroll 4
  for (int kb = threadIdx.x / static_cast<int>(kFragmentThreads); kb < at.shape.k_blocks; kb += kGroups) {
    const int64_t byte = static_cast<int64_t>(kb) * 32 + me.step * 8;
    const uint4 words = __ldcs(from + static_cast<int64_t>(kb) * kFragmentThreads);
    uint32_t v[4] = {bytes_of_word(words.x), bytes_of_word(words.y), bytes_of_word(words.z),
                     bytes_of_word(words.w)};
    turn_lanes(v);
    turn_bytes(v);
    const uint2 piece[2] = {{v[0], v[2]}, {v[1], v[3]}};
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (me.at[i] >= 0 && byte < p.row_bytes)
        *reinterpret_cast<uint2*>(at.rows + me.at[i] + byte) = piece[i];
  }
}

template <bool kUnpack>
__global__ void __launch_bounds__(kThreads) pack_fp4(const __grid_constant__ Parameters p) {
  __shared__ Shared shared;
  tile::release_next();
  tile::wait_for_previous();
  const RowBlock at = row_block(p, true);
  find_rows(p, at.block, &shared);
  if constexpr (kUnpack) {
    unpack_scales(p, at, shared);
    unpack_codes(p, at, shared);
  } else {
    find_tops(p, at, &shared);
    pack_scales(p, at, shared);
    pack_codes(p, at, shared);
  }
}

constexpr int kChunk = 8;  // bf16 elements that stay together

// Chunks of eight; kWide: rows lie on 16 bytes and have whole chunks.
template <bool kUnpack, bool kWide>
__global__ void __launch_bounds__(kThreads) pack_bf16(const __grid_constant__ Parameters p) {
  __shared__ Shared shared;
  tile::release_next();
  tile::wait_for_previous();
  const RowBlock at = row_block(p, false);
  find_rows(p, at.block, &shared);
  constexpr int kChunks = kRows * static_cast<int>(kFragmentWidth) / kChunk;  // of a block
  const int width = static_cast<int>(p.problem.width);
  const int64_t chunks = at.shape.k_blocks * kChunks;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < chunks; i += kThreads) {
    const int row = static_cast<int>(i % kChunks) / (kChunks / kRows);
    const int k = static_cast<int>(i / kChunks * kFragmentWidth + i % (kChunks / kRows) * kChunk);
    const int there = shared.row[row] < 0 ? 0 : min(kChunk, width - k);
    uint16_t* chunk = reinterpret_cast<uint16_t*>(at.codes) + fragment_bf16_index(at.shape, {0, row}, k);
    uint16_t* plain =
        reinterpret_cast<uint16_t*>(at.rows) + static_cast<int64_t>(shared.row[row]) * width + k;
    if constexpr (kWide) {
      const uint4 zero = {};
      if (!kUnpack) *reinterpret_cast<uint4*>(chunk) = there > 0 ? *reinterpret_cast<uint4*>(plain) : zero;
      if (kUnpack && there > 0) *reinterpret_cast<uint4*>(plain) = *reinterpret_cast<uint4*>(chunk);
    } else {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        if (!kUnpack) chunk[j] = j < there ? plain[j] : uint16_t{0};
        if (kUnpack && j < there) plain[j] = chunk[j];
      }
    }
  }
}

Refusal supports(const PackExperts::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

Status enqueue(const PackExperts::Problem& p, const PackExperts::Args& a, Workspace, Stream stream);

}  // namespace

extern const Candidate<PackExperts> pack_experts_fragments_sm90 = {
    .name = "cuda.pack_experts.fragments_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<PackExperts>,
    .workspace_bytes = no_workspace<PackExperts>,
    .enqueue = enqueue,
    .batch_invariant = true,
    .alignment_bytes = 16,
};

namespace {

Status enqueue(const PackExperts::Problem& p, const PackExperts::Args& a, Workspace, Stream stream) {
  if (p.experts == 0) return {};
  const Parameters parameters{.problem = p,
                              .rows = a.rows.as<uint8_t>(),
                              .row_scales = a.row_scales.as<uint8_t>(),
                              .packed = a.packed.as<uint8_t>(),
                              .packed_scales = a.packed_scales.as<uint8_t>(),
                              .row_bytes = PackExperts::row_bytes(p),
                              .blocks = static_cast<int>(PackExperts::row_scale_bytes(p))};
  const bool wide = parameters.row_bytes % 16 == 0;
  const auto kernel = p.w == DType::kE2M1 ? (p.unpack ? pack_fp4<true> : pack_fp4<false>)
                      : p.unpack          ? (wide ? pack_bf16<true, true> : pack_bf16<true, false>)
                                          : (wide ? pack_bf16<false, true> : pack_bf16<false, false>);
  const Launch how{
      .grid = {static_cast<unsigned>(PackExperts::shape(p).row_blocks), static_cast<unsigned>(p.experts), 1},
      .block = {kThreads, 1, 1}};
  return launch(pack_experts_fragments_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
