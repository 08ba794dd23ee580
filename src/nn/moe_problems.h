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

// Calls visit(SlotSpec, Tensor MoeIo::*) for each tensor of a call: what io_slots() lists.
template <class V>
void for_each_io(const MoeConfig& c, int64_t tokens, V visit) {
  const auto strided = Rows::kMayBeStrided;
  SlotSpec x = slot("x", Role::kIn, c.x, {tokens, c.hidden}, true, strided);
  x.row_align = ExpertGemm::row_align(c.x, c.hidden, c.x_unaligned);
  visit(x, &MoeIo::x);
  visit(slot("residual", Role::kIn, c.x, {tokens, c.hidden}, c.residual, strided), &MoeIo::residual);
  visit(slot("token_ids", Role::kIn, DType::kI32, {tokens}, c.method == RoutingMethod::kHash),
        &MoeIo::token_ids);
  visit(slot("y", Role::kOut, c.x, {tokens, c.hidden}, true, strided), &MoeIo::y);
}

// Of a token: of the experts that it chose, and of its shared one.
int64_t slots_of(const MoeConfig& config);
// Whether the shared expert has a path of its own.
bool shared_apart(const MoeConfig& config);

}  // namespace sluice
