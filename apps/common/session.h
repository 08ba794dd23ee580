// A loaded model: device, weights, tokenizer, engine.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/model_directory.h"
#include "engine/engine.h"
#include "models/draft.h"

namespace sluice::apps {

// Flags that vLLM has, too, have vLLM's names and meanings.
struct ModelFlags {
  std::string model;            // in the form that model_directory() accepts
  std::string device = "auto";  // device of the model: auto (a Hopper GPU if present), cpu, cuda
  int threads = 0;              // CPU threads of all ranks together; 0: one per processor
  int64_t tensor_parallel_size =
      1;  // devices that compute the model together, each with a slice (nn/decoder_slice.h)
  // the devices have whole experts instead of slices of all experts
  bool expert_parallel = false;
  std::optional<int64_t> expert_parallel_size = {};  // SGLang's form: 1, or tensor_parallel_size
  std::string experts;           // "cuda": offload the MoE layers to the GPU; empty: everything on `device`
  MoeBackend moe_backend = {};   // kernels of the experts
  bool fp8_activations = false;  // MoeConfig::fp8_activations of all layers
  std::string load_format = "auto";     // auto, safetensors, dummy
  std::optional<Routing> routing;       // routing of dummy weights; nullopt: uniform
  std::string dtype = "auto";           // activations: auto, bfloat16, float32
  std::string kv_cache_dtype = "auto";  // KV cache: auto (as activations), bfloat16, fp8, fp8_e4m3
  int64_t max_model_len = 0;            // maximum tokens per sequence; 0: the model's context, at most 8192
  std::optional<int64_t> max_num_seqs, max_num_batched_tokens;  // nullopt: 256 and 8192 on a GPU
  int64_t cpu_num_seqs = 8, cpu_num_batched_tokens = 512;       // defaults of the two on the CPU
  int64_t mixed_prefill_tokens = 0;                             // see engine/engine.h
  // 0: enough for max_num_seqs sequences of max_model_len tokens, on a GPU as far as that fits
  double kv_cache_gib = 0;
  double gpu_memory_utilization = 0.9;
  bool enforce_eager = false;                                      // no CUDA graphs
  std::optional<int64_t> max_cudagraph_capture_size, steps_ahead;  // nullopt: the defaults of engine/engine.h
  bool batch_invariant = false;
  SpeculationOptions speculation = {};
  std::string draft_model = {};  // the draft head; used with DraftMethod::kEagle3
  // With DraftMethod::kMtp only. draft_moe_backend: the device of the draft layer's experts (cpu or cuda), which the model must use, too; empty:
  // the device of the model's experts. draft_router_dtype: the type to which router scores are rounded (float32 or bfloat16).
  std::string draft_moe_backend = {}, draft_router_dtype = "float32";
  // no number of drafts was given, so the number in the draft head's config is used
  bool drafts_from_head = false;
  bool prefix_caching = true;                               // see engine/engine.h
  bool count_experts = false, keep_chosen_experts = false;  // see engine/engine.h
  // print no progress bar and no lines about the model
  bool quiet = false;
};

struct Session {
  std::unique_ptr<Device> device, experts;
  // With tensor parallelism: the devices and model slices of all ranks except the first, which uses `device` and
  // `model`.
  std::vector<std::unique_ptr<Device>> other_devices;
  std::unique_ptr<Group> group;
  std::unique_ptr<LoadedModel> model;
  std::vector<std::unique_ptr<LoadedModel>> other_models;
  std::unique_ptr<LoadedDraft> draft_head;
  std::unique_ptr<Engine> engine;  // refers to the members above
  std::string directory, draft_directory;
  LoadFormat format = LoadFormat::kSafetensors;
  double load_seconds = 0;
};

// Returns for example "h200 (sm90, 132 SMs)", or with tensor parallelism "2 x h200 (sm90, 132 SMs)".
std::string devices_text(const Session& session);
// Bytes of the weights on all devices.
int64_t weight_bytes(const Session& session);

// A function that completes the flags once the device is known.
using SuitFlags = std::function<void(const Device&, ModelFlags*)>;
// The engine options that the flags select on this device.
EngineOptions engine_options(const ModelFlags& flags, const ModelConfig& config, const Device& device);

// Shows a progress bar if standard error is a terminal, and prints lines about the model, its memory and its kernels.
Result<Session> open_session(const ModelFlags& flags, const SuitFlags& suit = {});

// Parts of open_session() for tensor parallelism (ranks.cc). check_tensor_parallel() rejects flags that do not work with it. open_devices()
// opens all ranks' devices; CPU ranks divide the threads. load_slices() loads the slices, one thread per rank; `options` are the first rank's.
Status check_tensor_parallel(const ModelFlags& flags);
Status open_devices(const ModelFlags& flags, Session* session);
Status load_slices(const LoadOptions& options, Session* session);

// check_fp8_activations() with the flag's name in its error.
Status check_moe_activations(const MoeConfig& config, const DeviceInfo& device, const Catalog& catalog);

// `name`: auto, bfloat16, float32.
Result<DType> dtype_of(const std::string& name);
// `name`: auto, bfloat16, fp8, fp8_e4m3. `x` is the type of activations; bfloat16 requires bfloat16 activations.
Result<CacheType> cache_type_of(const std::string& name, DType x);
// `name`: auto, safetensors, dummy.
Result<LoadFormat> load_format_of(const std::string& name);
}  // namespace sluice::apps
