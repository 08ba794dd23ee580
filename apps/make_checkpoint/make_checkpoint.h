// Writes checkpoints with random weights in a model's real layout, to test speed, memory and every code path of real checkpoints.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "models/random_weights.h"

namespace sluice::apps {

// A published form of quantized experts, and what config.json says about it.
struct QuantizationForm {
  std::string_view name;
  WeightFormat format;
  std::string_view config;  // quantization_config
};
std::span<const QuantizationForm> quantization_forms();

struct MakeOptions {
  std::string directory;  // new or empty
  std::string like = "gpt-oss-20b";
  int64_t layers = 0;  // 0: as many as the model has
  uint64_t seed = 0;
  Routing routing = Routing::kUniform;
  std::string quantization;  // the experts' form; empty: the form of known_moe()
  std::string only;          // writes only tensors whose names contain this; empty: all
  enum class Weights : uint8_t { kWrite, kLeaveOut } weights = Weights::kWrite;
};

// Called with the number of written bytes. An error stops the work and is returned.
using MakeProgress = std::function<Status(int64_t done, int64_t all)>;

// Writes config.json and model.safetensors: complete and with a stand-in tokenizer for models that Sluice runs, else only the MoE layers.
// With kLeaveOut, only configs and tokenizer are written; `--load-format dummy` then generates the same weights. kLeaveOut requires a
// model that Sluice runs. Tensors are written in chunks, so no model is too large for memory. Files are written to a folder .partial-PID
// of the directory and moved when complete. A failure leaves no files behind; the next call removes what a killed process left behind.
// kInvalidArgument names the option; kIo names the file and, on a full disk, the bytes needed.
Status make_checkpoint(const MakeOptions& options, const MakeProgress& progress);

// Describes the checkpoint: "gpt-oss-20b", or the MoE layers of a model that Sluice does not run, and the type of the experts.
std::string made_text(const MakeOptions& options);

// The command.
int make_checkpoint_command(const MakeOptions& options);

}  // namespace sluice::apps
