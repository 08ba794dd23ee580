// sluice moe: one MoE layer of a known model, with random weights in the real layout, on the CPU or the GPU.
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
  // A name of known_moe(), or fields such as "hidden=2880 experts=128", or a name and fields: "deepseek-v3 expert_w=e4m3 expert_scales=blocks".
  std::string model = "gpt-oss-20b";
  std::vector<int64_t> tokens = {1, 16, 256};
  Backend backend = Backend::kCpu;  // this machine's CPU or its GPU
  MoeBackend experts = {};
  int threads = 0;  // 0: one per processor
  uint64_t seed = 1;
};

struct MoeLayerReport {
  std::string model, device, layout;
  double weight_bytes = 0;
  std::vector<StageCheck> checks;
  std::vector<StepTiming> timings;
};

// Generates the weights, compares the stages of four tokens with their references, times the layer at each token count, and compares the bits of
// eager and captured runs. Writes progress to `words` unless it is null. kInvalidArgument: the model is unknown, the device lacks a kernel, or
// a token count is wrong. kUnsupported: there is no GPU. kOutOfMemory: the layer does not fit, which is detected before allocating. kCorrupt:
// a comparison failed.
Result<MoeLayerReport> run_moe_layer(const MoeLayerOptions& options, std::ostream* words);

std::string moe_layer_json(const MoeLayerReport& report);
// The command: prints the report.
int moe(const MoeLayerOptions& options, Format format);

}  // namespace sluice::apps
