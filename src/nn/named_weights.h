// A model's weights in device memory, by layer and name.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "nn/moe/layer.h"

namespace sluice {

// Names are the names of held values in the model's graphs ("attention.qkv", "experts.up"). Layer -1 holds
// the weights outside the layers.
class NamedWeights {
 public:
  void set(int64_t layer, std::string_view name, const Tensor& tensor) {
    tensors_[static_cast<int32_t>(layer)].insert_or_assign(std::string(name), tensor);
  }
  // Sets the weights of an MoE layer under the names of weight_slots().
  void set_moe(int64_t layer, const MoeConfig& config, MoeWeights weights) {
    for (const auto& [spec, tensor] : weight_slots(config, &weights))
      if (spec.used) set(layer, spec.name, *tensor);
  }
  MoeWeights moe(int64_t layer, const MoeConfig& config) const {
    MoeWeights out;
    for (const auto& [spec, tensor] : weight_slots(config, &out))
      if (spec.used) *tensor = (*this)(layer, spec.name);
    return out;
  }
  // Returns an absent tensor if there is none.
  Tensor operator()(int64_t layer, std::string_view name) const {
    const auto of_layer = tensors_.find(static_cast<int32_t>(layer));
    if (of_layer == tensors_.end()) return {};
    const auto found = of_layer->second.find(name);
    return found == of_layer->second.end() ? Tensor{} : found->second;
  }
  // Calls visit(layer, name, tensor) for each tensor.
  template <class Visit>
  void for_each(Visit visit) {
    for (auto& [layer, named] : tensors_)
      for (auto& [name, tensor] : named) visit(layer, name, tensor);
  }

 private:
  std::map<int32_t, std::map<std::string, Tensor, std::less<>>> tensors_;
};

// Collects the tensors of held_slots(graph), including caches, in order. kInvalidArgument begins with `who`
// and names the first tensor that does not match its slot.
Status bind_held(std::string_view who, const Graph& graph, const NamedWeights& weights, Backend where,
                 std::vector<Tensor>* out);

}  // namespace sluice
