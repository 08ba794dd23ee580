// A model ready to answer: device, weights, tokenizer, engine.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "models/load.h"
#include "serve/engine.h"

namespace sluice::apps {

// Names and meanings are vLLM's where vLLM has them.
struct ModelFlags {
  std::string model;            // a directory; empty: the model that ships with Sluice
  int threads = 0;              // of the CPU; 0: one for each processor
  std::string experts;          // the device that MoE layers run on: "cuda"; empty: the CPU, as the rest
  MoeBackend moe_backend = {};  // kernels of the experts
  std::string dtype = "auto";   // activations: auto, bfloat16, float32
  int64_t max_model_len = 0;    // tokens of a sequence; 0: the model's context, at most 8192
  int64_t max_num_seqs = 8, max_num_batched_tokens = 512;
  double kv_cache_gib = 0;  // 0: enough for max_num_seqs sequences of max_model_len
  bool batch_invariant = false;
  bool quiet = false;  // no progress bar and no line about what was loaded
};

struct Session {
  std::unique_ptr<Device> device, experts;
  std::unique_ptr<LoadedModel> model;
  std::unique_ptr<Engine> engine;  // refers to what stands above
  std::string directory;
  double load_seconds = 0;
};

// Shows a progress bar on standard error while it is a terminal, and one line about the model and its kernels.
Result<Session> open_session(const ModelFlags& flags);

// --dtype: auto, bfloat16, float32.
Result<DType> dtype_of(const std::string& name);
// Where the shipped model lies: beside the program that runs, or where it was built.
Result<std::string> shipped_model();
// The one that is named, or that one.
Result<std::string> model_directory(const std::string& named);

}  // namespace sluice::apps
