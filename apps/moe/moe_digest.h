// sluice moe MODEL --digest: hashes the output of a layer with reproducible weights, for comparison with other programs.
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
  int index = 0;    // index of the GPU
  int threads = 0;  // CPU threads; 0: one per processor
  Slice slice = {};
};

// Generates the weights of a gpt-oss layer in the checkpoint's format, by the formula of examples/layer.c, and runs the layer. Writes a line per
// token count with the FNV-1a hash of y, in the output format of examples/layer.c. kInvalidArgument: the model is not gpt-oss.
Status write_moe_digests(const MoeDigestOptions& options, std::ostream& out);

// The command: prints the lines.
int moe_digest(MoeDigestOptions options, const std::string& device);

}  // namespace sluice::apps
