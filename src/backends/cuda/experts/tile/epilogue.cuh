// Epilogue of an expert GEMM: converts the sums of a warpgroup to rows of y.
//
// A thread holds sums of two weight rows, 8 apart (tile/wgmma.cuh). If gated, these are gate and up of one feature, so bias and activation are
// applied in registers. Then the bf16 results are transposed in squares of 8 features x 8 columns. Usually the transpose is through shared
// memory, from where the warpgroup writes segments of rows of y (StraightEpilogue); in all other cases it is within the warp (EpilogueRows).
#pragma once
#include "backends/cuda/experts/codes.cuh"
#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/tile/activation.cuh"
#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda {

#ifdef __CUDACC__

// Transposes an 8 x 8 square of bf16. Lane l holds elements 2 * (l % 4) and 2 * (l % 4) + 1 of row l / 4, before and after. Called by whole warps.
__device__ __forceinline__ uint32_t transposed(uint32_t two) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(two));
  return out;
}

// Copies sums kEach * c to kEach * (c + 1) - 1 of row block b to `out`; zeros past N /
// 2. A switch makes register indices constant without repeating the code that follows.
template <int N, int kBlocks, int kEach>
__device__ __forceinline__ void pick_sums(const float (&d)[kBlocks][N / 2], int b, int c,
                                          float (&out)[kEach]) {
  constexpr int kSteps = (N / 2 + kEach - 1) / kEach;
  static_assert(kBlocks * kSteps <= 48, "cases below");
#pragma unroll
  for (int i = 0; i < kEach; ++i) out[i] = 0;
  switch (b * kSteps + c) {
#define SLUICE_CASE(I)                                                                               \
  case I:                                                                                            \
    if constexpr (I < kBlocks * kSteps) {                                                            \
      _Pragma("unroll") for (int i = 0; i < kEach; ++i) if (I % kSteps * kEach + i < N / 2) out[i] = \
          d[I / kSteps][I % kSteps * kEach + i];                                                     \
    }                                                                                                \
    break;
    SLUICE_CASE(0)
    SLUICE_CASE(1)
    SLUICE_CASE(2)
    SLUICE_CASE(3)
    SLUICE_CASE(4)
    SLUICE_CASE(5)
    SLUICE_CASE(6)
    SLUICE_CASE(7)
    SLUICE_CASE(8)
    SLUICE_CASE(9)
    SLUICE_CASE(10)
    SLUICE_CASE(11)
    SLUICE_CASE(12)
    SLUICE_CASE(13)
    SLUICE_CASE(14)
    SLUICE_CASE(15)
    SLUICE_CASE(16)
    SLUICE_CASE(17)
    SLUICE_CASE(18)
    SLUICE_CASE(19)
    SLUICE_CASE(20)
    SLUICE_CASE(21)
    SLUICE_CASE(22)
    SLUICE_CASE(23)
    SLUICE_CASE(24)
    SLUICE_CASE(25)
    SLUICE_CASE(26)
    SLUICE_CASE(27)
    SLUICE_CASE(28)
    SLUICE_CASE(29)
    SLUICE_CASE(30)
    SLUICE_CASE(31)
    SLUICE_CASE(32)
    SLUICE_CASE(33)
    SLUICE_CASE(34)
    SLUICE_CASE(35)
    SLUICE_CASE(36)
    SLUICE_CASE(37)
    SLUICE_CASE(38)
    SLUICE_CASE(39)
    SLUICE_CASE(40)
    SLUICE_CASE(41)
    SLUICE_CASE(42)
    SLUICE_CASE(43)
    SLUICE_CASE(44)
    SLUICE_CASE(45)
    SLUICE_CASE(46)
    SLUICE_CASE(47)
#undef SLUICE_CASE
    default:
      break;
  }
}

// General epilogue of a lane's two rows in a row block.
template <bool kGated>
struct EpilogueRows {
  // Columns per step; a thread then has four results. More would not fit into registers together with the sums.
  static constexpr int kColumns = kGated ? 16 : 8;
  static constexpr int kGroups = kColumns / 8, kSums = kColumns / 2, kOuts = 4;

