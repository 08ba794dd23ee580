// Checkpoints with random weights in a model's real layout: for speed, memory and every path that real ones take.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"

namespace sluice::apps {

struct MakeOptions {
  std::string directory;  // new or empty
  std::string like = "gpt-oss-20b";
  int64_t layers = 0;  // 0: as many as the model has
  uint64_t seed = 0;
};

// Writes config.json and model.safetensors: of gpt-oss models everything but a tokenizer, of others the MoE layers. Tensors are written in chunks, so no model is too large
// for memory. kInvalidArgument names the option; kIo the file and, on a full disk, the bytes wanted. Nothing is left behind by
// a failure. `progress(done, all)`: bytes.
Status make_checkpoint(const MakeOptions& options, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace sluice::apps
