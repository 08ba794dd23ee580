#include "ops/fragment_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/dtype.h"

namespace sluice {
namespace {

// Packed weights have the same bytes on every machine: words are little-endian, and so is every machine that Sluice supports.
static_assert(std::endian::native == std::endian::little);

constexpr int64_t kSlabRows = 16, kStepBytes = 8;  // kStepBytes: e2m1 codes of 16 columns of one row

// By value of a checkpoint's byte (two codes, the even column in the low nibble): its contribution to a word as pair `pair`.
using PairTable = std::array<uint32_t, 256>;
constexpr PairTable pair_table(int pair) {
  PairTable out{};
  for (uint32_t byte = 0; byte < 256; ++byte)
    out[byte] = fragment_word(fragment_pair_of(byte & 15, byte >> 4), pair);
  return out;
}
constexpr std::array<PairTable, 4> kPairs = {pair_table(0), pair_table(1), pair_table(2), pair_table(3)};

constexpr std::array<std::byte, kFragmentWidth / 2> kZeros{};
constexpr float kNanFactor = std::numeric_limits<float>::quiet_NaN();

// 64 columns of one row: 32 bytes of codes, or fewer at the end of the width.
struct RowPiece {
  std::array<uint8_t, kFragmentWidth / 2> bytes;
};
RowPiece load_piece(const std::byte* row, int64_t k, int64_t width) {
  RowPiece out;
  if (!row) row = kZeros.data(), k = 0;
  const int64_t there = std::min(kFragmentWidth, width - k) / 2;
  if (there == kFragmentWidth / 2) {
    std::memcpy(out.bytes.data(), row + k / 2, sizeof out.bytes);
  } else {
    out = {};
    std::memcpy(out.bytes.data(), row + k / 2, static_cast<size_t>(there));
  }
  return out;
}

// Packs rows r and r + 8 of one k block into sixteen words: four words for each of four neighboring threads.
void pack_row_pair(const RowPiece& low, const RowPiece& high, std::byte* to) {
  std::array<uint32_t, 16> words;
  for (size_t thread = 0; thread < 4; ++thread) {
    for (size_t step = 0; step < 4; ++step) {
      const size_t at = step * kStepBytes + thread;
      words[4 * thread + step] = kPairs[0][low.bytes[at]] ^ kPairs[1][high.bytes[at]] ^
                                 kPairs[2][low.bytes[at + 4]] ^ kPairs[3][high.bytes[at + 4]];
    }
  }
  std::memcpy(to, words.data(), sizeof words);
}

uint8_t byte_of(uint32_t word, int pair) {
  const uint32_t bits = fragment_pair(word, pair);
  return static_cast<uint8_t>(fragment_code_of(bits, 0) | fragment_code_of(bits, 1) << 4);
}

void unpack_row_pair(const std::byte* from, RowPiece* low, RowPiece* high) {
  std::array<uint32_t, 16> words;
  std::memcpy(words.data(), from, sizeof words);
  for (size_t thread = 0; thread < 4; ++thread) {
    for (size_t step = 0; step < 4; ++step) {
      const size_t at = step * kStepBytes + thread;
      const uint32_t word = words[4 * thread + step];
      low->bytes[at] = byte_of(word, 0), high->bytes[at] = byte_of(word, 1);
      low->bytes[at + 4] = byte_of(word, 2), high->bytes[at + 4] = byte_of(word, 3);
    }
  }
}

// Offset of the sixteen words of rows r and r + 8 in the block's codes; `row` is r.
constexpr int64_t pair_place(int64_t row) {
  return (row / kSlabRows * 32 + row % 8 * 4) * static_cast<int64_t>(sizeof(uint32_t) * 4);
}

// Offset of column i of sixteen from column 0 in the codes of a row in e4m3.
constexpr int64_t place8(int64_t i) { return fragment_column8(i) / 4 * 16 + fragment_column8(i) % 4; }
static_assert(fragment_code8_index({1, 1}, {0, 9}, 16 + 13) ==
              fragment_code8_index({1, 1}, {0, 9}, 16) + place8(13));

uint8_t byte_at(const std::byte* at, int64_t i) { return static_cast<uint8_t>(at[i]); }
void put(std::byte* to, float value) { std::memcpy(to, &value, sizeof value); }

// e4m3: packs a row of one k block, sixteen columns at a time: four words of four threads.
void pack_row8(const std::byte* from, int64_t count, int64_t row, std::byte* block) {
  for (int64_t k = 0; k < kFragmentWidth; k += 16) {
    std::byte* to = block + fragment_code8_index({1, 1}, {0, row}, k);
    for (int64_t i = 0; i < 16; ++i) to[place8(i)] = from && k + i < count ? from[k + i] : std::byte{0};
  }
}
void unpack_row8(const std::byte* block, int64_t row, int64_t count, std::byte* to) {
  for (int64_t k = 0; k < count; k += 16) {
    const std::byte* from = block + fragment_code8_index({1, 1}, {0, row}, k);
    for (int64_t i = 0; i < std::min<int64_t>(16, count - k); ++i) to[k + i] = from[place8(i)];
  }
}

bool is_nan8(std::byte code) { return (static_cast<uint8_t>(code) & 0x7F) == 0x7F; }
bool has_nan8(const std::byte* codes, int64_t count) {
  bool any = false;
  for (int64_t k = 0; k < count; ++k) any |= is_nan8(codes[k]);
  return any;
}

// Zeroes `count` codes of a row from column k on.
void clear_codes(WeightFormat f, FragmentRow at, int64_t k_blocks, int64_t k, int64_t count,
                 std::byte* codes) {
  const FragmentShape shape{1, k_blocks};
  const int64_t end = k + count;
  if (f.w == DType::kE4M3) {
    for (; k < end; ++k) codes[fragment_code8_index(shape, at, k)] = std::byte{0};
    return;
  }
  for (; k < end; k += 2) {
    const FragmentCode c = fragment_code(shape, at, k);
    uint32_t word;
    std::memcpy(&word, codes + 4 * c.word, sizeof word);
    word ^= fragment_word(fragment_pair(word, c.pair), c.pair);
    std::memcpy(codes + 4 * c.word, &word, sizeof word);
  }
}

// One row of a block that is being packed.
struct RowToPack {
  WeightFormat format;
  bool gated;
  FragmentRow at;
  int64_t width, k_blocks;
  const std::byte *codes, *scales;

