// The MoE layers of known models, as the problems that they pose.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/any_op.h"

namespace sluice::test {

struct MoeModel {
  std::string file;  // golden file, without its extension
  // Fields of the operations that differ from model to model; sizes come from the numbers below.
  std::string router, routing, up, down, combine;
  int64_t hidden, latent, intermediate, experts, top_k;  // latent: width of the experts' input, hidden mostly
};

std::span<const MoeModel> moe_models();

// The operations of one layer in their order. panels16 is for CPUs, fragments for Hopper.
std::vector<std::unique_ptr<AnyProblem>> layer_of(const MoeModel& model, int64_t tokens, Backend backend);

}  // namespace sluice::test
