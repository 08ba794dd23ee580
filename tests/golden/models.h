// The problems of known models' MoE layers.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/any_op.h"

namespace sluice::test {

struct MoeModel {
  std::string file;  // golden file, without its extension
  // Fields of the operations that differ between models; the sizes below complete them.
  std::string router, routing, up, down, combine;
  int64_t hidden, latent, intermediate, experts, top_k;  // latent: the experts' input width, often hidden
};

std::span<const MoeModel> moe_models();

// The operations of one layer, in order. CPUs have layout panels16, Hopper GPUs fragments.
std::vector<std::unique_ptr<AnyProblem>> layer_of(const MoeModel& model, int64_t tokens, Backend backend);

}  // namespace sluice::test
