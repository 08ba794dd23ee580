// A model ready to answer: device, weights, tokenizer, engine.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "apps/common/model_directory.h"
#include "engine/engine.h"
#include "models/load.h"

namespace sluice::apps {

// Names and meanings are vLLM's where vLLM has them.
struct ModelFlags {
  std::string model;            // as model_directory() takes it
  std::string device = "auto";  // that the model runs on: auto (a Hopper GPU where there is one), cpu, cuda
  int threads = 0;              // of the CPU; 0: one for each processor
  std::string experts;  // "cuda": MoE layers run there and the rest on the CPU; empty: all on `device`
  MoeBackend moe_backend = {};          // kernels of the experts
  std::string load_format = "auto";     // auto, safetensors, dummy
  std::optional<Routing> routing;       // of dummy; none: uniform
  std::string dtype = "auto";           // activations: auto, bfloat16, float32
  std::string kv_cache_dtype = "auto";  // keys and values: auto (as activations), bfloat16, fp8, fp8_e4m3
  int64_t max_model_len = 0;            // tokens of a sequence; 0: the model's context, at most 8192
  std::optional<int64_t> max_num_seqs, max_num_batched_tokens;  // none: 256 and 8192 on a GPU, else
  int64_t cpu_num_seqs = 8, cpu_num_batched_tokens = 512;       // these
  int64_t mixed_prefill_tokens = 0;                             // as engine/engine.h has it
  double kv_cache_gib = 0;  // 0: enough for max_num_seqs sequences of max_model_len, on a GPU if that fits
  double gpu_memory_utilization = 0.9;
  bool enforce_eager = false;                                      // no recorded steps
  std::optional<int64_t> max_cudagraph_capture_size, steps_ahead;  // none: as engine/engine.h has it
  bool batch_invariant = false;
  SpeculationOptions speculation = {};
  bool prefix_caching = true;                               // as engine/engine.h has it
  bool count_experts = false, keep_chosen_experts = false;  // as engine/engine.h has them
  bool quiet = false;  // no progress bar and no line about what was loaded
};

struct Session {
  std::unique_ptr<Device> device, experts;
  std::unique_ptr<LoadedModel> model;
  std::unique_ptr<Engine> engine;  // refers to what stands above
  std::string directory;
  LoadFormat format = LoadFormat::kSafetensors;
  double load_seconds = 0;
};

// Completes flags once the device is known.
using SuitFlags = std::function<void(const Device&, ModelFlags*)>;
// What the flags say on that device.
EngineOptions engine_options(const ModelFlags& flags, const ModelConfig& config, const Device& device);

// Shows a progress bar on standard error while it is a terminal, and lines about the model, its memory and its kernels.
Result<Session> open_session(const ModelFlags& flags, const SuitFlags& suit = {});

// --dtype: auto, bfloat16, float32.
Result<DType> dtype_of(const std::string& name);
// --kv-cache-dtype: auto, bfloat16, fp8, fp8_e4m3, beside activations of type `x`: bfloat16 only beside bfloat16.
Result<CacheType> cache_type_of(const std::string& name, DType x);
// --load-format: auto, safetensors, dummy.
Result<LoadFormat> load_format_of(const std::string& name);
}  // namespace sluice::apps