  FragmentShape shape() const { return {1, k_blocks}; }
  // Whether a group of 32 codes contains an e4m3 NaN.
  bool nan_in_group(int64_t b) const {
    return format.w == DType::kE4M3 && has_nan8(codes + b * kMxBlock, kMxBlock);
  }
};

void pack_mx(const RowToPack& r, const FragmentBlock& to) {
  const int64_t blocks = r.width / kMxBlock;
  const auto scale_of = [&](int64_t b) { return r.nan_in_group(b) ? uint8_t{255} : byte_at(r.scales, b); };
  uint8_t top = 0;
  for (int64_t b = 0; b < blocks; ++b)
    if (scale_of(b) != 255) top = std::max(top, scale_of(b));
  to.top[r.at.row] = std::byte{top};
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t stored = fragment_stored_scale(scale_of(b), top);
    to.scales[fragment_scale_index(r.shape(), r.at, b * kMxBlock)] = std::byte{stored};
    if (stored == kFragmentNan) clear_codes(r.format, r.at, r.k_blocks, b * kMxBlock, kMxBlock, to.codes);
  }
}

void pack_nv(const RowToPack& r, const FragmentBlock& to) {
  const int64_t blocks = r.width / kNvBlock;
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t stored = fragment_nv_stored(byte_at(r.scales, b));
    to.scales[fragment_nv_index(r.shape(), r.at, b * kNvBlock)] = std::byte{stored};
    if (stored == 0 || stored == kFragmentNvNan)
      clear_codes(r.format, r.at, r.k_blocks, b * kNvBlock, kNvBlock, to.codes);
  }
  const float factor = 128 * load_f32_bytes(r.scales + blocks);
  put(to.top + 4 * r.at.row, std::isnan(factor) ? kNanFactor : factor);
}

