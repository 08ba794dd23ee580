// Panels times a few rows, with 16 features side by side in a vector.
//
// bf16 weights: dot products of bf16 pairs (AVX-512 BF16), read as stored. mxfp4 weights: one shift and one lookup decode 16 codes to
// floats. Multiply-adds in f32 (AVX-512) add up the 32 products of a block without their scale; one more multiply-add per block
// applies the scale. Up to four rows of x share the decoding. More rows decode again, from the L2 cache: with AMX, tiles.h is then faster.
//
// The order of a row's sum depends only on the width.
#pragma once
#include "backends/cpu/panels/job.h"

namespace sluice::cpu {

size_t dot_scratch_bytes(const PanelJob& job);
void run_dot(const PanelJob& job, ThreadPool& pool, const PanelSink& sink);

}  // namespace sluice::cpu
