// Self-test of a loaded layer: compares a few rows, computed by the kernels that will serve, with a
// reference on the checkpoint's bytes.
#pragma once
#include <cstdint>

#include "nn/moe/load.h"

namespace sluice {

struct CanaryOptions {
  int64_t tokens = 2;    // random rows of x; the kernels for this token count are tested
  int64_t features = 6;  // features checked of each matrix: the first, the last and random ones
  uint64_t seed = 1;
  Policy policy = {};  // the policy that the layer is planned with
  MoeBackend backend = {};
};

// Sends random tokens through the first, the last and a random expert of this rank (W13 with its
// activation, then W2) and through the shared expert. Compares a few features of each with a
// double-precision reference (ops/expert_gemm.h) on the checkpoint's weights, within the contract's bound.
// A mismatch means that packing, slicing, layout and kernels disagree: the layer must not serve. The error
// is kCorrupt and names layer, stage, kernel, expert and feature, what was wanted and what was found. If
// the experts run as one fused operation at this token count, one of its tokens or rows is also compared
// with a whole expert, which takes a fraction of a second. Otherwise the test reads a few packed experts
// once and takes milliseconds.
Status canary(Device& device, const LoadedMoe& loaded, const Checkpoint& checkpoint,
              const CanaryOptions& options = {});

}  // namespace sluice
