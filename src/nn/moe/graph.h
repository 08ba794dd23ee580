// The MoE layer as stages of a graph, in the order in which they run.
#pragma once
#include "nn/moe/layer.h"
#include "nn/named_values.h"

namespace sluice {

// `values`: those that io_slots() and weight_slots() list for the config, and "zeros", i32[tokens], where some tensors are dense
// layers; "ids" where the choice is to stand there.
MoeBetween append_moe(Graph* graph, const MoeConfig& config, const NamedValues& values);

// Holds the layer's weights, those of weight_slots() that are used, and sets them by their names.
void hold_weights(Graph* graph, const MoeConfig& config, NamedValues* values);

// A whole layer, whose call brings the tensors of io_slots(), then "zeros", and whose caller holds its weights.
struct MoeGraph {
  Graph graph;
  MoeBetween between;
};
MoeGraph moe_graph(const MoeConfig& config);

// Where these tensors stand in a MoeWeights, in bytes: for a launch path, which allocates no list.
std::vector<size_t> weights_at(const MoeConfig& config);
inline const Tensor& weight_at(const MoeWeights& weights, size_t at) {
  return *reinterpret_cast<const Tensor*>(reinterpret_cast<const std::byte*>(&weights) + at);
}

}  // namespace sluice
