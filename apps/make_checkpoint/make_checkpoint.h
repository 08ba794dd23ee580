// Checkpoints with random weights in a model's real layout: for speed, memory and every path that real ones take.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "models/random_weights.h"

namespace sluice::apps {

struct MakeOptions {
  std::string directory;  // new or empty
  std::string like = "gpt-oss-20b";
  int64_t layers = 0;  // 0: as many as the model has
  uint64_t seed = 0;
  Routing routing = Routing::kUniform;
  std::string only;  // tensors whose names contain it are written, and no others; empty: all
  enum class Weights : uint8_t { kWrite, kLeaveOut } weights = Weights::kWrite;
};

// Called with bytes as they are written: a Status that is not ok ends the work and is the answer.
using MakeProgress = std::function<Status(int64_t done, int64_t all)>;

// Writes config.json and model.safetensors: of a model that Sluice runs everything, with a stand-in tokenizer, of others the MoE layers. Without
// weights, the configs and the tokenizer of a model that it runs alone: `--load-format dummy` makes the same weights of them. Tensors are
// written in chunks, so no model is too large for memory. Everything lies in a folder .partial-PID of the directory until it is
// whole. A failure leaves nothing behind; what a killed process left is removed by the next one. kInvalidArgument names the option;
// kIo the file and, on a full disk, the bytes wanted.
Status make_checkpoint(const MakeOptions& options, const MakeProgress& progress);

// What that is: "gpt-oss-20b", or which MoE layers of a model that Sluice does not run, and how its experts are stored.
std::string made_text(const MakeOptions& options);

// As a command.
int make_checkpoint_command(const MakeOptions& options);

}  // namespace sluice::apps
