// Panels times many rows, by 16 x 16 x 32 tiles of bf16 (AMX).
//
// The rows of x are gathered once into tiles of 1 KiB, padded with zeros. A panel's block of 32 k is
// one tile of weights, as stored (bf16) or after decoding (mxfp4). Two panels and 32 rows of x make
// four tiles of sums; with two tiles of x and two of weights they use all eight registers. Decoding
// runs three blocks ahead of the multiplication, so that the two overlap. For more than 32 rows, a
// chunk of blocks at a time is decoded and stays in the L1 cache while all groups of rows use it.
//
// The decoded weight includes its scale s relative to the row's largest scale r, as value * 2^(s - r). This
// changes only the exponent, so it is exact for s down to r - 126. The last step multiplies by 2^(r - 127).
#pragma once
#include "backends/cpu/panels/job.h"

namespace sluice::cpu {

size_t tile_scratch_bytes(const PanelJob& job, int threads);
void run_tiles(const PanelJob& job, ThreadPool& pool, const PanelSink& sink);

}  // namespace sluice::cpu
