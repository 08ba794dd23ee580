// Shared by the expert GEMM kernels: parameters, the list of tiles that a grid loops over, tickets, and the copies of rows of x by threads.
#pragma once
#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "backends/cuda/experts/cost/config.h"
#include "backends/cuda/tile/activation.cuh"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/shared.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/warp.cuh"
#include "ops/expert_gemm.h"
#include "ops/fragment_layout.h"

namespace sluice::cuda {

// Parameters of ops/expert_gemm.h as a kernel gets them, for weights in the layout `fragments`. If x is in FP8, x, x_stride and
// width describe its rows as bf16, that is in units of two bytes.
struct ExpertParameters {
  const __nv_bfloat16* x = nullptr;
  const uint8_t *w = nullptr, *w_scale = nullptr;
  const void* bias = nullptr;
  const float *act_params = nullptr, *weights = nullptr;
  const int32_t *row_begin = nullptr, *row_count = nullptr, *order = nullptr;
  const float* x_scale = nullptr;  // scales of the rows of an x in FP8
  void* y = nullptr;
  int64_t x_stride = 0, y_stride = 0, w_bytes = 0, scale_bytes = 0, top_begin = 0;
  int experts = 0, features = 0, width = 0, slots = 0;
  int row_blocks = 0, k_blocks = 0;
  int x_wide = 0;  // rows of x start at multiples of 16 bytes
  int y_wide = 0;  // rows of y start at multiples of 16 bytes, and features is a multiple of 8
  int bias_f32 = 0, y_f32 = 0;
  int settled = 0;
  // Several launches may divide the experts by row count (tile_configs.cc). This launch computes the experts
  // with rows_min to rows_max rows. follows: the previous launch computes other experts of the same product.
  int rows_min = 1, rows_max = INT32_MAX, follows = 0;
  uint32_t* tickets = nullptr;  // this launch's ticket counter: zero before and after the launch
  // 1 / (tiles that run at once); used to cut the tiles of the last round (TileSchedule). 0: no tile is cut.
  float cut_for = 0;
  ExpertOrder expert_order = ExpertOrder::kGiven;
  GateOrder gate_order = GateOrder::kInterleaved;
  tile::ActivationValues act;
};

// Sets all fields if the layout is kFragments; for other layouts, all but w_bytes
// and scale_bytes. x may be f32; the kernel that accepts f32 casts the pointer.
ExpertParameters expert_parameters(const ExpertGemm::Problem& problem, const ExpertGemm::Args& args);

#ifdef __CUDACC__

__device__ __forceinline__ int ceil_div(int n, int by) { return (n + by - 1) / by; }

using tile::uniform;

// True if this launch computes an expert with `rows` rows.
__device__ __forceinline__ bool serves(const ExpertParameters& p, int rows) {
  return rows > 0 && rows >= p.rows_min && rows <= p.rows_max;
}

// True if this launch, which follows another one, computes any expert. Called by all threads of the CTA.
__device__ __forceinline__ bool serves_any(const ExpertParameters& p) {
  const int tid = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  int any = 0;
#pragma unroll 1
  for (int base = 0; base < p.experts; base += threads)
    any |= base + tid < p.experts ? serves(p, p.row_count[base + tid]) : 0;
  return uniform(__syncthreads_or(any));
}

// One tile of the list: a range of row blocks of one expert's weights x some of the expert's rows.
struct ExpertTile {
  int expert, first_block, row, rows;  // row: the first, as a row of y
  int end_block = INT32_MAX;           // the end of its row blocks, or past the expert's last
  int index = 0;                       // its index in the list, if the kernel needs it
};

// The tiles of all experts that this launch computes, ordered by expert. Within an expert, tiles with the same weights are adjacent.
struct PlainSchedule {
  // shared memory, [experts + 1]: the number of tiles before each expert, and in total
  const int32_t* before = nullptr;
  int m_tiles = 0, blocks_each = 0, rows_max = 0;
  int unit = 8;  // rows of tiles are multiples of this, except in an expert's last tile; divides rows_max

