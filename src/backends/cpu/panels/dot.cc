#include "backends/cpu/panels/dot.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/panels/decode.h"
#include "backends/cpu/panels/work.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kRowsPerBlock = 64;

struct DotScratch {
  RowBlock* blocks;
  BF16* x;     // bf16 weights: [16-row tiles * 16][padded]; null if rows are read in place
  float* x32;  // mxfp4 weights: the same in f32
  size_t bytes;
};

DotScratch lay_out(const PanelJob& job) {
  const size_t blocks =
      static_cast<size_t>(round_up(row_blocks_max(job, kRowsPerBlock) * sizeof(RowBlock), 64));
  const auto elements = static_cast<size_t>(row_tiles_max(job) * 16 * job.input.padded);
  const bool mxfp4 = job.mxfp4, copies = !mxfp4 && job.input.width != job.input.padded;
  const size_t end = blocks + elements * (mxfp4 ? sizeof(float) : copies ? sizeof(BF16) : 0);
  if (!job.scratch) return {nullptr, nullptr, nullptr, end};
  std::byte* x = job.scratch + blocks;
  return {reinterpret_cast<RowBlock*>(job.scratch), copies ? reinterpret_cast<BF16*>(x) : nullptr,
          mxfp4 ? reinterpret_cast<float*>(x) : nullptr, end};
}

}  // namespace

size_t dot_scratch_bytes(const PanelJob& job) { return job.rows == 0 ? 0 : lay_out(job).bytes; }

#if defined(__x86_64__)
namespace {

constexpr int kRows = 4;  // rows of x that share a decoded weight
// bytes ahead; 512 to 8192 were measured, and this is enough for most of the memory bandwidth
constexpr int kPrefetch = 2048;

SLUICE_AVX512BF16 inline __m512 dot_pair(__m512 sum, __m512i w, const BF16* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof pair);
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w),
                          reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)));
}

// 2^(s - 127) of 16 rows: 0 is the subnormal 2^-127, 255 is NaN.
SLUICE_AVX512 inline __m512 scales_f32(const uint8_t* at) {
  const __m512i s = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  const __m512i power = _mm512_max_epu32(_mm512_slli_epi32(s, 23), _mm512_set1_epi32(0x00400000));
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(s, _mm512_set1_epi32(255));
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(power, nan, _mm512_set1_epi32(0x7fc00000)));
}

// The sums of one panel with kN rows of x. Even and odd words of a block are added to
// separate sums, because a single sum would wait for the latency of each dot product.
template <int kN>
struct Chains {
  __m512 half[kN][2];
};

template <int kN>
SLUICE_AVX512BF16 inline void clear(Chains<kN>& c) {
  for (int t = 0; t < kN; ++t) c.half[t][0] = c.half[t][1] = _mm512_setzero_ps();
}

template <int kN>
SLUICE_AVX512BF16 inline void add_pair(Chains<kN>& c, __m512i w, int v, const BF16* const* x, int64_t k) {
#pragma GCC unroll 4
  for (int t = 0; t < kN; ++t) c.half[t][v % 2] = dot_pair(c.half[t][v % 2], w, x[t] + k);
}

// One word of 8 codes per lane, times rows of x in f32. A lookup of 16 floats reads the low four bits of a lane, so no code needs a mask.
template <int kN, int kChains>
SLUICE_AVX512 inline void add_word(__m512 (&sum)[kN][kChains], __m512i word, __m512 values, int v,
                                   const float* const* x, int64_t k) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512 even = _mm512_permutexvar_ps(j ? _mm512_srli_epi32(word, 4 * j) : word, values);
    const __m512 odd = _mm512_permutexvar_ps(_mm512_srli_epi32(word, 16 + 4 * j), values);
#pragma GCC unroll 4
    for (int t = 0; t < kN; ++t) {
      __m512& s0 = sum[t][v * 2 % kChains];
      __m512& s1 = sum[t][(v * 2 + 1) % kChains];
      s0 = _mm512_fmadd_ps(even, _mm512_set1_ps(x[t][k + 2 * j]), s0);
      s1 = _mm512_fmadd_ps(odd, _mm512_set1_ps(x[t][k + 2 * j + 1]), s1);
    }
  }
}

