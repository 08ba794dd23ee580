// The MoE layer as a graph.
#pragma once
#include "nn/moe/layer.h"
#include "nn/named_values.h"

namespace sluice {

// Appends the stages of an MoE layer in execution order. `values` holds the values that io_slots() and
// weight_slots() list for the config; "zeros" i32[tokens] if has_dense_layers() (nn/moe/problems.h); and
// optionally "ids", which receives the chosen experts.
MoeBetween append_moe(Graph* graph, const MoeConfig& config, const NamedValues& values);

// Declares the weights of weight_slots() that the config uses as held values, and adds them to `values` by
// name.
void hold_weights(Graph* graph, const MoeConfig& config, NamedValues* values);

// The graph of a whole layer. Call values: io_slots(), then "zeros". Held values: the weights.
struct MoeGraph {
  Graph graph;
  MoeBetween between;
};
MoeGraph moe_graph(const MoeConfig& config);

// Byte offsets in MoeWeights of the tensors that weight_slots() lists for the config. forward() uses them
// because weight_slots() allocates.
std::vector<size_t> weights_at(const MoeConfig& config);
inline const Tensor& weight_at(const MoeWeights& weights, size_t at) {
  return *reinterpret_cast<const Tensor*>(reinterpret_cast<const std::byte*>(&weights) + at);
}

}  // namespace sluice
