// Loads a model from a Hugging Face directory into the weights that a decoder reads.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/family.h"
#include "models/random_weights.h"
#include "nn/decoder_slice.h"

namespace sluice {

struct LoadProgress {
  int64_t bytes_done = 0, bytes_total = 0;  // bytes of weights
};

// Facts about a checkpoint that users should know, as lists of tensor names.
struct LoadNotes {
  std::vector<std::string> converted;  // F32 or F16 tensors rounded to bf16
  std::vector<std::string> fp8;        // matrices in FP8 or FP4 with scales, converted to bf16
  std::vector<std::string> unused;     // tensors that the model does not use
};

// Where weights come from. The names follow vLLM's load formats.
enum class LoadFormat : uint8_t {
  kSafetensors,
  kDummy,  // random weights, equal to those of `sluice make-checkpoint`; reads only config.json
};

struct LoadOptions {
  DType x = DType::kBF16;        // activations and caches: kBF16 or kF32
  bool fp8_activations = false;  // MoeConfig::fp8_activations of all layers
  std::function<void(const LoadProgress&)> progress = {};
  // The device of the MoE layers; null: the model's device. Must outlive the model.
  Device* experts = nullptr;
  // The tensor-parallel slice to load; config() and weights() then describe the slice. Cannot be combined
  // with `experts`.
  DecoderSlice slice = {};
  // The policy and backend with which the decoder will be planned, so that the canary runs the same kernels.
  Policy policy = {};
  MoeBackend backend = {};
  // Checks a few rows of every layer against the reference (nn/moe/canary.h). Skip the check only to measure
  // loading.
  enum class Canary : uint8_t { kRun, kSkip } canary = Canary::kRun;
  LoadFormat format = LoadFormat::kSafetensors;
  uint64_t seed = 0;  // seed and routing: for kDummy
  Routing routing = Routing::kUniform;
};

class LoadedModel {
 public:
  // Reads <directory>/config.json and the safetensors, and loads the weights layer by layer into device
  // memory, in the form that kernels read. On a device with its own memory, loading also needs host memory:
  // at most 64 MiB, but with kDummy or widened tensors (models/tensor_source.h) as much as the largest tensor
  // or the largest layer of experts. Errors name the file, the tensor, what was wanted and what was found:
  // kIo, kCorrupt, kUnsupported, kOutOfMemory (with the bytes needed and free), kDevice if the canary finds a
  // wrong number.
  static Result<std::unique_ptr<LoadedModel>> load(Device& device, const std::string& directory,
                                                   const LoadOptions& options = {});
  ~LoadedModel();
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const ModelConfig& config() const;
  const NamedWeights& weights() const;  // under the names of decoder_weights()
  int64_t weight_bytes() const;         // bytes in memory
  // Bytes of weights that decoding one token must read: one row of the embedding, the chosen experts, and all
  // other weights.
  int64_t active_bytes() const;

  const LoadNotes& notes() const;  // empty for random weights

  struct Parts;

 private:
  explicit LoadedModel(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace sluice