void pack_blocks(const RowToPack& r, const FragmentBlock& to) {
  bool nan = has_nan8(r.codes, r.width);
  float before = 0;
  for (int64_t k = 0; k < r.width; k += kScaleColumns) {
    float scale = load_f32_bytes(r.scales + 4 * (k / kScaleColumns));
    if (!is_block_scale(scale)) nan = true, scale = 1;
    for (int64_t row : {r.at.row, (r.at.row + 32) % kFragmentRows}) {
      std::byte* at = to.scales + 4 * fragment_block_scale_index(r.shape(), {0, row}, k);
      put(at, scale);
      put(at + 16, k == 0 ? 1 : before / scale);
      if (!r.gated) break;
    }
    before = scale;
  }
  put(to.top + 4 * r.at.row, nan ? kNanFactor : 1);
}

void pack_row_scale(const RowToPack& r, const FragmentBlock& to) {
  put(to.top + 4 * r.at.row, has_nan8(r.codes, r.width) ? kNanFactor : load_f32_bytes(r.scales));
}

void pack_scales(WeightFormat f, bool gated, const FragmentRows& codes, const FragmentRows& scales,
                 int64_t width, const FragmentBlock& to) {
  const int64_t k_blocks = round_up(width, kFragmentWidth) / kFragmentWidth;
  std::memset(to.scales, 0, static_cast<size_t>(k_blocks * fragment_scale_bytes(f)));
  std::memset(to.top, 0, static_cast<size_t>(fragment_top_bytes(f)));
  for (int64_t i = 0; i < kFragmentRows; ++i) {
    const auto at = static_cast<size_t>(i);
    if (!codes[at]) continue;
    const RowToPack row{f, gated, {0, i}, width, k_blocks, codes[at], scales[at]};
    switch (f.scales) {
      case WeightScales::kMx:
        pack_mx(row, to);
        break;
      case WeightScales::kNv:
        pack_nv(row, to);
        break;
      case WeightScales::kBlocks:
        pack_blocks(row, to);
        break;
      case WeightScales::kRows:
        pack_row_scale(row, to);
        break;
    }
  }
}

void unpack_scales(WeightFormat f, const FragmentBlock& from, int64_t width, int64_t i, std::byte* row) {
  const FragmentShape shape{1, round_up(width, kFragmentWidth) / kFragmentWidth};
  const FragmentRow at{0, i};
  for (int64_t k = 0; f.columns() > 0 && k < width; k += f.columns()) {
    const int64_t group = k / f.columns();
    if (f.scales == WeightScales::kMx) {
      const uint8_t stored = byte_at(from.scales, fragment_scale_index(shape, at, k));
      const int scale = fragment_scale(stored, byte_at(from.top, i));
      row[group] = static_cast<std::byte>(stored == kFragmentNan ? 255 : scale);
    } else if (f.scales == WeightScales::kNv) {
      row[group] =
          static_cast<std::byte>(fragment_nv_scale(byte_at(from.scales, fragment_nv_index(shape, at, k))));
    } else {
      std::memcpy(row + 4 * group, from.scales + 4 * fragment_block_scale_index(shape, at, k), 4);
    }
  }
  if (!f.has_row_scale()) return;
  const float factor = load_f32_bytes(from.top + 4 * i);
  const bool nv = f.scales == WeightScales::kNv;
  put(row + f.column_scales(width), !nv ? factor : std::isnan(factor) ? kNanFactor : factor / 128);
}

}  // namespace

FragmentBlock fragment_block(const FragmentShape& s, WeightFormat f, std::byte* w, std::byte* scales,
                             int64_t block) {
  return {w + block * s.k_blocks * fragment_code_bytes(f.w),
          scales ? scales + block * s.k_blocks * fragment_scale_bytes(f) : nullptr,
          scales ? scales + s.top_begin(f) + block * fragment_top_bytes(f) : nullptr};
}

