#include "weights/panel_codec.h"

#include <bit>
#include <cstring>

#include "base/dtype.h"

namespace sluice {
namespace {

// A panel's words are little-endian, and so is every machine that Sluice supports.
static_assert(std::endian::native == std::endian::little);

constexpr int64_t kWordCodes = 8;   // codes in one word of a lane
constexpr int64_t kLineBytes = 64;  // a line is one word of each lane
constexpr int64_t kPaddingScale = 127;

// Converts 16 codes from a checkpoint's order (the even code in the low nibble) to two words of eight codes,
// with the even codes in the low half and the odd codes in the high half.
uint64_t spread(uint64_t codes) {
  const auto together = [](uint64_t nibbles) {  // 0a0b0c0d in each half -> 0000abcd
    nibbles = (nibbles | nibbles >> 4) & 0x00FF00FF00FF00FF;
    return (nibbles | nibbles >> 8) & 0x0000FFFF0000FFFF;
  };
  return together(codes & 0x0F0F0F0F0F0F0F0F) | together(codes >> 4 & 0x0F0F0F0F0F0F0F0F) << 16;
}

uint64_t gather(uint64_t words) {
  const auto apart = [](uint64_t nibbles) {
    nibbles = (nibbles | nibbles << 8) & 0x00FF00FF00FF00FF;
    return (nibbles | nibbles << 4) & 0x0F0F0F0F0F0F0F0F;
  };
  return apart(words & 0x0000FFFF0000FFFF) | apart(words >> 16 & 0x0000FFFF0000FFFF) << 4;
}

bool all_there(const PanelLanes& rows) {
  for (const std::byte* row : rows)
    if (!row) return false;
  return true;
}

// Packs one lane of one block: 16 bytes become four words, one in each line of the block.
void pack_lane(const std::byte* row, std::byte* to) {
  uint64_t half[2];
  std::memcpy(half, row, sizeof half);
  for (int i = 0; i < 2; ++i) {
    const uint64_t words = spread(half[i]);
    const uint32_t low = static_cast<uint32_t>(words), high = static_cast<uint32_t>(words >> 32);
    std::memcpy(to + (2 * i) * kLineBytes, &low, sizeof low);
    std::memcpy(to + (2 * i + 1) * kLineBytes, &high, sizeof high);
  }
}

}  // namespace

void pack_panel_codes(const PanelLanes& rows, int64_t width, std::byte* panel) {
  const int64_t blocks = width / kMxBlock;
  const auto lane_bytes = static_cast<int64_t>(sizeof(uint32_t));
  if (!all_there(rows)) std::memset(panel, 0, static_cast<size_t>(blocks * 4 * kLineBytes));
  for (int64_t b = 0; b < blocks; ++b, panel += 4 * kLineBytes)
    for (int64_t lane = 0; lane < kPanelRows; ++lane)
      if (const std::byte* row = rows[static_cast<size_t>(lane)])
        pack_lane(row + b * (kMxBlock / 2), panel + lane * lane_bytes);
}

void unpack_panel_codes(const std::byte* panel, int64_t width, const PanelLanesOut& rows) {
  for (int64_t k = 0; k < width; k += kMxBlock, panel += 4 * kLineBytes) {
    for (int64_t lane = 0; lane < kPanelRows; ++lane) {
      std::byte* row = rows[static_cast<size_t>(lane)];
      if (!row) continue;
      for (int64_t v = 0; v < kMxBlock / kWordCodes; v += 2) {
        uint32_t low = 0, high = 0;
        std::memcpy(&low, panel + v * kLineBytes + lane * 4, sizeof low);
        std::memcpy(&high, panel + (v + 1) * kLineBytes + lane * 4, sizeof high);
        const uint64_t codes = gather(low | uint64_t{high} << 32);
        std::memcpy(row + (k + v * kWordCodes) / 2, &codes, sizeof codes);
      }
    }
  }
}

namespace {

// The elements of a panel's scales: first the column scales, padded like the width, then the rows' f32
// scales.
struct PanelScales {
  WeightFormat format;
  int64_t width;

