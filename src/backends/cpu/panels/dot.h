// Panels times a few rows, 16 features side by side in a vector.
//
// bf16 weights: dot products of bf16 pairs (AVX-512 BF16), read as they lie. mxfp4 weights: one shift and one lookup
// make 16 floats of a code, and multiply-adds in f32 (AVX-512) sum the 32 products of a block without their scale, which
// costs one more a block. Groups of up to four rows of x share the decoding; more rows than that decode again, from the
// second-level cache: with AMX, tiles.h is the better engine then.
//
// The order of a row's sum depends on the width alone.
#pragma once
#include "backends/cpu/panels/job.h"

namespace sluice::cpu {

size_t dot_scratch_bytes(const PanelJob& job);
void run_dot(const PanelJob& job, ThreadPool& pool, const PanelSink& sink);

}  // namespace sluice::cpu