  int feature;  // of the first row; if not gated, the second row is feature + 8
  float factor[2], bias[2];

  // Writes columns `column` to column + kColumns - 1, given their sums. Columns from t.rows on do not exist. Called by whole warps.
  __device__ __forceinline__ void write(const ExpertParameters& p, const tile::ActivationValues& act,
                                        const ExpertTile& t, int column, const float (&sums)[kSums]) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    // Results for column 8 g + 2 (lane % 4) + i: if gated, gate x[2 g + i] and up u[2 g + i]; otherwise features x[4 g + i] and x[4 g + 2 + i].
    float x[kOuts], u[kGated ? kOuts : 1];
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float in = 1;
        if (p.weights) {
          const int at = column + 8 * g + 2 * (lane % 4) + i;
          if (at < t.rows) in = p.weights[p.order[t.row + at]];
        }
        const float first = fmaf(sums[4 * g + i] * factor[0], in, bias[0]);
        const float second = fmaf(sums[4 * g + 2 + i] * factor[1], in, bias[1]);
        if constexpr (kGated) {
          x[2 * g + i] = first, u[2 * g + i] = second;
        } else {
          x[4 * g + i] = first, x[4 * g + 2 + i] = second;
        }
      }
    if constexpr (kGated) {
      tile::activate_gated(act, x, u);
    } else {
      tile::activate_plain(act, x);
    }
    constexpr int kSquares = kGated ? 1 : 2;
    if (p.y_f32) {
      float* y = static_cast<float*>(p.y) + feature;
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
#pragma unroll
        for (int q = 0; q < kSquares; ++q)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int at = column + 8 * g + 2 * (lane % 4) + i;
            if (at < t.rows && feature + 8 * q < p.features)
              y[(t.row + at) * p.y_stride + 8 * q] = x[2 * (kSquares * g + q) + i];
          }
      return;
    }
    constexpr int kWords = kOuts / 2;
    uint32_t out[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const __nv_bfloat162 both = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
      out[i] = transposed(*reinterpret_cast<const uint32_t*>(&both));
    }
    const int from = feature - lane / 4 + 2 * (lane % 4);  // this lane's first feature after the transpose
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int at = column + 8 * (i / kSquares) + lane / 4, first = from + 8 * (i % kSquares);
      if (at >= t.rows) continue;
      __nv_bfloat16* y = static_cast<__nv_bfloat16*>(p.y) + (t.row + at) * p.y_stride + first;
      if (p.y_wide && first + 1 < p.features) {
        *reinterpret_cast<uint32_t*>(y) = out[i];
        continue;
      }
      const auto halves = *reinterpret_cast<const __nv_bfloat162*>(&out[i]);
      if (first < p.features) y[0] = halves.x;
      if (first + 1 < p.features) y[1] = halves.y;
    }
  }
};

// Index of a feature's bias in the biases of all experts. For a padding feature, the index of the last feature.
template <bool kGated>
__device__ __forceinline__ int64_t bias_index(const ExpertParameters& p, int expert, int feature, bool up) {
  const int real = min(feature, p.features - 1);
  return static_cast<int64_t>(expert) * (kGated ? 2 * p.features : p.features) +
         (kGated ? gated_row(p.gate_order, p.features, real, up) : real);
}

// Factors and biases of the rows of kBlocks row blocks, copied to shared memory during the mainloop. They
// cannot be kept in registers: ptxas moves some of the loads before the mainloop and waits for memory there,
// which costs 1500 to 3000 clocks per tile. Four lanes have the same two rows; each lane copies one 4-byte
// word of the 16 bytes that the two rows need. For a row block that does not exist, the last one is read.
template <int kBlocks, bool kGated, class Codes = Mxfp4Codes>
struct EpilogueRowsAhead {
  static constexpr int kBlockBytes = 4 * 8 * 16, kBytes = kBlocks * kBlockBytes;  // per warpgroup

