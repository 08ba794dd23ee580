// Loads a model from a Hugging Face directory into weights that a decoder reads.
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
  int64_t bytes_done = 0, bytes_total = 0;  // bytes of the weights
};

// Facts about a checkpoint that its user should know, as lists of tensor names.
struct LoadNotes {
  std::vector<std::string> converted;  // F32 or F16 tensors rounded to bf16
  std::vector<std::string> fp8;        // matrices in FP8 or FP4 with scales, converted to bf16
  std::vector<std::string> unused;     // tensors that the model does not use
};

// Where weights come from. The names follow vLLM's load formats.
enum class LoadFormat : uint8_t {
  kSafetensors,
  kDummy,  // random weights from a seed, equal to the weights of `sluice make-checkpoint`; reads only config.json
};

struct LoadOptions {
  DType x = DType::kBF16;  // activations and caches: kBF16 or kF32
  std::function<void(const LoadProgress&)> progress = {};
  // device of the MoE layers; null: the model's device. Must outlive the model
  Device* experts = nullptr;
  // The part of the model to load; config() and weights() are then of this part. Not with `experts`.
  DecoderSlice slice = {};
  // The policy and backend that the experts are planned with, so that the canary runs the same kernels.
  Policy policy = {};
  MoeBackend backend = {};
  // Checks a few rows of every layer against the references before serving. Skip it only to measure loading.
  enum class Canary : uint8_t { kRun, kSkip } canary = Canary::kRun;
  LoadFormat format = LoadFormat::kSafetensors;
  uint64_t seed = 0;  // for kDummy, like `routing`
  Routing routing = Routing::kUniform;
};

class LoadedModel {
 public:
  // Reads <directory>/config.json and its safetensors, and loads the weights layer by layer into device
  // memory in the form that the kernels read. On a device with its own memory, loading also takes host memory: as much as the
  // largest tensor or layer of experts with kDummy or tensors in FP8 (models/tensor_source.h), otherwise at most 64 MiB.
  // Errors name the file, the tensor, what was wanted and what was found: kIo, kCorrupt, kUnsupported, kOutOfMemory (bytes
  // wanted and free), kDevice if the canary finds a wrong number.
  static Result<std::unique_ptr<LoadedModel>> load(Device& device, const std::string& directory,
                                                   const LoadOptions& options = {});
  ~LoadedModel();
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const ModelConfig& config() const;
  const NamedWeights& weights() const;  // by the names of decoder_weights()
  int64_t weight_bytes() const;         // bytes in memory
  // Minimum bytes that one token reads: all weights, but one row of the embedding and only the chosen experts.
  int64_t active_bytes() const;

  const LoadNotes& notes() const;  // empty for random weights

  struct Parts;

 private:
  explicit LoadedModel(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace sluice
