// Converts sixteen rows to and from one panel (ops/weight_layout.h): the inner loops of packing.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "ops/weight_layout.h"

namespace sluice {

// The row of each lane, without alignment; null: padding, packed as zeros with scale 127 and skipped by unpacking.
using PanelLanes = std::array<const std::byte*, kPanelRows>;
using PanelLanesOut = std::array<std::byte*, kPanelRows>;

// width % 32 == 0. `panel` is width / 32 blocks of 256 bytes.
void pack_panel_codes(const PanelLanes& rows, int64_t width, std::byte* panel);
void unpack_panel_codes(const std::byte* panel, int64_t width, const PanelLanesOut& rows);
// `blocks` scales of each row; `panel` is [blocks][16].
void pack_panel_scales(const PanelLanes& rows, int64_t blocks, std::byte* panel);
void unpack_panel_scales(const std::byte* panel, int64_t blocks, const PanelLanesOut& rows);
// Any width >= 1; `panel` is [round_up(width, 32) / 2][16][2] bf16.
void pack_panel_bf16(const PanelLanes& rows, int64_t width, std::byte* panel);
void unpack_panel_bf16(const std::byte* panel, int64_t width, const PanelLanesOut& rows);

}  // namespace sluice
