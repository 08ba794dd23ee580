// The problems of an MoE layer's stages, with 0 tokens, and the tensors of a call.
#pragma once
#include "nn/moe/layer.h"

namespace sluice {

RouterGemm::Problem router_problem(const MoeConfig& config);
LoraDelta::Problem lora_problem(const MoeConfig& config);
// With adapters of the experts: both products without bias and activation, and the operations that complete them.
struct AdaptedProblems {
  ExpertGemm::Problem up, down;
  ExpertLora::Problem up_lora, down_lora;
};
AdaptedProblems adapted_problems(const MoeConfig& config);
inline bool has_adapters(const MoeConfig& c) { return c.lora_rank > 0 || c.expert_lora_rank > 0; }
RouteTopk::Problem route_problem(const MoeConfig& config);
GroupRows::Problem group_problem(const MoeConfig& config);  // groups rows by expert
Combine::Problem combine_problem(const MoeConfig& config);
RmsNorm::Problem norm_problem(const MoeConfig& config);  // the norms of x and y
// With latent > 0: adds the outputs of the second projection and the shared expert, and the residual stream.
Combine::Problem latent_add_problem(const MoeConfig& config);
GroupRows::Problem shared_group_problem(const MoeConfig& config);

// Calls visit(SlotSpec, Tensor MoeIo::*) for each tensor of io_slots(), without allocating.
template <class V>
void for_each_io(const MoeConfig& c, int64_t tokens, V visit) {
  const auto strided = Rows::kMayBeStrided;
  const bool logits = c.input == RoutingInput::kLogits;
  const auto i32 = [&](std::string_view name, std::initializer_list<int64_t> shape, bool used) {
    return slot(name, Role::kIn, DType::kI32, shape, used);
  };
  SlotSpec x = slot("x", Role::kIn, c.x, {tokens, c.hidden}, true, strided);
  x.row_align = row_align(c.x, c.hidden, c.x_unaligned);
  visit(x, &MoeIo::x);
  // With norm_y, one kernel may fuse the sum over experts, the residual addition and the norm, so these rows
  // need the same alignment as x.
  const auto row = [&](SlotSpec spec) {
    if (c.norm_y) spec.row_align = x.row_align;
    return spec;
  };
  visit(row(slot("residual", Role::kIn, c.x, {tokens, c.hidden}, c.residual, strided)), &MoeIo::residual);
  visit(i32("token_ids", {tokens}, logits && c.method == RoutingMethod::kHash), &MoeIo::token_ids);
  visit(i32("adapter", {tokens}, has_adapters(c)), &MoeIo::adapter);
  const bool unpacked = c.input == RoutingInput::kPrecomputed;
  visit(i32("ids_in", {tokens, c.top_k}, unpacked), &MoeIo::ids_in);
  visit(slot("weights_in", Role::kIn, DType::kF32, {tokens, c.top_k}, unpacked), &MoeIo::weights_in);
  visit(i32("packed_in", {tokens, c.top_k}, c.input == RoutingInput::kPacked), &MoeIo::packed_in);
  visit(i32("tokens_valid", {1}, c.padded), &MoeIo::tokens_valid);
  visit(slot("x_norm_weight", Role::kIn, DType::kBF16, {c.hidden}, c.norm_x), &MoeIo::x_norm_weight);
  visit(slot("norm_weight", Role::kIn, DType::kBF16, {c.hidden}, c.norm_y), &MoeIo::norm_weight);
  visit(row(slot("y", Role::kOut, c.x, {tokens, c.hidden}, true, strided)), &MoeIo::y);
  visit(row(slot("normed", Role::kOut, c.x, {tokens, c.hidden}, c.norm_y, strided)), &MoeIo::normed);
  visit(slot("captured", Role::kOut, DType::kI32, {tokens, c.top_k}, c.capture), &MoeIo::captured);
}

// Slots per token: top_k and the shared slots.
int64_t slots_of(const MoeConfig& config);
// Width of the routed experts' input and output.
int64_t expert_width(const MoeConfig& config);
// Whether the shared expert is computed separately from the routed experts.
bool shared_apart(const MoeConfig& config);
// Whether some products apply to all tokens, as one expert; they read "zeros" as expert ids.
inline bool has_dense_layers(const MoeConfig& c) { return c.dense || shared_apart(c) || c.latent > 0; }
// Whether the layer has a router. Without one, no stage reads logits.
bool has_router(const MoeConfig& config);
// Checks each field on its own. kInvalidArgument names the first field whose value is out of range, what was
// wanted and what was found.
Status check_ranges(const MoeConfig& config);

}  // namespace sluice