  __device__ __forceinline__ int tiles_of(const ExpertParameters& p, int rows) const {
    return serves(p, rows) ? ceil_div(rows, rows_max) * m_tiles : 0;
  }
  __device__ __forceinline__ int tiles(const ExpertParameters& p) const { return uniform(before[p.experts]); }
  // The tile at `index` < tiles(). Called by whole warps.
  __device__ __forceinline__ ExpertTile at(const ExpertParameters& p, int index) const {
    int low = 0, high = p.experts;  // before[low] <= index < before[high]
#pragma unroll 1
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (before[middle] <= index ? low : high) = middle;
    }
    const int rows = __ldg(p.row_count + low), within = index - before[low];
    const int tiles = ceil_div(rows, rows_max), units = ceil_div(rows, unit), tile = within % tiles;
    // the first `more` tiles have one unit more than the others
    const int each = units / tiles, more = units % tiles;
    const int first = (tile * each + min(tile, more)) * unit;
    return {uniform(low), uniform(within / tiles * blocks_each), uniform(__ldg(p.row_begin + low) + first),
            uniform(min((each + (tile < more)) * unit, rows - first))};
  }
};

// Fills `before`, the table of `list`. Called by all threads of the CTA. scratch: shared memory, one word per warp.
__device__ __forceinline__ void count_expert_tiles(const ExpertParameters& p, const PlainSchedule& list,
                                                   int32_t* before, int32_t* scratch) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int threads = static_cast<int>(blockDim.x);
  int so_far = 0;
#pragma unroll 1
  for (int base = 0; base < p.experts; base += threads) {
    const int e = base + tid;
    const int tiles = e < p.experts ? list.tiles_of(p, p.row_count[e]) : 0;
    int up_to = tiles;
    tile::add_lanes_before(lane, up_to);
    if (lane == 31) scratch[warp] = up_to;
    __syncthreads();
    int all = 0;
#pragma unroll 1
    for (int w = 0; w < threads / 32; ++w) {
      if (w < warp) up_to += scratch[w];
      all += scratch[w];
    }
    if (e < p.experts) before[e] = so_far + up_to - tiles;
    so_far += all;
    __syncthreads();
  }
  if (tid == 0) before[p.experts] = so_far;
  __syncthreads();
}

// Tickets for the tiles after the first tile of each CTA, in list order. They balance the load: SMs
// differ in speed, tiles differ in width, and CTAs start late while the previous launch still occupies
// their SMs. A warp takes one ticket per tile; the warp that takes the last ticket resets the counter
// to zero. kAll: first tiles have tickets too, so that the CTAs that run first get the first tiles.
template <bool kAll = false>
struct Tickets {
  uint32_t* counter;
  int all;  // number of tiles

  // Takes a ticket. Called by a whole warp. Branch-free, like all code between copies. Only tile_of() waits for the result.
  __device__ __forceinline__ uint32_t take() const {
    uint32_t ticket;
    asm volatile(
        "{\n"
        ".reg .pred first;\n"
        ".reg .b32 lane;\n"
        "mov.u32 lane, %%laneid;\n"
        "setp.eq.u32 first, lane, 0;\n"
        "mov.u32 %0, 0;\n"
        "@first atom.global.relaxed.gpu.add.u32 %0, [%1], 1;\n"
        "}"
        : "=r"(ticket)
        : "l"(counter)
        : "memory");
    return ticket;
  }
  // The index of the tile for a ticket from take(). If it is `all` or more, no tile is left.
  __device__ __forceinline__ int tile_of(uint32_t taken) const {
    const int ticket = uniform(static_cast<int>(taken));
    asm volatile(
        "{\n"
        ".reg .pred last;\n"
        "setp.eq.s32 last, %1, %2;\n"
        "@last st.global.u32 [%0], 0;\n"
        "}" ::"l"(counter),
        "r"(ticket), "r"(all - 1 + (kAll ? static_cast<int>(gridDim.x) : 0))
        : "memory");
    return ticket + (kAll ? 0 : static_cast<int>(gridDim.x));
  }
};

// Copies rows of x at any address to swizzled tiles in shared memory (swizzle.cuh), 16 bytes per thread at a time. Each of the
// kWarps warps copies parts of four rows at once. kMax: rows of a tile. The addresses of a thread's rows stay in registers.
template <int kMax, int kWarps>
struct RowFetch {
  static constexpr int kApart = 4 * kWarps;  // distance between consecutive rows of a thread
  static constexpr int kEach = (kMax + kApart - 1) / kApart;
  static constexpr int kXBytes = kMax * tile::kSwizzledRowBytes;  // per k block

  // offset of a row from p.x: in 16-byte chunks if rows are aligned, otherwise in elements
  uint32_t place[kEach];
  // offset in a tile of the thread's first row; at[1]: of the row four below, minus four rows
  uint32_t at[2];
  int first, chunk, rows;

