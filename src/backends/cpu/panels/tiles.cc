#include "backends/cpu/panels/tiles.h"

#include <algorithm>

#include "backends/cpu/panels/decode.h"
#include "backends/cpu/panels/work.h"
#include "backends/cpu/scratch.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kTile = 512;          // bf16 per tile
constexpr int64_t kRowsPerBlock = 256;  // rows that share one decoding: 32 KiB of sums
constexpr int64_t kChunk = 8;           // blocks of decoded weights that stay in the L1 cache
constexpr int64_t kAhead =
    3;  // number of blocks that decoding runs ahead; with fewer, tile loads would wait for stores
constexpr int64_t kPrefetch = 2048;  // bytes ahead in each panel

// Scratch of one thread.
struct alignas(64) TileBuffers {
  BF16 weights[kChunk][2][kTile];
  float sums[2][kRowsPerBlock * 16];  // per panel [rows][16]
};

struct TileScratch {
  TileBuffers* buffers;  // [threads]
  BF16* x;               // [tiles][blocks][16 rows][32]
  RowBlock* blocks;
  size_t bytes;
};

TileScratch lay_out(const PanelJob& job, int threads) {
  const size_t x = static_cast<size_t>(threads) * sizeof(TileBuffers);
  const size_t blocks = x + static_cast<size_t>(row_tiles_max(job) * job.blocks() * kTile) * sizeof(BF16);
  const size_t end = blocks + static_cast<size_t>(row_blocks_max(job, kRowsPerBlock)) * sizeof(RowBlock);
  std::byte* start = job.scratch;
  if (!start) return {nullptr, nullptr, nullptr, end};
  return {reinterpret_cast<TileBuffers*>(start), reinterpret_cast<BF16*>(start + x),
          reinterpret_cast<RowBlock*>(start + blocks), end};
}

}  // namespace

// Some hosts align scratch memory to less than a cache line, so this adds 64 bytes.
size_t tile_scratch_bytes(const PanelJob& job, int threads) {
  return job.rows == 0 ? 0 : lay_out(job, threads).bytes + 64;
}

#if defined(__x86_64__)
namespace {

// Eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kConfig;

// GCC does not know that tile loads read memory, so stores must not be moved below them.
inline void stores_before_tiles() { asm volatile("" ::: "memory"); }

SLUICE_AVX512BF16 void gather_tile(const PanelInput& in, const RowBlock& block, int64_t tile, BF16* out) {
  const int64_t first = tile * 16, rows = std::min<int64_t>(16, block.rows - first);
  const int64_t whole = in.width / 32, rest = in.width % 32;
  for (int64_t i = 0; i < rows; ++i) {
    const BF16* x = in.row(block.row + first + i);
    for (int64_t b = 0; b < whole; ++b)
      _mm512_store_si512(out + b * kTile + i * 32, _mm512_loadu_si512(x + b * 32));
    if (rest)
      _mm512_store_si512(out + whole * kTile + i * 32,
                         _mm512_maskz_loadu_epi16((1u << rest) - 1, x + whole * 32));
  }
}

// One panel or two adjacent panels of one expert, and the addresses of their tiles.
struct TilePanels {
  PanelPointers panel[2];
  int64_t skip_codes, skip_scales;  // bytes from the end of a panel to the start of its successor
  int64_t panel_codes;
  __m512i top[2];  // largest scale of each row, as u32
};

// The largest scale of each of 16 rows, without NaN scales.
SLUICE_AVX512BF16 __m512i top_scales(const uint8_t* scales, int64_t blocks) {
  __m128i top = _mm_setzero_si128();
  const __m128i nan = _mm_set1_epi8(-1);
  for (int64_t b = 0; b < blocks; ++b) {
    const __m128i s = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + b * 16));
    top = _mm_max_epu8(top, _mm_andnot_si128(_mm_cmpeq_epi8(s, nan), s));
  }
  return _mm512_cvtepu8_epi32(top);
}

// Subtracts the distance to the row's largest scale from the exponents. That is exact for distances up to
// 126, except for a code of 0.5 at 126, which becomes zero. At larger distances all codes become zero.
SLUICE_AVX512BF16 inline void decode_block(const uint8_t* codes, const uint8_t* scales, __m512i top,
                                           __m512i table, BF16* tile) {
  constexpr uint16_t kDeepest = 126;
  const __m512i s = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
  const __m512i below = _mm512_sub_epi32(top, s);
  const __m512i both = _mm512_or_si512(below, _mm512_slli_epi32(below, 16));
  const __mmask32 keep = _mm512_cmple_epu16_mask(both, _mm512_set1_epi16(kDeepest));
  const __m512i exponents = _mm512_slli_epi16(both, 7);
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    const __m512i even = _mm512_loadu_si512(codes + v * 64);
    const __m512i odd = _mm512_srli_epi32(even, 4);
    const __m512i words[4] = {even, odd, next_byte(even), next_byte(odd)};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      _mm512_store_si512(tile + (v * 4 + j) * 32,
                         _mm512_maskz_subs_epu16(keep, e2m1_pair(words[j], table), exponents));
  }
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(s, _mm512_set1_epi32(255));
  if (__builtin_expect(nan != 0, 0))
    for (int pair = 0; pair < 16; ++pair)
      _mm512_mask_storeu_epi32(tile + pair * 32, nan, _mm512_set1_epi32(0x7fc07fc0));
}

