// Panels times many rows, by 16 x 16 x 32 tiles of bf16 (AMX).
//
// The rows of x are gathered once into tiles of 1 KiB, padded with zeros. A panel's block of 32 k is one tile
// of weights, as it lies in memory (bf16) or after decoding (mxfp4). Two panels and 32 rows of x make four
// sums, and with two tiles of x and two of weights that is all eight registers. Decoding runs one block
// ahead of the multiplication, so that the two overlap, and for more than 32 rows its result is kept in the
// first-level cache, a chunk of blocks at a time, while the other rows sweep over it.
//
// The scale is folded into the decoded weight relative to the row's largest scale r, as value * 2^(s - r): an
// exponent, so exact as far as 126 below r, and the last step multiplies by 2^(r - 127).
#pragma once
#include "backends/cpu/panels/job.h"

namespace sluice::cpu {

size_t tile_scratch_bytes(const PanelJob& job, int threads);
void run_tiles(const PanelJob& job, ThreadPool& pool, const PanelSink& sink);

}  // namespace sluice::cpu