void pack_fragment_rows(WeightFormat f, bool gated, const FragmentRows& codes, const FragmentRows& scales,
                        int64_t width, const FragmentBlock& to) {
  for (int64_t slab = 0; slab < kFragmentRows; slab += kSlabRows) {
    for (int64_t k = 0; k < width; k += kFragmentWidth) {
      std::byte* block = to.codes + k / kFragmentWidth * fragment_code_bytes(f.w);
      for (int64_t r = slab; r < slab + 8; ++r) {
        const std::byte *low = codes[static_cast<size_t>(r)], *high = codes[static_cast<size_t>(r + 8)];
        if (f.w == DType::kE4M3) {
          pack_row8(low ? low + k : nullptr, width - k, r, block);
          pack_row8(high ? high + k : nullptr, width - k, r + 8, block);
        } else {
          pack_row_pair(load_piece(low, k, width), load_piece(high, k, width), block + pair_place(r));
        }
      }
    }
  }
  pack_scales(f, gated, codes, scales, width, to);
}

void unpack_fragment_rows(WeightFormat f, const FragmentBlock& from, int64_t width,
                          const FragmentRowsOut& codes, const FragmentRowsOut& scales) {
  for (int64_t slab = 0; slab < kFragmentRows; slab += kSlabRows) {
    for (int64_t k = 0; k < width; k += kFragmentWidth) {
      const std::byte* block = from.codes + k / kFragmentWidth * fragment_code_bytes(f.w);
      const int64_t count = std::min(kFragmentWidth, width - k);
      for (int64_t r = slab; r < slab + 8; ++r) {
        std::byte *low_row = codes[static_cast<size_t>(r)], *high_row = codes[static_cast<size_t>(r + 8)];
        if (f.w == DType::kE4M3) {
          if (low_row) unpack_row8(block, r, count, low_row + k);
          if (high_row) unpack_row8(block, r + 8, count, high_row + k);
          continue;
        }
        RowPiece low, high;
        unpack_row_pair(block + pair_place(r), &low, &high);
        const auto bytes = static_cast<size_t>(count / 2);
        if (low_row) std::memcpy(low_row + k / 2, low.bytes.data(), bytes);
        if (high_row) std::memcpy(high_row + k / 2, high.bytes.data(), bytes);
      }
    }
  }
  for (int64_t r = 0; r < kFragmentRows; ++r)
    if (std::byte* row = scales[static_cast<size_t>(r)]) unpack_scales(f, from, width, r, row);
}

namespace {

constexpr int64_t kChunk = 8;  // elements that are contiguous in the bf16 layout

// Calls f(element of the row, element of the block, count) for each chunk of a row.
template <class F>
void for_each_chunk(int64_t row, int64_t width, F f) {
  const FragmentShape shape{1, round_up(width, kFragmentWidth) / kFragmentWidth};
  for (int64_t k = 0; k < width; k += kChunk)
    f(k, fragment_bf16_index(shape, {0, row}, k), std::min(kChunk, width - k));
}

}  // namespace

void pack_fragment_rows_bf16(const FragmentRows& rows, int64_t width, std::byte* to) {
  const int64_t padded = round_up(width, kFragmentWidth);
  if (padded != width || std::find(rows.begin(), rows.end(), nullptr) != rows.end())
    std::memset(to, 0, static_cast<size_t>(kFragmentRows * padded * 2));
  for (int64_t r = 0; r < kFragmentRows; ++r)
    if (const std::byte* row = rows[static_cast<size_t>(r)])
      for_each_chunk(r, width, [&](int64_t k, int64_t at, int64_t count) {
        std::memcpy(to + 2 * at, row + 2 * k, static_cast<size_t>(2 * count));
      });
}

void unpack_fragment_rows_bf16(const std::byte* from, int64_t width, const FragmentRowsOut& rows) {
  for (int64_t r = 0; r < kFragmentRows; ++r)
    if (std::byte* row = rows[static_cast<size_t>(r)])
      for_each_chunk(r, width, [&](int64_t k, int64_t at, int64_t count) {
        std::memcpy(row + 2 * k, from + 2 * at, static_cast<size_t>(2 * count));
      });
}

}  // namespace sluice
