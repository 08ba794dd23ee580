#include "nn/named_weights.h"

namespace sluice {

Result<std::vector<Tensor>> bind_held(const Graph& graph, const NamedWeights& weights, Backend where) {
  std::vector<Tensor> out;
  for (const HeldSlot& held : held_slots(graph)) {
    out.push_back(weights(held.layer, held.name));
    if (!out.back().present()) return invalid(held.text() + ": wanted a tensor, found none");
    const std::string name = held.text();
    SlotSpec spec = held.spec;
    spec.name = name;
    SLUICE_TRY(check_slot(spec, out.back(), where, 1));
  }
  return out;
}

}  // namespace sluice