  uint32_t to;  // shared memory address of this warpgroup's kBytes

  // shared: the warpgroup's kBytes of shared memory, aligned to 16.
  __device__ __forceinline__ explicit EpilogueRowsAhead(uint32_t shared) : to(shared) {}
  // Issues the copies. tops: the largest scales, or the factors, of the expert's rows.
  __device__ __forceinline__ void ask(const ExpertParameters& p, int expert, int first_block,
                                      const uint8_t* tops) const {
    const int row = row_of_lane();
    const int word = static_cast<int>(threadIdx.x % 4), below = word % 2;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int block = min(first_block + b, p.row_blocks - 1);
      const uint8_t* from = tops + (block * kFragmentRows + row + 8 * below) * (Codes::kHasFactors ? 4 : 1);
      int bytes = 4;
      if (word >= 2) {
        const int64_t at = bias_index<kGated>(p, expert, feature_of(block, row, below), below);
        from = static_cast<const uint8_t*>(p.bias) + at * (p.bias_f32 ? 4 : 2);
        bytes = !p.bias ? 0 : p.bias_f32 ? 4 : 2 + static_cast<int>(reinterpret_cast<uintptr_t>(from) % 4);
      }
      tile::copy_4(words() + b * kBlockBytes + word * 4,
                   reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(from) & ~uintptr_t{3}), bytes);
    }
    tile::end_copies();
  }
  // Called after the mainloop: waits for the copies and reads the values.
  __device__ __forceinline__ void get(EpilogueRows<kGated> (&rows)[kBlocks], const ExpertParameters& p,
                                      int expert, int first_block) const {
    const int row = row_of_lane();
    tile::wait_copies<0>();
    __syncwarp();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const uint4 v = tile::load_shared(words() + b * kBlockBytes);
      const uint32_t tops[2] = {v.x, v.y}, biases[2] = {v.z, v.w};
      rows[b].feature = static_cast<int>(fragment_feature(kGated, {first_block + b, row}).feature);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // A 2-byte bias is one half of the 4-byte word that was copied; the parity of its address in units of 2 bytes tells which half.
        const auto at =
            static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p.bias) / 2) +
            static_cast<uint32_t>(bias_index<kGated>(p, expert, feature_of(first_block + b, row, i), i == 1));
        const uint32_t half = at % 2 ? biases[i] & 0xffff0000u : biases[i] << 16;
        rows[b].factor[i] = Codes::factor(tops[i], row % 4);
        rows[b].bias[i] = __uint_as_float(p.bias_f32 ? biases[i] : half);
      }
    }
  }

 private:
  // The first of the lane's two rows of a row block; the second is 8 below.
  static __device__ __forceinline__ int row_of_lane() {
    return static_cast<int>(threadIdx.x % 128) / 32 * 16 + static_cast<int>(threadIdx.x % 32) / 4;
  }
  // Address of the four words of the two rows: two factors, then two biases.
  __device__ __forceinline__ uint32_t words() const { return to + threadIdx.x % 128 / 4 * 16; }
  static __device__ __forceinline__ int feature_of(int block, int row, int below) {
    const int feature = static_cast<int>(fragment_feature(kGated, {block, row}).feature);
    return kGated ? feature : feature + 8 * below;
  }
};

// The same without shared memory, for rows without factors: reads only biases, after the mainloop.
template <int kBlocks, bool kGated>
__device__ __forceinline__ void read_rows(EpilogueRows<kGated> (&rows)[kBlocks], const ExpertParameters& p,
                                          int expert, int first_block, int warp) {
  const int row = warp * 16 + static_cast<int>(threadIdx.x % 32) / 4;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const int feature = static_cast<int>(fragment_feature(kGated, {first_block + b, row}).feature);
    rows[b].feature = feature;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rows[b].factor[i] = 1.f;
      rows[b].bias[i] =
          p.bias ? load_bias(p, bias_index<kGated>(p, expert, kGated ? feature : feature + 8 * i, i == 1))
                 : 0.f;
    }
  }
}

