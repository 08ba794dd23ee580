// Panels times a few rows, by dot products of bf16 pairs (AVX-512 BF16).
//
// One register holds the pair (k, k + 1) of 16 rows of weights, as it lies in memory or after one shift and
// one lookup, and meets the same pair of x broadcast to all lanes. The 32 products of an mxfp4 block are
// summed without their scale, which costs one multiply-add a block. Groups of up to four rows of x share the
// decoding; more rows than that decode again, from the second-level cache: with AMX at hand tiles.h is the
// better engine then.
//
// The order of a row's sum depends on the width alone.
#pragma once
#include "backends/cpu/panels/job.h"

namespace sluice::cpu {

size_t dot_scratch_bytes(const PanelJob& job);
void run_dot(const PanelJob& job, ThreadPool& pool, const PanelSink& sink);

}  // namespace sluice::cpu
