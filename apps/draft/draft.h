// sluice draft: loads, checks and times the draft layer of a checkpoint on this machine.
#pragma once
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/commands.h"
#include "apps/common/step_timing.h"
#include "base/status.h"

namespace sluice::apps {

struct DraftOptions {
  std::string model;  // a directory
  int64_t layer = 0;  // index among the model's draft layers
  std::vector<int64_t> tokens = {1, 2, 4, 8};
  int64_t context = 128;       // previous positions of each token
  std::string dtype = "auto";  // type of activations: auto, bfloat16, float32
  // Of the main model: the device of its MoE layers ("cuda"; empty: the CPU, like the rest), and the type of its router scores.
  std::string experts, router_dtype = "float32";
  // The same for the draft layer. Empty: as the main model.
  std::string speculative_moe_backend, speculative_router_dtype;
  int threads = 0;  // 0: one per processor
  uint64_t seed = 1;
};

struct DraftReport {
  std::string model, device, experts, router_dtype;
  int64_t layer = 0;  // its number in the checkpoint
  double weight_bytes = 0, load_seconds = 0;
  std::vector<StepTiming> timings;
};

// Loads the layer, compares its experts with the references, and times its steps on random hidden states. Writes progress to `words`
// unless null. Errors as in LoadedMtp::load (models/mtp.h); kInvalidArgument: a wrong count, context or name; kCorrupt: bits differ
// between runs.
Result<DraftReport> run_draft(const DraftOptions& options, std::ostream* words);

std::string draft_json(const DraftReport& report);
// The command: prints the report.
int draft(const DraftOptions& options, Format format);

}  // namespace sluice::apps
