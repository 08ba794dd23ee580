#include "ops/fragment_codec.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/dtype.h"

namespace sluice {
namespace {

// Packed weights have the same bytes on every machine: words are little-endian, and so is every machine that Sluice supports.
static_assert(std::endian::native == std::endian::little);

constexpr int64_t kSlabRows = 16, kStepBytes = 8;  // codes of 16 columns of one row

// Contribution of a checkpoint's byte (two codes, the even one low) to a word, for each of the word's four pairs.
using PairTable = std::array<uint32_t, 256>;
constexpr PairTable pair_table(int pair) {
  PairTable out{};
  for (uint32_t byte = 0; byte < 256; ++byte)
    out[byte] = fragment_word(fragment_pair_of(byte & 15, byte >> 4), pair);
  return out;
}
constexpr std::array<PairTable, 4> kPairs = {pair_table(0), pair_table(1), pair_table(2), pair_table(3)};

constexpr std::array<std::byte, kFragmentWidth / 2> kZeros{};

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

// Offset in the block's codes of the sixteen words of rows r and r + 8; `row` is the lower row.
constexpr int64_t pair_place(int64_t row) {
  return (row / kSlabRows * 32 + row % 8 * 4) * static_cast<int64_t>(sizeof(uint32_t) * 4);
}

uint8_t top_of(const std::byte* scales, int64_t blocks) {
  uint8_t top = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const auto scale = static_cast<uint8_t>(scales[b]);
    if (scale != 255) top = std::max(top, scale);
  }
  return top;
}

// Zeroes the codes that the NaN scale of block b (of 32 columns) of a row covers.
void clear_codes(FragmentRow at, int64_t k_blocks, int64_t b, std::byte* codes) {
  const FragmentShape shape{1, k_blocks};
  for (int64_t k = b * kMxBlock; k < (b + 1) * kMxBlock; k += 2) {
    const FragmentCode c = fragment_code(shape, at, k);
    uint32_t word;
    std::memcpy(&word, codes + 4 * c.word, sizeof word);
    word ^= fragment_word(fragment_pair(word, c.pair), c.pair);
    std::memcpy(codes + 4 * c.word, &word, sizeof word);
  }
}

void pack_scales(const FragmentRows& rows, int64_t width, const FragmentBlock& to) {
  const int64_t blocks = width / kMxBlock, k_blocks = round_up(width, kFragmentWidth) / kFragmentWidth;
  const FragmentShape shape{1, k_blocks};
  std::memset(to.scales, 0, static_cast<size_t>(k_blocks * kFragmentScaleBytes));
  for (int64_t r = 0; r < kFragmentRows; ++r) {
    const std::byte* row = rows[static_cast<size_t>(r)];
    const uint8_t top = row ? top_of(row, blocks) : 0;
    to.top[r] = std::byte{top};
    for (int64_t b = 0; row && b < blocks; ++b) {
      const uint8_t stored = fragment_stored_scale(static_cast<uint8_t>(row[b]), top);
      to.scales[fragment_scale_index(shape, {0, r}, b * kMxBlock)] = std::byte{stored};
      if (stored == kFragmentNan) clear_codes({0, r}, k_blocks, b, to.codes);
    }
  }
}

}  // namespace

FragmentBlock fragment_block(const FragmentShape& s, std::byte* w, std::byte* scales, int64_t block) {
  const bool mxfp4 = scales != nullptr;
  return {w + block * (s.code_bytes(mxfp4) / s.row_blocks),
          mxfp4 ? scales + block * s.k_blocks * kFragmentScaleBytes : nullptr,
          mxfp4 ? scales + s.top_begin() + block * kFragmentRows : nullptr};
}

void pack_fragment_rows(const FragmentRows& codes, const FragmentRows& scales, int64_t width,
                        const FragmentBlock& to) {
  for (int64_t slab = 0; slab < kFragmentRows; slab += kSlabRows) {
    for (int64_t k = 0; k < width; k += kFragmentWidth) {
      std::byte* block = to.codes + k / kFragmentWidth * kFragmentCodeBytes;
      for (int64_t r = slab; r < slab + 8; ++r)
        pack_row_pair(load_piece(codes[static_cast<size_t>(r)], k, width),
                      load_piece(codes[static_cast<size_t>(r + 8)], k, width), block + pair_place(r));
    }
  }
  pack_scales(scales, width, to);
}

void unpack_fragment_rows(const FragmentBlock& from, int64_t width, const FragmentRowsOut& codes,
                          const FragmentRowsOut& scales) {
  for (int64_t slab = 0; slab < kFragmentRows; slab += kSlabRows) {
    for (int64_t k = 0; k < width; k += kFragmentWidth) {
      const std::byte* block = from.codes + k / kFragmentWidth * kFragmentCodeBytes;
      const auto bytes = static_cast<size_t>(std::min(kFragmentWidth, width - k) / 2);
      for (int64_t r = slab; r < slab + 8; ++r) {
        RowPiece low, high;
        unpack_row_pair(block + pair_place(r), &low, &high);
        if (std::byte* row = codes[static_cast<size_t>(r)]) std::memcpy(row + k / 2, low.bytes.data(), bytes);
        if (std::byte* row = codes[static_cast<size_t>(r + 8)])
          std::memcpy(row + k / 2, high.bytes.data(), bytes);
      }
    }
  }
  const FragmentShape shape{1, round_up(width, kFragmentWidth) / kFragmentWidth};
  for (int64_t r = 0; r < kFragmentRows; ++r) {
    std::byte* row = scales[static_cast<size_t>(r)];
    for (int64_t k = 0; row && k < width; k += kMxBlock) {
      const auto stored = static_cast<uint8_t>(from.scales[fragment_scale_index(shape, {0, r}, k)]);
      const int scale = fragment_scale(stored, static_cast<uint8_t>(from.top[r]));
      row[k / kMxBlock] = static_cast<std::byte>(stored == kFragmentNan ? 255 : scale);
    }
  }
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
