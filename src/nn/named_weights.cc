#include "nn/named_weights.h"

namespace sluice {

Status bind_held(std::string_view who, const Graph& graph, const NamedWeights& weights, Backend where,
                 std::vector<Tensor>* out) {
  out->clear();
  for (const HeldSlot& held : held_slots(graph)) {
    const std::string name = std::string(who) + ": " + held.text();
    const Tensor tensor = weights(held.layer, held.name);
    if (!tensor.present()) return invalid(name + ": wanted a tensor, found none");
    SlotSpec spec = held.spec;
    spec.name = name;
    SLUICE_TRY(check_slot(spec, tensor, where, 1));
    out->push_back(tensor);
  }
  return {};
}

}  // namespace sluice
