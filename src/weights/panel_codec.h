// Converts sixteen rows to and from one panel (ops/weight_layout.h): the inner loops of packing.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "ops/weight_layout.h"

namespace sluice {

// The row of each lane; pointers need no alignment. Null: padding, which is packed as zeros with e8m0 scales
// of 127, and which unpacking skips.
using PanelLanes = std::array<const std::byte*, kPanelRows>;
using PanelLanesOut = std::array<std::byte*, kPanelRows>;

// width % 32 == 0. `panel` holds width / 32 blocks of 256 bytes.
void pack_panel_codes(const PanelLanes& rows, int64_t width, std::byte* panel);
void unpack_panel_codes(const std::byte* panel, int64_t width, const PanelLanesOut& rows);
// The rows' scales (ops/weight_format.h); `panel` holds PanelShape::panel_scale_bytes().
void pack_panel_scales(WeightFormat format, const PanelLanes& rows, int64_t width, std::byte* panel);
void unpack_panel_scales(WeightFormat format, const std::byte* panel, int64_t width,
                         const PanelLanesOut& rows);
// Any width >= 1; `panel` is [round_up(width, 32)][16] codes of e4m3.
void pack_panel_e4m3(const PanelLanes& rows, int64_t width, std::byte* panel);
void unpack_panel_e4m3(const std::byte* panel, int64_t width, const PanelLanesOut& rows);
// Any width >= 1; `panel` is [round_up(width, 32) / 2][16][2] bf16.
void pack_panel_bf16(const PanelLanes& rows, int64_t width, std::byte* panel);
void unpack_panel_bf16(const std::byte* panel, int64_t width, const PanelLanesOut& rows);

}  // namespace sluice