// True if StraightEpilogue applies, the common case: no input weights, y in bf16 with aligned
// rows, and one of the activations below. It is straight-line code. The general epilogue indexes
// registers in loops, which become switches, and their branches took longer than the arithmetic.
template <bool kGated>
__device__ __forceinline__ bool has_straight_epilogue(const ExpertParameters& p,
                                                      const tile::ActivationValues& act) {
  const bool known = kGated ? act.which == Activation::kSwiGlu || act.which == Activation::kSwiGluClamped
                            : act.which == Activation::kIdentity || act.which == Activation::kRelu2;
  return known && !p.weights && !p.y_f32 && p.y_wide;
}

// One 16-byte store, which the compiler would otherwise split.
__device__ __forceinline__ void store_16(void* to, const uint4& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// Stages y in shared memory, so that stores cover whole segments of 64 or
// 128 bytes of a row. Stores directly from registers touched eight rows
// with 16 bytes each, and they limited the epilogue of the second product.
template <bool kGated>
struct StraightEpilogue {
  static constexpr int kFeatures = static_cast<int>(kGated ? kFragmentRows / 2 : kFragmentRows);
  // per subtile: each warp writes one with a single stmatrix
  static constexpr int kColumns = kGated ? 32 : 16;
  static constexpr int kRowBytes = 2 * kFeatures, kChunks = kRowBytes / 16;
  static constexpr int kSubtileBytes = kColumns * kRowBytes;  // 16 bytes per thread
  static constexpr int kStagingBytes = 2 * kSubtileBytes;

  uint32_t to, from;  // addresses in the first of the two subtile buffers
  int row, chunk;     // position of the 16-byte chunk that the thread writes to y
  int barrier;        // named barrier of the warpgroup

  // staging: the warpgroup's kStagingBytes of shared memory, aligned to 128. group: index of the warpgroup.
  __device__ __forceinline__ StraightEpilogue(uint32_t staging, int group) : barrier(1 + group) {
    const int tid = static_cast<int>(threadIdx.x % 128), warp = tid / 32, lane = tid % 32;
    row = tid / kChunks, chunk = tid % kChunks;
    from = staging + place(row, chunk);
    // Addresses for stmatrix: lanes 8 m to 8 m + 7 pass the rows of square m.
    to = staging + (kGated ? place(lane, warp) : place(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2));
  }
  // Swizzles 16-byte chunks against bank conflicts: equal chunk indices in eight consecutive
  // rows touch all banks, and so do the chunks of two whole rows (gated) or of one.
  static __device__ __forceinline__ uint32_t place(int row, int chunk) {
    const int turned = kGated ? chunk ^ (row / 2 % 4) : chunk ^ (row % 8);
    return static_cast<uint32_t>(row * kRowBytes + turned * 16);
  }
  __device__ __forceinline__ void sync() const { tile::sync_threads<128>(barrier); }

  // Writes the sums of one row block. subtile: index of its first subtile, counted over all row blocks of the tile.
  // Called by all threads of the warpgroup. kSquares: if not gated, the activation is max(x, 0)^2; otherwise it is x.
  template <int N, bool kSquares>
  __device__ __forceinline__ void write(const float (&d)[N / 2], const ExpertParameters& p,
                                        const tile::ActivationValues& act, const ExpertTile& t, int block,
                                        const EpilogueRows<kGated>& at, int subtile) const {
    const int feature = block * kFeatures + chunk * 8, rows = feature < p.features ? t.rows - row : 0;
    auto* y = static_cast<__nv_bfloat16*>(p.y) + (t.row + row) * p.y_stride + feature;
    // The chunk of the previous subtile. It is stored after the next subtile's load is issued, so that the store does not wait for a load.
    uint4 mine = {};
#pragma unroll
    for (int c = 0; c * kColumns < N; ++c, ++subtile) {
      // This branch also keeps the instructions of a subtile together. Otherwise the compiler issues all exponentials
      // first and all reciprocals last, and since warps run in lockstep they wait for the one unit that computes both.
      if (c * kColumns >= t.rows) break;
      uint32_t out[4] = {};
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
        const int j = c * (kColumns / 8) + i;
        if (j >= N / 8) break;
        float x[2], u[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          x[h] = fmaf(d[4 * j + h], at.factor[0], at.bias[0]);
          u[h] = fmaf(d[4 * j + 2 + h], at.factor[1], at.bias[1]);
          if constexpr (kGated) {
            x[h] = tile::swish(tile::at_most(x[h], act.limit), act.alpha) *
                   (tile::within(u[h], act.limit) + act.beta);
          } else if constexpr (kSquares) {
            x[h] = x[h] < 0 ? 0.f : x[h] * x[h];
            u[h] = u[h] < 0 ? 0.f : u[h] * u[h];
          }
        }
        out[kGated ? i : 2 * i] = packed(x);
        if constexpr (!kGated) out[2 * i + 1] = packed(u);
      }
      const uint32_t buffer = subtile % 2 * kSubtileBytes;
      tile::store_squares_transposed(to + buffer, out);
      // all threads have written this subtile and read the previous one, whose buffer the next subtile overwrites
      sync();
      const uint4 next = tile::load_shared(from + buffer);
      if (c > 0) {
        if ((c - 1) * kColumns < rows) store_16(y, mine);
        y += kColumns * p.y_stride;
      }
      mine = next;
    }
    if ((ceil_div(t.rows, kColumns) - 1) * kColumns < rows) store_16(y, mine);
  }
  static __device__ __forceinline__ uint32_t packed(const float (&x)[2]) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(x[0], x[1]);
    return *reinterpret_cast<const uint32_t*>(&both);
  }
};

