// What the stages of an MoE layer are, for no tokens yet.
#pragma once
#include "nn/moe.h"

namespace sluice {

struct MoeProblems {
  RouterGemm::Problem router;
  RouteGroup::Problem route;
  RouterRoute::Problem front;  // MoePath::kAsOne: in place of router, and of route but for the rows by expert
  ExpertProblems mlp;
  Combine::Problem combine;
  ExpertMlp::Problem as_one;  // MoePath::kAsOne: in place of the rows by expert, mlp.up, mlp.down and combine
  GroupRows::Problem shared_group;
};
MoeProblems problems_of(const MoeConfig& config);

// Of a token: of the experts that it chose, and of its shared one.
int64_t slots_of(const MoeConfig& config);
// Whether the shared expert has a path of its own.
bool shared_apart(const MoeConfig& config);

}  // namespace sluice