  // tid: index among the 32 * kWarps threads.
  __device__ __forceinline__ explicit RowFetch(int tid) : first(tid / 8), chunk(tid % 8), rows(0) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      at[i] = tile::swizzled(static_cast<uint32_t>(first + 4 * i), static_cast<uint32_t>(chunk * 16)) -
              4 * i * tile::kSwizzledRowBytes;
  }
  // Sets the rows to copy to those of tile t. Called by whole warps, all with the same tile.
  __device__ __forceinline__ void begin(const ExpertParameters& p, const ExpertTile& t) {
    begin(p, t.rows, [&](int i) { return p.slots > 0 ? p.order[t.row + i] / p.slots : t.row + i; });
  }
  // x_row(i): the row of x for row i of the tile.
  template <class XRow>
  __device__ __forceinline__ void begin(const ExpertParameters& p, int tile_rows, XRow x_row) {
    rows = tile_rows;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i * kApart >= rows) break;
      // Threads without a row copy the last row again, because a branch per thread would cost more.
      const int64_t from = x_row(min(first + i * kApart, rows - 1));
      place[i] = static_cast<uint32_t>(from * (p.x_wide ? p.x_stride / 8 : p.x_stride));
    }
  }
  // Copies k blocks k to k + kSteps - 1 to `to`; columns past the width become zeros.
  template <int kSteps>
  __device__ __forceinline__ void copy(const ExpertParameters& p, uint32_t to, int k) const {
    if (p.x_wide && (k + kSteps) * static_cast<int>(kFragmentWidth) <= p.width) {
      const auto* x = reinterpret_cast<const std::byte*>(p.x + k * kFragmentWidth + chunk * 8);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (i * kApart >= rows) break;
        if (beyond(i)) continue;
        const std::byte* from = x + static_cast<uint64_t>(place[i]) * 16;
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
          tile::copy_16(row_at(to, i) + s * kXBytes, from + s * tile::kSwizzledRowBytes);
      }
      return;
    }
#pragma unroll 1
    for (int s = 0; s < kSteps; ++s) copy_tail(p, to + s * kXBytes, k + s);
  }

 private:
  // True if the thread's row i is outside the tile.
  __device__ __forceinline__ bool beyond(int i) const {
    return (i + 1) * kApart > kMax && first + i * kApart >= kMax;
  }
  __device__ __forceinline__ uint32_t row_at(uint32_t to, int i) const {
    return to + at[i * kApart / 4 % 2] + static_cast<uint32_t>(i * kApart * tile::kSwizzledRowBytes);
  }
  // Copies one k block that may extend past the width, or whose rows are not aligned.
  __device__ __forceinline__ void copy_tail(const ExpertParameters& p, uint32_t to, int k) const {
    const int column = k * static_cast<int>(kFragmentWidth) + chunk * 8;
    const bool in = column < p.width;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i * kApart >= rows) break;
      if (beyond(i)) continue;
      if (p.x_wide) {
        tile::copy_16(row_at(to, i), in ? p.x + static_cast<uint64_t>(place[i]) * 8 + column : p.x, in);
        continue;
      }
      const auto* numbers = reinterpret_cast<const uint16_t*>(p.x) + place[i] + column;
      uint32_t packed[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        packed[j] = in ? numbers[2 * j] | static_cast<uint32_t>(numbers[2 * j + 1]) << 16 : 0;
      tile::store_shared(row_at(to, i), make_uint4(packed[0], packed[1], packed[2], packed[3]));
    }
  }
};
// Arrives at `barrier` once this thread's copies to a stage are complete.
__device__ __forceinline__ void arrive_with_x(const ExpertParameters& p, uint32_t barrier) {
  if (p.x_wide) {
    tile::arrive_after_copies(barrier);
  } else {
    tile::barrier_arrive(barrier);
  }
}

__device__ __forceinline__ float load_bias(const ExpertParameters& p, int64_t at) {
  return p.bias_f32 ? static_cast<const float*>(p.bias)[at]
                    : __bfloat162float(static_cast<const __nv_bfloat16*>(p.bias)[at]);
}

__device__ __forceinline__ tile::ActivationValues activation_of(const ExpertParameters& p, int expert) {
  if (!p.act_params) return p.act;
  const float* values = p.act_params + 3 * expert;
  if (p.act.which == Activation::kSwiGlu) return p.act;  // it has no parameters
  return {p.act.which, values[0], values[1], values[2]};
}

#endif

}  // namespace sluice::cuda
