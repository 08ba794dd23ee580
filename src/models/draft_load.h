// Code that the loaders of draft layers share.
#pragma once
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "models/draft.h"
#include "models/tensor_source.h"
#include "nn/moe/load.h"
#include "nn/owned_tensor.h"

namespace sluice {

struct LoadedDraft::Parts {
  DraftLayerConfig config;
  NamedWeights weights;
  std::vector<OwnedTensor> dense;
  std::unique_ptr<LoadedMoe> mlp;
  Device* experts = nullptr;
  int64_t weight_bytes = 0;
  std::optional<int64_t> speculative_tokens;
};

// Loads the weights of a draft layer from tensors in loading order; tensors of the same weight are adjacent.
class DraftWeights {
 public:
  struct Mlp {
    MoeNaming naming;
    int64_t layer;
  };
  DraftWeights(LoadedDraft::Parts* parts, Device& device) : parts_(*parts), device_(device) {}
  // Checks the tensors, and that enough memory is free. kOutOfMemory gives the bytes needed and the bytes
  // free.
  Status check(const TensorSource& source, const std::vector<TensorSpec>& specs) const;
  // Loads tensors that check() has accepted.
  Status load(TensorSource* source, const std::vector<TensorSpec>& specs, const Mlp& mlp);
  // Stores a weight that the caller has loaded.
  Status keep(Result<OwnedTensor> made, const SlotSpec& slot);

 private:
  Status load_weight(TensorSource* source, std::span<const TensorSpec> specs, const Mlp& mlp);
  Status load_mlp(const Checkpoint& from, const Mlp& mlp);
  SlotSpec slot_of(std::string_view name) const;

  LoadedDraft::Parts& parts_;
  Device& device_;
  std::vector<HeldSlot> slots_;
};

}  // namespace sluice
