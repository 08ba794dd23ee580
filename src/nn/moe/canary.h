// A few rows of a loaded layer, computed by the kernels that will serve and held against the checkpoint's own bytes.
#pragma once
#include <cstdint>

#include "nn/moe/load.h"

namespace sluice {

struct CanaryOptions {
  int64_t tokens = 2;    // random rows of x; their kernels are those that serve so many tokens
  int64_t features = 6;  // of each matrix: the first, the last and random ones
  uint64_t seed = 1;
  Policy policy = {};  // what the layer is planned with
  MoeBackend backend = {};
};

// Sends random tokens through the first, the last and a random expert of this rank, W13 with its activation and then W2, and
// through the shared expert; holds a few features of each against a double-precision reference (ops/expert_gemm.h) of the
// weights as the checkpoint has them, within the contract's bound. What packing, slicing, the layout and the kernels must agree on
// is wrong otherwise, so kCorrupt then says: do not serve. It names layer, stage, kernel, expert and feature, what was wanted and
// what was found. Where the experts of so many tokens run as one operation, one token or row of that is
// held against a whole expert, too: a fraction of a second. Reads a few of the packed experts once: milliseconds.
Status canary(Device& device, const LoadedMoe& loaded, const Checkpoint& checkpoint,
              const CanaryOptions& options = {});

}  // namespace sluice