// Prefetches this panel's codes some blocks ahead, or the start of its successor.
SLUICE_AVX512BF16 inline void prefetch_block(const TilePanels& t, int p, int64_t block, int64_t block_bytes) {
  int64_t at = block * block_bytes + kPrefetch;
  if (at >= t.panel_codes) at += t.skip_codes;
  const char* codes = reinterpret_cast<const char*>(t.panel[p].codes) + at;
  for (int64_t line = 0; line < block_bytes; line += 64) _mm_prefetch(codes + line, _MM_HINT_T0);
}

// Prepares the weights of one block. bf16 weights need no preparation; they are read in place.
template <int kPanels, bool kMxfp4>
SLUICE_AVX512BF16 inline void prepare(const TilePanels& t, int64_t block, __m512i table,
                                      TileBuffers& buffers) {
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) {
    prefetch_block(t, p, block, kMxfp4 ? 256 : 1024);
    if constexpr (kMxfp4) {
      _mm_prefetch(reinterpret_cast<const char*>(t.panel[p].scales + t.skip_scales + block * 16),
                   _MM_HINT_T0);
      decode_block(t.panel[p].codes + block * 256, t.panel[p].scales + block * 16, t.top[p], table,
                   buffers.weights[block % kChunk][p]);
    }
  }
}

template <int kRowTiles, int kPanels>
SLUICE_AMXBF16 inline void multiply(const BF16* x0, const BF16* x1, const void* w0, const void* w1) {
  _tile_loadd(6, w0, 64);
  _tile_loadd(4, x0, 64);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kPanels == 2) {
    _tile_loadd(7, w1, 64);
    _tile_dpbf16ps(1, 4, 7);
  }
  if constexpr (kRowTiles == 2) {
    _tile_loadd(5, x1, 64);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kPanels == 2) _tile_dpbf16ps(3, 5, 7);
  }
}

// The sums of a group of up to 32 rows come after the sums of the previous groups, panel by panel.
template <int kRowTiles, int kPanels>
SLUICE_AMXBF16 inline void load_sums(const float* sums) {
  constexpr int64_t kUp = kRowsPerBlock * 16;
  _tile_loadd(0, sums, 64);
  if constexpr (kPanels == 2) _tile_loadd(1, sums + kUp, 64);
  if constexpr (kRowTiles == 2) _tile_loadd(2, sums + 256, 64);
  if constexpr (kRowTiles == 2 && kPanels == 2) _tile_loadd(3, sums + kUp + 256, 64);
}

template <int kRowTiles, int kPanels>
SLUICE_AMXBF16 inline void store_sums(float* sums) {
  constexpr int64_t kUp = kRowsPerBlock * 16;
  _tile_stored(0, sums, 64);
  if constexpr (kPanels == 2) _tile_stored(1, sums + kUp, 64);
  if constexpr (kRowTiles == 2) _tile_stored(2, sums + 256, 64);
  if constexpr (kRowTiles == 2 && kPanels == 2) _tile_stored(3, sums + kUp + 256, 64);
}

SLUICE_AMXBF16 inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Blocks [begin, end) for up to 32 rows, the first of which is `row`. The first group prepares the weights of a chunk; later groups reuse
// them.
enum class Weights : uint8_t { kMake, kReuse };
struct Sweep {
  const TilePanels& panels;
  const BF16* x;   // tiles of all rows
  int64_t blocks;  // per row
  int64_t row, begin, end;
};
template <int kRowTiles, int kPanels, bool kMxfp4, Weights kWeights>
SLUICE_AMXBF16 void sweep(const Sweep& s, TileBuffers& buffers) {
  const __m512i table = e2m1_table();
  const BF16* x = s.x + s.row / 16 * s.blocks * kTile;
  float* sums = buffers.sums[0] + s.row * 16;
  s.begin == 0 ? zero_sums() : load_sums<kRowTiles, kPanels>(sums);
  if constexpr (kWeights == Weights::kMake)
    for (int64_t b = s.begin; b < std::min(s.begin + kAhead, s.end); ++b)
      prepare<kPanels, kMxfp4>(s.panels, b, table, buffers);
  for (int64_t b = s.begin; b < s.end; ++b) {
    if constexpr (kWeights == Weights::kMake)
      if (b + kAhead < s.end) prepare<kPanels, kMxfp4>(s.panels, b + kAhead, table, buffers);
    stores_before_tiles();
    const BF16* at = x + b * kTile;
    const auto& made = buffers.weights[b % kChunk];
    const void* w0 = kMxfp4 ? static_cast<const void*>(made[0]) : s.panels.panel[0].codes + b * 1024;
    const void* w1 = kMxfp4 ? static_cast<const void*>(made[1]) : s.panels.panel[1].codes + b * 1024;
    multiply<kRowTiles, kPanels>(at, at + s.blocks * kTile, w0, w1);
  }
  store_sums<kRowTiles, kPanels>(sums);
}