// General epilogue of a warpgroup's part of a tile: row blocks first_block to
// first_block + kBlocks - 1, as far as the tile has them. at: one entry per row block.
template <int N, int kBlocks, bool kGated>
__device__ __forceinline__ void epilogue_general(const float (&d)[kBlocks][N / 2], const ExpertParameters& p,
                                                 const tile::ActivationValues& act, const ExpertTile& t,
                                                 int first_block, const EpilogueRows<kGated> (&at)[kBlocks]) {
  const int blocks = min(kBlocks, min(p.row_blocks, t.end_block) - first_block);
#pragma unroll 1
  for (int b = 0; b < blocks; ++b) {
    EpilogueRows<kGated> mine = at[0];
    if (kBlocks > 1 && b > 0) mine = at[kBlocks - 1];
#pragma unroll 1
    for (int c = 0; EpilogueRows<kGated>::kColumns * c < t.rows; ++c) {
      float sums[EpilogueRows<kGated>::kSums];
      pick_sums<N>(d, b, c, sums);
      mine.write(p, act, t, EpilogueRows<kGated>::kColumns * c, sums);
    }
  }
}
// The same through shared memory, if has_straight_epilogue(). epilogue.staging is StraightEpilogue<kGated>::kStagingBytes
// of this warpgroup; its threads may still read that memory when others call this.
template <int N, int kBlocks, bool kGated>
__device__ __forceinline__ void epilogue_straight(const float (&d)[kBlocks][N / 2], const ExpertParameters& p,
                                                  const tile::ActivationValues& act, const ExpertTile& t,
                                                  int first_block, const EpilogueRows<kGated> (&at)[kBlocks],
                                                  const StraightEpilogue<kGated>& epilogue) {
  const int subtiles = ceil_div(t.rows, StraightEpilogue<kGated>::kColumns);
  const int blocks = min(kBlocks, min(p.row_blocks, t.end_block) - first_block);
  epilogue.sync();
  if (!kGated && act.which == Activation::kRelu2) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      if (b < blocks) epilogue.template write<N, true>(d[b], p, act, t, first_block + b, at[b], b * subtiles);
    return;
  }
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
    if (b < blocks) epilogue.template write<N, false>(d[b], p, act, t, first_block + b, at[b], b * subtiles);
}

#endif

}  // namespace sluice::cuda
