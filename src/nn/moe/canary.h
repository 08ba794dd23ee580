// Self-test of a loaded layer: computes a few rows with the kernels that inference will use, and compares
// them with a reference that reads the checkpoint's bytes.
#pragma once
#include <cstdint>

#include "nn/moe/load.h"

namespace sluice {

struct CanaryOptions {
  int64_t tokens = 2;    // random rows of x; the kernels for this token count are tested
  int64_t features = 6;  // features checked per matrix: the first, the last and random ones
  uint64_t seed = 1;
  Policy policy = {};  // the policy with which the layer is planned
  MoeBackend backend = {};
};

// Runs random tokens through the first, the last and a random expert of this rank (W13 with its activation,
// then W2) and through the shared expert. Compares a few features of each with a double-precision reference
// (ops/expert_gemm.h) on the checkpoint's weights, within the error bound of ops/expert_gemm.h. A mismatch
// means that packing, slicing, layout and kernels disagree, so the layer must not be used: kCorrupt names the
// layer, stage, kernel, expert and feature, what was wanted and what was found. The test reads a few packed
// experts once and takes milliseconds. If the experts run as one fused operation at this token count, the
// test also compares one token or row with a whole expert, which takes a fraction of a second.
Status canary(Device& device, const LoadedMoe& loaded, const Checkpoint& checkpoint,
              const CanaryOptions& options = {});

}  // namespace sluice