template <int kN, int kChains>
SLUICE_AVX512 inline __m512 joined(const __m512 (&sum)[kN][kChains], int t) {
  __m512 out = _mm512_add_ps(sum[t][0], sum[t][1]);
  if constexpr (kChains == 4) out = _mm512_add_ps(out, _mm512_add_ps(sum[t][2], sum[t][3]));
  return out;
}

// Sums are in f32, although dot products of bf16 pairs would need half as many instructions. If a dot product of
// pairs starts every 2.3 cycles and a multiply-add every 0.55, 32 multiply-adds finish sooner than 16 dot products.
template <int kN, int kPanels>
SLUICE_AVX512 void fma_mxfp4(const PanelPointers* panel, int64_t blocks, const float* const* x,
                             float* const* sums) {
  constexpr int kChains = 4;
  const __m512 values = _mm512_loadu_ps(kE2M1Values);
  __m512 total[kPanels][kN];
  for (int p = 0; p < kPanels; ++p)
    for (int t = 0; t < kN; ++t) total[p][t] = _mm512_setzero_ps();
  const int64_t panel_bytes = blocks * 256;
  for (int64_t b = 0; b < blocks; ++b) {
    // After the end of this panel, the address is in the panel after the next one, because two panels are read together.
    int64_t ahead = b * 256 + kPrefetch;
    if (ahead >= panel_bytes) ahead += panel_bytes;
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      const uint8_t* codes = panel[p].codes + b * 256;
      _mm_prefetch(reinterpret_cast<const char*>(panel[p].scales + (2 * blocks + b) * 16), _MM_HINT_T0);
      __m512 sum[kN][kChains];
      for (int t = 0; t < kN; ++t)
        for (int c = 0; c < kChains; ++c) sum[t][c] = _mm512_setzero_ps();
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        _mm_prefetch(reinterpret_cast<const char*>(panel[p].codes + ahead + v * 64), _MM_HINT_T0);
        add_word(sum, _mm512_loadu_si512(codes + v * 64), values, v, x, b * 32 + v * 8);
      }
      const __m512 scale = scales_f32(panel[p].scales + b * 16);
#pragma GCC unroll 4
      for (int t = 0; t < kN; ++t) total[p][t] = _mm512_fmadd_ps(joined(sum, t), scale, total[p][t]);
    }
  }
  for (int p = 0; p < kPanels; ++p)
    for (int t = 0; t < kN; ++t) _mm512_store_ps(sums[p] + t * 16, total[p][t]);
}

template <int kN, int kPanels>
SLUICE_AVX512BF16 void dot_bf16(const PanelPointers* panel, int64_t blocks, const BF16* const* x,
                                float* const* sums) {
  Chains<kN> c[kPanels];
  for (int p = 0; p < kPanels; ++p) clear(c[p]);
  for (int64_t b = 0; b < blocks; ++b) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      const uint8_t* codes = panel[p].codes + b * 1024;
#pragma GCC unroll 16
      for (int pair = 0; pair < 16; ++pair) {
        _mm_prefetch(reinterpret_cast<const char*>(codes + pair * 64 + kPrefetch), _MM_HINT_T0);
        add_pair(c[p], _mm512_loadu_si512(codes + pair * 64), pair, x, b * 32 + pair * 2);
      }
    }
  }
  for (int p = 0; p < kPanels; ++p)
    for (int t = 0; t < kN; ++t)
      _mm512_store_ps(sums[p] + t * 16, _mm512_add_ps(c[p].half[t][0], c[p].half[t][1]));
}

template <class X>
using Rows = void (*)(const PanelPointers*, int64_t blocks, const X* const* x, float* const* sums);

