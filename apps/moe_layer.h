// sluice moe: one MoE layer of a known model, with random weights in the real layout, on this machine.
#pragma once
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "base/status.h"

namespace sluice::apps {

struct MoeLayerOptions {
  std::string model = "gpt-oss-20b";
  std::vector<int64_t> tokens = {1, 16, 256};
  int threads = 0;  // 0: one for each processor
  uint64_t seed = 1;
  bool json = false;
};

// Makes the weights, prints the kernel of each stage, holds four tokens to the references stage by stage,
// times the layer at each token count, and compares eager with recorded runs bit by bit. kInvalidArgument for
// an unknown model or count; kOutOfMemory before anything is allocated when the layer does not fit; kCorrupt
// if a check fails.
Status run_moe_layer(const MoeLayerOptions& options, std::ostream& out);

}  // namespace sluice::apps
