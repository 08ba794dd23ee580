// The MoE layer as stages of a graph, in execution order.
#pragma once
#include "nn/moe/layer.h"
#include "nn/named_values.h"

namespace sluice {

// `values` holds the values that io_slots() and weight_slots() list for the config; "zeros", i32[tokens],
// if some matrices are applied to all tokens; and "ids" if the chosen experts are to be written there.
MoeBetween append_moe(Graph* graph, const MoeConfig& config, const NamedValues& values);

// Declares the used weights of weight_slots() as held values and sets them by name.
void hold_weights(Graph* graph, const MoeConfig& config, NamedValues* values);

// A whole layer. A call passes the tensors of io_slots(), then "zeros"; the caller holds the weights.
struct MoeGraph {
  Graph graph;
  MoeBetween between;
};
MoeGraph moe_graph(const MoeConfig& config);

// Offsets of these tensors in a MoeWeights, in bytes: a launch must not allocate a list.
std::vector<size_t> weights_at(const MoeConfig& config);
inline const Tensor& weight_at(const MoeWeights& weights, size_t at) {
  return *reinterpret_cast<const Tensor*>(reinterpret_cast<const std::byte*>(&weights) + at);
}

}  // namespace sluice
