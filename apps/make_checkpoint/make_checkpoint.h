// Writes checkpoints with random weights in a model's real layout, to test speed, memory use and the loading of real checkpoints.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "models/random_weights.h"

namespace sluice::apps {

// A form in which quantized experts are published, with its entry in config.json.
struct QuantizationForm {
  std::string_view name;
  WeightFormat format;
  std::string_view config;  // the value of quantization_config
};
std::span<const QuantizationForm> quantization_forms();

struct MakeOptions {
  std::string directory;  // new or empty
  std::string like = "gpt-oss-20b";
  int64_t layers = 0;  // 0: as many as the model has
  uint64_t seed = 0;
  Routing routing = Routing::kUniform;
  std::string quantization;  // name of the form of the experts; empty: the form of known_moe()
  std::string only;          // writes only tensors whose names contain this; empty: all
  enum class Weights : uint8_t { kWrite, kLeaveOut } weights = Weights::kWrite;
};

// Called with the number of bytes written so far. If it returns an error, make_checkpoint() stops and returns the error.
using MakeProgress = std::function<Status(int64_t done, int64_t all)>;

// Writes config.json and model.safetensors. Models that Sluice runs are complete and get a stand-in tokenizer; of others only the MoE layers are
// written. With kLeaveOut, which requires a model that Sluice runs, no weights are written, and `--load-format dummy` generates the same
// weights later. Tensors are written in chunks, so no model is too large for memory. Files are written to a folder .partial-PID of the
// directory and moved when complete. A failed call removes its files; files of a killed process are removed by the next call. The message of
// kInvalidArgument names the option, kIo the file and, if the disk is full, the bytes needed.
Status make_checkpoint(const MakeOptions& options, const MakeProgress& progress);

// Describes the checkpoint: the model, whether only its MoE layers are written, and the type of the experts.
std::string made_text(const MakeOptions& options);

// The command.
int make_checkpoint_command(const MakeOptions& options);

}  // namespace sluice::apps
