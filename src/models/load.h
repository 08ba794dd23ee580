// A model in memory: from a Hugging Face directory to weights that a decoder reads.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/family.h"
#include "models/random_weights.h"

namespace sluice {

struct LoadProgress {
  int64_t bytes_done = 0, bytes_total = 0;  // of the weights
};

// What a reader of the checkpoint should know: names of its tensors.
struct LoadNotes {
  std::vector<std::string> converted;  // of F32 or F16, rounded to bf16
  std::vector<std::string> unused;     // that the model has no place for
};

// Where weights come from. Names as vLLM's --load-format.
enum class LoadFormat : uint8_t {
  kSafetensors,
  kDummy,  // random ones of a seed, as `sluice make-checkpoint` would write them: no file is read but config.json
};

struct LoadOptions {
  DType x = DType::kBF16;  // activations and caches: kBF16 or kF32
  std::function<void(const LoadProgress&)> progress = {};
  Device* experts =
      nullptr;  // that gets the MoE layers; null: the one that gets the rest. Outlives the model
  // What the experts are planned with: the canary runs those kernels.
  Policy policy = {};
  MoeBackend backend = {};
  // Checks a few rows of every layer against the references before anything is served. Skip it only to measure loading.
  enum class Canary : uint8_t { kRun, kSkip } canary = Canary::kRun;
  LoadFormat format = LoadFormat::kSafetensors;
  uint64_t seed = 0;  // of kDummy, as the next
  Routing routing = Routing::kUniform;
};

class LoadedModel {
 public:
  // Reads <directory>/config.json and its safetensors, and puts everything into the device's memory as its kernels want it, a layer at a
  // time: of the host's memory, kDummy needs as much as the largest tensor or layer of experts has, and files no more than 64 MiB,
  // where the device has memory of its own. Errors name the file, the tensor, what was wanted and what was found:
  // kIo, kCorrupt, kUnsupported, kOutOfMemory (wanted and free bytes), kDevice when the canary finds a wrong number.
  static Result<std::unique_ptr<LoadedModel>> load(Device& device, const std::string& directory,
                                                   const LoadOptions& options = {});
  ~LoadedModel();
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const ModelConfig& config() const;
  const NamedWeights& weights() const;  // by the names of decoder_weights()
  int64_t weight_bytes() const;         // in memory
  // What one token reads at least: everything but the embedding, of which it reads a row, and experts that are not chosen.
  int64_t active_bytes() const;

  const LoadNotes& notes() const;  // none of random weights

  struct Parts;

 private:
  explicit LoadedModel(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace sluice