constexpr Rows<BF16> kDots[2][kRows] = {{dot_bf16<1, 1>, dot_bf16<2, 1>, dot_bf16<3, 1>, dot_bf16<4, 1>},
                                        {dot_bf16<1, 2>, dot_bf16<2, 2>, dot_bf16<3, 2>, dot_bf16<4, 2>}};
constexpr Rows<float> kFmas[2][kRows] = {
    {fma_mxfp4<1, 1>, fma_mxfp4<2, 1>, fma_mxfp4<3, 1>, fma_mxfp4<4, 1>},
    {fma_mxfp4<1, 2>, fma_mxfp4<2, 2>, fma_mxfp4<3, 2>, fma_mxfp4<4, 2>}};

// Copies row r of x if panels pad the width, because pairs must not be read after the end of the row.
void pad_row(const PanelInput& in, int64_t r, BF16* out) {
  std::copy_n(in.row(r), in.width, out);
  std::fill_n(out + in.width, in.padded - in.width, BF16{});
}

void widen_row(const PanelInput& in, int64_t r, float* out) {
  const BF16* x = in.row(r);
  for (int64_t k = 0; k < in.width; ++k) out[k] = to_float(x[k]);
  std::fill_n(out + in.width, in.padded - in.width, 0.f);
}

void run_items(const PanelJob& job, const DotScratch& scratch, int64_t begin, int64_t end,
               const PanelSink& sink) {
  const int64_t pairs = (job.panels + 1) / 2;
  alignas(64) float sums[2][kRowsPerBlock * 16];
  for (int64_t item = begin; item < end; ++item) {
    const RowBlock& block = scratch.blocks[item / pairs];
    const int64_t panel = item % pairs * 2, panels = std::min<int64_t>(2, job.panels - panel);
    const PanelPointers pointers[2] = {panel_of(job, block.expert, panel),
                                       panel_of(job, block.expert, panel + panels - 1)};
    for (int64_t row = 0; row < block.rows; row += kRows) {
      const int64_t rows = std::min<int64_t>(kRows, block.rows - row);
      const int64_t copied = (block.tile * 16 + row) * job.input.padded;
      float* const out[2] = {sums[0] + row * 16, sums[1] + row * 16};
      if (scratch.x32) {
        const float* x[kRows];
        for (int64_t t = 0; t < rows; ++t) x[t] = scratch.x32 + copied + t * job.input.padded;
        kFmas[panels - 1][rows - 1](pointers, job.blocks(), x, out);
        continue;
      }
      const BF16* x[kRows];
      for (int64_t t = 0; t < rows; ++t)
        x[t] = scratch.x ? scratch.x + copied + t * job.input.padded : job.input.row(block.row + row + t);
      kDots[panels - 1][rows - 1](pointers, job.blocks(), x, out);
    }
    sink.take(sink.context, {block.expert, block.row, block.rows, panel, panels, {sums[0], sums[1]}});
  }
}

}  // namespace

void run_dot(const PanelJob& job, ThreadPool& pool, const PanelSink& sink) {
  if (job.rows == 0) return;
  const DotScratch scratch = lay_out(job);
  const int64_t count = cut_rows(job, kRowsPerBlock, scratch.blocks);
  if (scratch.x || scratch.x32) {
    pool.run(count, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const RowBlock& block = scratch.blocks[i];
        for (int64_t r = 0; r < block.rows; ++r) {
          const int64_t at = (block.tile * 16 + r) * job.input.padded;
          scratch.x32 ? widen_row(job.input, block.row + r, scratch.x32 + at)
                      : pad_row(job.input, block.row + r, scratch.x + at);
        }
      }
    });
  }
  const int64_t items = count * ((job.panels + 1) / 2);
  pool.run(items, items_per_turn(items, pool),
           [&](int64_t begin, int64_t end, int) { run_items(job, scratch, begin, end, sink); });
}
#else
void run_dot(const PanelJob&, ThreadPool&, const PanelSink&) {}  // no kernel accepts a problem in this build
#endif
}  // namespace sluice::cpu