// Multiplies the sums by 2^(r - 127). scalef does this, because the factor may be outside the range of normal numbers.
SLUICE_AVX512BF16 void apply_scales(__m512i top, int64_t rows, float* sums) {
  const __m512 power = _mm512_cvtepi32_ps(_mm512_sub_epi32(top, _mm512_set1_epi32(127)));
  for (int64_t i = 0; i < rows; ++i)
    _mm512_store_ps(sums + i * 16, _mm512_scalef_ps(_mm512_load_ps(sums + i * 16), power));
}

template <int kPanels, bool kMxfp4>
SLUICE_AMXBF16 void multiply_block(const TilePanels& t, const BF16* x, int64_t blocks, int64_t rows,
                                   TileBuffers& buffers) {
  const int64_t step = rows <= 32 ? blocks : kChunk;  // the sums of a single group stay in tiles
  for (int64_t begin = 0; begin < blocks; begin += step) {
    for (int64_t row = 0; row < rows; row += 32) {
      const Sweep s{t, x, blocks, row, begin, std::min(blocks, begin + step)};
      if (row == 0) {
        rows > 16 ? sweep<2, kPanels, kMxfp4, Weights::kMake>(s, buffers)
                  : sweep<1, kPanels, kMxfp4, Weights::kMake>(s, buffers);
      } else {
        rows - row > 16 ? sweep<2, kPanels, kMxfp4, Weights::kReuse>(s, buffers)
                        : sweep<1, kPanels, kMxfp4, Weights::kReuse>(s, buffers);
      }
    }
  }
  if constexpr (kMxfp4)
    for (int p = 0; p < kPanels; ++p) apply_scales(t.top[p], rows, buffers.sums[p]);
}

SLUICE_AMXBF16 void run_items(const PanelJob& job, const TileScratch& scratch, int64_t begin, int64_t end,
                              int thread, const PanelSink& sink) {
  const int64_t pairs = (job.panels + 1) / 2, blocks = job.blocks();
  const bool mxfp4 = job.mxfp4;
  const PanelShape one{1, job.input.padded};
  TileBuffers& buffers = scratch.buffers[thread];
  _tile_loadconfig(&kConfig);
  for (int64_t item = begin; item < end; ++item) {
    const RowBlock& block = scratch.blocks[item / pairs];
    const int64_t panel = item % pairs * 2, panels = std::min<int64_t>(2, job.panels - panel);
    TilePanels t{};
    t.panel_codes = one.code_bytes(job.format());
    t.skip_codes = t.panel_codes;
    t.skip_scales = 2 * one.scale_bytes(job.format());
    for (int64_t p = 0; p < 2; ++p) {
      t.panel[p] = panel_of(job, block.expert, panel + std::min(p, panels - 1));
      if (mxfp4) t.top[p] = top_scales(t.panel[p].scales, blocks);
    }
    const auto run = panels == 2 ? (mxfp4 ? multiply_block<2, true> : multiply_block<2, false>)
                                 : (mxfp4 ? multiply_block<1, true> : multiply_block<1, false>);
    run(t, scratch.x + block.tile * blocks * kTile, blocks, block.rows, buffers);
    sink.take(sink.context,
              {block.expert, block.row, block.rows, panel, panels, {buffers.sums[0], buffers.sums[1]}});
  }
  _tile_release();
}

}  // namespace

void run_tiles(const PanelJob& job, ThreadPool& pool, const PanelSink& sink) {
  if (job.rows == 0) return;
  PanelJob aligned = job;
  aligned.scratch += -reinterpret_cast<uintptr_t>(job.scratch) % 64;
  const size_t of_threads = job.scratch_bytes - std::min(tile_scratch_bytes(job, 0), job.scratch_bytes);
  const int64_t slots = slots_in(of_threads, sizeof(TileBuffers), pool);
  const TileScratch scratch = lay_out(aligned, static_cast<int>(slots));
  const int64_t count = cut_rows(job, kRowsPerBlock, scratch.blocks);
  const int64_t tile_elements = job.blocks() * kTile;
  pool.run(count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const RowBlock& block = scratch.blocks[i];
      for (int64_t tile = 0; tile * 16 < block.rows; ++tile)
        gather_tile(job.input, block, tile, scratch.x + (block.tile + tile) * tile_elements);
    }
  });
  const int64_t items = count * ((job.panels + 1) / 2);
  run_in_slots(pool, slots, items, items_per_turn(items, pool), [&](int64_t begin, int64_t end, int thread) {
    run_items(job, scratch, begin, end, thread, sink);
  });
}
#else
// No kernel accepts a problem in this build.
void run_tiles(const PanelJob&, ThreadPool&, const PanelSink&) {}
#endif
}  // namespace sluice::cpu
