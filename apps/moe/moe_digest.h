// sluice moe MODEL --digest: what a layer with reproducible weights computes, for comparison with a program outside.
#pragma once
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/tensor.h"
#include "nn/moe/slice.h"

namespace sluice::apps {

struct MoeDigestOptions {
  std::string model = "gpt-oss-20b";
  std::vector<int64_t> tokens = {1};
  Backend backend = Backend::kCpu;
  int index = 0;    // of the GPU
  int threads = 0;  // of the CPU; 0: one for each processor
  Slice slice = {};
};

// Makes the weights of a gpt-oss layer as its checkpoint has them, by the formula of examples/layer.c, loads them, runs the layer and
// writes a line for each count of tokens with the FNV-1a hash of y, as that program does. kInvalidArgument for another model.
Status write_moe_digests(const MoeDigestOptions& options, std::ostream& out);

// As a command: prints it.
int moe_digest(MoeDigestOptions options, const std::string& device);

}  // namespace sluice::apps
