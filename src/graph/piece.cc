#include "graph/piece.h"

namespace sluice {

std::string joined_name(const Graph& graph, size_t first, size_t stages) {
  std::string out;
  for (size_t k = first; k < first + stages; ++k) out += (out.empty() ? "" : "+") + graph.stages()[k].name;
  return out;
}

std::vector<HeldSlot> held_slots(const Graph& graph) {
  std::vector<HeldSlot> out(static_cast<size_t>(graph.held_count()));
  for (const Value& value : graph.values())
    if (value.place == Place::kHeld)
      out[static_cast<size_t>(value.given)] = {.name = value.name, .layer = value.layer};
  for (const Stage& stage : graph.stages()) {
    const std::vector<SlotSpec> slots = stage.op->slots(1);
    for (size_t i = 0; i < slots.size(); ++i) {
      const ValueId value = stage.slots[i].value;
      if (value == kNoValue) continue;
      const Value& v = graph.values()[static_cast<size_t>(value)];
      if (v.place != Place::kHeld) continue;
      SlotSpec& spec = out[static_cast<size_t>(v.given)].spec;
      if (spec.rank == 0) spec = slots[i];
    }
  }
  return out;
}

Tensor Placed::tensor(const Bind& bind, const SlotSpec& spec) const {
  if (bind.value == kNoValue) return {};
  const Value& value = values[static_cast<size_t>(bind.value)];
  if (!spec.used && value.place == Place::kBetween) return {};
  Tensor out;
  const bool stands_in = bind.value == given->instead;
  if (stands_in || value.place != Place::kBetween) {
    const auto index = static_cast<size_t>(value.given);
    out = stands_in ? given->stand_in : value.place == Place::kCall ? given->call[index] : given->held[index];
    if (bind.slice >= 0 && out.rank > 0) {
      out.data = static_cast<std::byte*>(out.data) + bytes_of(out.dtype, bind.slice * out.stride[0]);
      for (int i = 1; i < out.rank; ++i) {
        out.shape[static_cast<size_t>(i - 1)] = out.shape[static_cast<size_t>(i)];
        out.stride[static_cast<size_t>(i - 1)] = out.stride[static_cast<size_t>(i)];
      }
      --out.rank;
    }
    if (value.row == 0) return out;  // unchanged, so that the operation checks it
  } else {
    const size_t place = at[static_cast<size_t>(bind.value)];
    if (place == kNowhere) return {};
    out.data = base + place;
  }
  const int64_t row = out.present() && out.rank > 1 ? out.stride[0] : value.row;
  out.data = static_cast<std::byte*>(out.data) + bytes_of(spec.dtype, bind.column);
  out.dtype = spec.dtype, out.where = where, out.rank = static_cast<int8_t>(spec.rank),
  out.shape = spec.shape;
  int64_t stride = 1;
  for (int i = spec.rank - 1; i >= 0; --i) {
    out.stride[static_cast<size_t>(i)] = stride;
    stride *= spec.shape[static_cast<size_t>(i)];
  }
  if (value.row > 0 && spec.rank > 1) out.stride[0] = row;
  return out;
}

}  // namespace sluice
