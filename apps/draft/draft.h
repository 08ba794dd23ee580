// sluice draft: the draft layer of a checkpoint on this machine: loaded, checked, timed.
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
  int64_t layer = 0;  // of the model's draft layers
  std::vector<int64_t> tokens = {1, 2, 4, 8};
  int64_t context = 128;       // positions before each token
  std::string dtype = "auto";  // activations: auto, bfloat16, float32
  // The main model's: where its MoE layers are ("cuda"; empty: the CPU, as the rest) and the type of their router's scores.
  std::string experts, router_dtype = "float32";
  // The draft's own; empty: the main model's.
  std::string speculative_moe_backend, speculative_router_dtype;
  int threads = 0;  // 0: one for each processor
  uint64_t seed = 1;
};

struct DraftReport {
  std::string model, device, experts, router_dtype;
  int64_t layer = 0;  // its number in the checkpoint
  double weight_bytes = 0, load_seconds = 0;
  std::vector<StepTiming> timings;
};

// Loads the layer, holding its experts to the references, and times steps of it on random hidden states. Writes to `words` as it
// goes, when given. Errors as LoadedMtp::load (models/mtp.h); kInvalidArgument for a count, a context or a word that cannot be;
// kCorrupt when bits differ from run to run.
Result<DraftReport> run_draft(const DraftOptions& options, std::ostream* words);

std::string draft_json(const DraftReport& report);
// As a command: prints it.
int draft(const DraftOptions& options, Format format);

}  // namespace sluice::apps
