// sluice moe: one MoE layer of a known model, with random weights in the real layout, on this machine or its GPU.
#pragma once
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/commands.h"
#include "apps/common/step_timing.h"
#include "nn/moe/layer.h"

namespace sluice::apps {

struct MoeLayerOptions {
  std::string model = "gpt-oss-20b";  // of known_moe(), or a layer's fields: "hidden=2880 experts=128 ..."
  std::vector<int64_t> tokens = {1, 16, 256};
  Backend backend = Backend::kCpu;  // the device: this machine's CPU or its GPU
  MoeBackend experts = {};
  int threads = 0;  // 0: one for each processor
  uint64_t seed = 1;
};

struct MoeLayerReport {
  std::string model, device, layout;
  double weight_bytes = 0;
  std::vector<StageCheck> checks;
  std::vector<StepTiming> timings;
};

// Makes the weights, holds four tokens to the references stage by stage, times the layer at each count of tokens, and
// compares eager with recorded runs bit by bit. Writes to `words` as it goes, when given. kInvalidArgument for an
// unknown model, a kernel that the device has not or a bad count; kUnsupported where there is no GPU; kOutOfMemory before anything is allocated when the layer does not fit; kCorrupt when
// a check fails.
Result<MoeLayerReport> run_moe_layer(const MoeLayerOptions& options, std::ostream* words);

std::string moe_layer_json(const MoeLayerReport& report);
// As a command: prints it.
int moe(const MoeLayerOptions& options, Format format);

}  // namespace sluice::apps