  int64_t padded() const { return format.column_scales(round_up(width, kMxBlock)); }
  // Calls f(offset in the panel, offset in the row or -1 for padding, bytes) for every element of a lane.
  template <class F>
  void for_each(int64_t lane, F f) const {
    const int64_t bytes = format.column_scale_bytes(), own = format.column_scales(width);
    for (int64_t i = 0; i < padded(); ++i)
      f((i * kPanelRows + lane) * bytes, i < own ? i * bytes : -1, bytes);
    if (format.has_row_scale()) f(padded() * kPanelRows * bytes + lane * 4, own * bytes, int64_t{4});
  }
};

}  // namespace

void pack_panel_scales(WeightFormat f, const PanelLanes& rows, int64_t width, std::byte* panel) {
  const int padding = f.scales == WeightScales::kMx ? kPaddingScale : 0;
  for (int64_t lane = 0; lane < kPanelRows; ++lane) {
    const std::byte* row = rows[static_cast<size_t>(lane)];
    PanelScales{f, width}.for_each(lane, [&](int64_t to, int64_t from, int64_t bytes) {
      if (row && from >= 0) {
        std::memcpy(panel + to, row + from, static_cast<size_t>(bytes));
      } else {
        std::memset(panel + to, padding, static_cast<size_t>(bytes));
      }
    });
  }
}

void unpack_panel_scales(WeightFormat f, const std::byte* panel, int64_t width, const PanelLanesOut& rows) {
  for (int64_t lane = 0; lane < kPanelRows; ++lane) {
    std::byte* row = rows[static_cast<size_t>(lane)];
    PanelScales{f, width}.for_each(lane, [&](int64_t from, int64_t to, int64_t bytes) {
      if (row && to >= 0) std::memcpy(row + to, panel + from, static_cast<size_t>(bytes));
    });
  }
}

void pack_panel_e4m3(const PanelLanes& rows, int64_t width, std::byte* panel) {
  const int64_t padded = round_up(width, kMxBlock);
  if (!all_there(rows) || padded != width) std::memset(panel, 0, static_cast<size_t>(padded * kPanelRows));
  for (int64_t lane = 0; lane < kPanelRows; ++lane)
    if (const std::byte* row = rows[static_cast<size_t>(lane)])
      for (int64_t k = 0; k < width; ++k) panel[k * kPanelRows + lane] = row[k];
}

void unpack_panel_e4m3(const std::byte* panel, int64_t width, const PanelLanesOut& rows) {
  for (int64_t lane = 0; lane < kPanelRows; ++lane)
    if (std::byte* row = rows[static_cast<size_t>(lane)])
      for (int64_t k = 0; k < width; ++k) row[k] = panel[k * kPanelRows + lane];
}

void pack_panel_bf16(const PanelLanes& rows, int64_t width, std::byte* panel) {
  const int64_t pairs = width / 2, padded_pairs = round_up(width, kMxBlock) / 2;
  if (!all_there(rows) || padded_pairs * 2 != width)
    std::memset(panel, 0, static_cast<size_t>(padded_pairs * kLineBytes));
  // 16 pairs of every row at a time, so that lines stay in the cache until all lanes have written to them.
  for (int64_t first = 0; first < pairs; first += 16) {
    const int64_t last = first + 16 < pairs ? first + 16 : pairs;
    for (int64_t lane = 0; lane < kPanelRows; ++lane) {
      const std::byte* row = rows[static_cast<size_t>(lane)];
      if (!row) continue;
      for (int64_t p = first; p < last; ++p) std::memcpy(panel + p * kLineBytes + lane * 4, row + 4 * p, 4);
    }
  }
  if (width % 2 == 0) return;
  for (int64_t lane = 0; lane < kPanelRows; ++lane)
    if (const std::byte* row = rows[static_cast<size_t>(lane)])
      std::memcpy(panel + pairs * kLineBytes + lane * 4, row + 4 * pairs, 2);
}

void unpack_panel_bf16(const std::byte* panel, int64_t width, const PanelLanesOut& rows) {
  for (int64_t lane = 0; lane < kPanelRows; ++lane) {
    std::byte* row = rows[static_cast<size_t>(lane)];
    if (!row) continue;
    for (int64_t p = 0; p < width / 2; ++p) std::memcpy(row + 4 * p, panel + p * kLineBytes + lane * 4, 4);
    if (width % 2) std::memcpy(row + 2 * (width - 1), panel + width / 2 * kLineBytes + lane * 4, 2);
  }
}

}  // namespace sluice
