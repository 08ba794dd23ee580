// Memory layouts of weights. Packing (weights/), kernels and references use these functions.
#pragma once
#include <cstdint>
#include <string_view>

#include "base/fields.h"
#include "base/host_device.h"
#include "ops/weight_format.h"

namespace sluice {

enum class WeightLayout : uint8_t {
  // The layout of checkpoints: w [experts, rows, width]; e2m1 codes two per byte along width, low nibble first; scales
  // u8[experts, rows, bytes of a row's scales] (ops/weight_format.h).
  kRowMajor,
  // For CPUs: panels of 16 rows, so that one vector holds the same k of 16 rows. Width is padded with zeros to a multiple of 32
  // and rows to a multiple of 16 (padding scales are zeros, or 127 for e8m0). A gated layer of n features has 2n rows: panel 2q holds the
  // gates of features 16q .. 16q + 15 and panel 2q + 1 their ups, regardless of the checkpoint's order. The index functions below define the
  // order inside a panel.
  kPanels16,
  // For Hopper: blocks of 64 rows by 64 columns, in which each thread of a warpgroup reads its own fragment of the tensor cores' operand
  // (ops/fragment_layout.h).
  kFragments,
};
template <>
struct EnumWords<WeightLayout> {
  static constexpr std::string_view words[] = {"row_major", "panels16", "fragments"};
};

// The order of gate and up rows in a gated layer's checkpoint, and in its bias.
enum class GateOrder : uint8_t {
  kInterleaved,  // row 2i gate, row 2i + 1 up: gpt-oss
  kGateFirst,    // [gate; up]: most models
  kUpFirst,      // [up; gate]: FlashInfer
};
template <>
struct EnumWords<GateOrder> {
  static constexpr std::string_view words[] = {"interleaved", "gate_first", "up_first"};
};

// The checkpoint row of feature i's gate (up = false) or up (up = true), for `features` features.
SLUICE_HOST_DEVICE constexpr int64_t gated_row(GateOrder order, int64_t features, int64_t i, bool up) {
  if (order == GateOrder::kInterleaved) return 2 * i + up;
  return i + ((order == GateOrder::kUpFirst) != up ? features : 0);
}

constexpr int64_t kPanelRows = 16;
SLUICE_HOST_DEVICE constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Sizes of one expert's panels16 matrix.
struct PanelShape {
  int64_t panels;  // of 16 rows
  int64_t width;   // padded to 32
  SLUICE_HOST_DEVICE constexpr int64_t code_bytes(WeightFormat f) const {
    return panels * kPanelRows * width * (f.w == DType::kE2M1 ? 1 : f.w == DType::kE4M3 ? 2 : 4) / 2;
  }
  // Scales of 16 rows: each row's column scales, padded like the width, and its f32 if it has one.
  SLUICE_HOST_DEVICE constexpr int64_t panel_scale_bytes(WeightFormat f) const {
    return kPanelRows * f.row_scale_bytes(width);
  }
  SLUICE_HOST_DEVICE constexpr int64_t scale_bytes(WeightFormat f) const {
    return panels * panel_scale_bytes(f);
  }
};
SLUICE_HOST_DEVICE constexpr PanelShape panel_shape(int64_t features, bool gated, int64_t width) {
  return {(gated ? 2 : 1) * round_up(features, kPanelRows) / kPanelRows, round_up(width, 32)};
}

// The panel and the lane (row inside the panel) of feature i.
struct PanelRow {
  int64_t panel;
  int64_t lane;
};
SLUICE_HOST_DEVICE constexpr PanelRow panel_row(bool gated, int64_t i, bool up) {
  return {gated ? i / kPanelRows * 2 + up : i / kPanelRows, i % kPanelRows};
}

// bf16: a panel is [width / 2][16 lanes][2] bf16: the pair (k, k + 1) of a row is one 32-bit lane.
SLUICE_HOST_DEVICE constexpr int64_t panel_bf16_index(const PanelShape& s, PanelRow r, int64_t k) {
  return (r.panel * s.width / 2 + k / 2) * kPanelRows * 2 + r.lane * 2 + k % 2;
}
// e2m1: a panel is [width / 32] blocks of 256 bytes; a block is [4][16 lanes] words of 32 bits. Word v of a
// lane holds k = 8v .. 8v + 7 of the block: even k in the low half, odd k in the high half, the pair j = (k % 8)
// / 2 at bits 4j and 16 + 4j. So a shift by 4j leaves the pair (k, k + 1) in the low nibbles of the two halves.
struct NibbleAt {
  int64_t byte;
  int shift;
};
SLUICE_HOST_DEVICE constexpr NibbleAt panel_mxfp4_nibble(const PanelShape& s, PanelRow r, int64_t k) {
  const int64_t block = r.panel * (s.width / 32) + k / 32, v = k % 32 / 8, bit = k % 8 / 2 * 4 + k % 2 * 16;
  return {(block * 4 + v) * 64 + r.lane * 4 + bit / 8, static_cast<int>(bit % 8)};
}
// e4m3: a panel is [width][16 lanes] bytes.
SLUICE_HOST_DEVICE constexpr int64_t panel_e4m3_index(const PanelShape& s, PanelRow r, int64_t k) {
  return (r.panel * s.width + k) * kPanelRows + r.lane;
}
// Scales: a panel is [scales of a row][16 lanes] of one or four bytes, and then, if rows have an f32, f32[16 lanes]. The
// functions return the byte offset of the scale of column k, and of the row's f32.
SLUICE_HOST_DEVICE constexpr int64_t panel_scale_index(const PanelShape& s, WeightFormat f, PanelRow r,
                                                       int64_t k) {
  return r.panel * s.panel_scale_bytes(f) + (k / f.columns() * kPanelRows + r.lane) * f.column_scale_bytes();
}
SLUICE_HOST_DEVICE constexpr int64_t panel_row_scale_index(const PanelShape& s, WeightFormat f, PanelRow r) {
  return r.panel * s.panel_scale_bytes(f) + f.column_scales(s.width) * kPanelRows * f.column_scale_bytes() +
         r.lane * 4;
}

}  // namespace sluice
