// The stages of an MoE layer, told once, in the order in which they run. Plans, workspace, forward(), check(), names of kernels and
// explain iterate over kMoeStages and know no stage by name.
#pragma once
#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "nn/moe_problems.h"

namespace sluice {

// What stands between stages, in the workspace. Types and shapes are those of the slots that write them.
enum class MoeBuffer : uint8_t {
  kNone,
  kLogits,
  kIds,
  kWeights,
  kRowCount,
  kRowBegin,
  kOrder,
  kPosition,
  kH,
  kG,
  kSharedCount,
  kSharedBegin,
  kSharedOrder,
  kSharedPosition,
  kSharedH,
  kSharedY,
  kNormedX,
  kLatentX,
  kLatentY,    // the experts' sum
  kLatentOut,  // its projection
  kZeros,      // not in the workspace: zeros that no stage writes
  kCount
};
using MoeBuffers = std::array<void*, static_cast<size_t>(MoeBuffer::kCount)>;

// Where a stage's tensor is: one of a call's, of the weights', or a buffer.
struct MoeTensor {
  Tensor MoeIo::*io = nullptr;
  Tensor MoeWeights::*weight = nullptr;
  ExpertWeights MoeWeights::*experts = nullptr;
  Tensor ExpertWeights::*of_experts = nullptr;
  MoeBuffer buffer = MoeBuffer::kNone;
  // In place of it, if there is one: with a latent width; with a norm of x.
  MoeBuffer latent = MoeBuffer::kNone, normed = MoeBuffer::kNone;

  constexpr MoeTensor() = default;
  constexpr MoeTensor(Tensor MoeIo::*t) : io(t) {}
  constexpr MoeTensor(Tensor MoeWeights::*t) : weight(t) {}
  constexpr MoeTensor(ExpertWeights MoeWeights::*e, Tensor ExpertWeights::*t) : experts(e), of_experts(t) {}
  constexpr MoeTensor(MoeBuffer b) : buffer(b) {}
  constexpr MoeTensor(Tensor MoeIo::*t, MoeBuffer with_latent, MoeBuffer with_norm = MoeBuffer::kNone)
      : io(t), latent(with_latent), normed(with_norm) {}

  constexpr MoeBuffer buffer_of(const MoeConfig& c) const {
    return c.latent > 0 && latent != MoeBuffer::kNone ? latent
           : c.norm_x && normed != MoeBuffer::kNone   ? normed
                                                      : buffer;
  }
};

template <class Op>
struct MoeBind {
  Tensor Op::Args::*slot = nullptr;
  MoeTensor from = {};
};

constexpr size_t kBindsMost = 21;  // of a stage

// Whose kernel MoeBackend names.
enum class MoeKernel : uint8_t { kFree, kOfExperts };

template <class OpOf>
struct MoeStage {
  using Op = OpOf;
  std::string_view name;
  bool (*runs)(const MoeConfig&, MoePath);
  typename Op::Problem (*problem)(const MoeConfig&);
  std::array<MoeBind<Op>, kBindsMost> tensors = {};
  int64_t (*rows)(const MoeConfig&) = [](const MoeConfig&) -> int64_t {
    return 1;
  };  // of its operation, for a token
  MoeKernel kernel = MoeKernel::kFree;
};

// Bindings of routing, and what an operation around it adds.
template <class Op>
constexpr std::array<MoeBind<Op>, kBindsMost> routing_tensors(std::initializer_list<MoeBind<Op>> more) {
  using A = RouteTopk::Args;
  std::array<MoeBind<Op>, kBindsMost> out = {{{&A::logits, MoeBuffer::kLogits},
                                              {&A::bias, &MoeWeights::correction_bias},
                                              {&A::hash_table, &MoeWeights::hash_table},
                                              {&A::token_ids, &MoeIo::token_ids},
                                              {&A::expert_map, &MoeWeights::expert_map},
                                              {&A::tokens_valid, &MoeIo::tokens_valid},
                                              {&A::ids_in, &MoeIo::ids_in},
                                              {&A::weights_in, &MoeIo::weights_in},
                                              {&A::packed_in, &MoeIo::packed_in},
                                              {&A::ids, MoeBuffer::kIds},
                                              {&A::weights, MoeBuffer::kWeights},
                                              {&A::captured, &MoeIo::captured}}};
  size_t at = 12;
  for (const MoeBind<Op>& bind : more) out[at++] = bind;
  return out;
}

// The experts of a path; the shared one's groups are of its own.
constexpr MoeTensor routed(Tensor ExpertWeights::*t) { return {&MoeWeights::experts, t}; }
constexpr MoeTensor shared(Tensor ExpertWeights::*t) { return {&MoeWeights::shared, t}; }

// What the layer reads: a call's x, or its norm. What the experts read and write: that and y, or what stands between the projections.
inline constexpr MoeTensor kLayerX{&MoeIo::x, MoeBuffer::kNone, MoeBuffer::kNormedX},
    kExpertsX{&MoeIo::x, MoeBuffer::kLatentX, MoeBuffer::kNormedX}, kExpertsY{&MoeIo::y, MoeBuffer::kLatentY};
inline bool has_latent(const MoeConfig& c, MoePath) { return c.latent > 0; }

// Whether the sum of a token's slots and the norm for the next layer are one operation: there is a sum, and nothing between them.
inline bool sum_is_normed(const MoeConfig& c, MoePath p) {
  return c.norm_next && p != MoePath::kAsOne && c.latent == 0;
}

// Whether router and routing are one operation: as one, where there is a router and nothing stands between them. A norm of x is then part
// of it.
inline bool front_is_one(const MoeConfig& c, MoePath p) {
  return p == MoePath::kAsOne && has_router(c) && c.lora_rank == 0;
}

// All tokens as the rows of one expert: for dense layers, which the shared expert is too.
constexpr MoeStage<GroupRows> group_of_all(std::string_view name, bool (*runs)(const MoeConfig&, MoePath)) {
  using A = GroupRows::Args;
  return {.name = name,
          .runs = runs,
          .problem = shared_group_problem,
          .tensors = {{{&A::ids, MoeBuffer::kZeros},
                       {&A::row_count, MoeBuffer::kSharedCount},
                       {&A::row_begin, MoeBuffer::kSharedBegin},
                       {&A::order, MoeBuffer::kSharedOrder},
                       {&A::position, MoeBuffer::kSharedPosition}}}};
}

inline constexpr auto kMoeStages = std::tuple{
    MoeStage<RmsNorm>{.name = "norm",
                      .runs = [](const MoeConfig& c, MoePath p) { return c.norm_x && !front_is_one(c, p); },
                      .problem = norm_problem,
                      .tensors = {{{&RmsNorm::Args::x, &MoeIo::x},
                                   {&RmsNorm::Args::weight, &MoeIo::x_norm_weight},
                                   {&RmsNorm::Args::y, MoeBuffer::kNormedX}}}},
    MoeStage<RouterGemm>{
        .name = "router",
        .runs = [](const MoeConfig& c, MoePath p) { return has_router(c) && !front_is_one(c, p); },
        .problem = router_problem,
        .tensors = {{{&RouterGemm::Args::x, kLayerX},
                     {&RouterGemm::Args::w, &MoeWeights::router},
                     {&RouterGemm::Args::bias, &MoeWeights::router_bias},
                     {&RouterGemm::Args::y, MoeBuffer::kLogits}}}},
    MoeStage<LoraDelta>{.name = "router.lora",
                        .runs = [](const MoeConfig& c, MoePath) { return c.lora_rank > 0; },
                        .problem = lora_problem,
                        .tensors = {{{&LoraDelta::Args::x, kLayerX},
                                     {&LoraDelta::Args::a, &MoeWeights::lora_a},
                                     {&LoraDelta::Args::b, &MoeWeights::lora_b},
                                     {&LoraDelta::Args::scale, &MoeWeights::lora_scale},
                                     {&LoraDelta::Args::adapter, &MoeIo::adapter},
                                     {&LoraDelta::Args::y, MoeBuffer::kLogits}}}},
    MoeStage<RouteGroup>{
        .name = "route",
        .runs = [](const MoeConfig&, MoePath p) { return p != MoePath::kAsOne; },
        .problem = route_problem,
        .tensors = routing_tensors<RouteGroup>({{&RouteGroup::Args::row_count, MoeBuffer::kRowCount},
                                                {&RouteGroup::Args::row_begin, MoeBuffer::kRowBegin},
                                                {&RouteGroup::Args::order, MoeBuffer::kOrder},
                                                {&RouteGroup::Args::position, MoeBuffer::kPosition}})},
    MoeStage<RouterRoute>{
        .name = "route",
        .runs = [](const MoeConfig& c, MoePath p) { return !c.norm_x && front_is_one(c, p); },
        .problem = front_problem,
        .tensors = routing_tensors<RouterRoute>({{&RouterRoute::Args::x, kLayerX},
                                                 {&RouterRoute::Args::w, &MoeWeights::router},
                                                 {&RouterRoute::Args::gate_bias, &MoeWeights::router_bias}})},
    MoeStage<NormRouterRoute>{
        .name = "route",
        .runs = [](const MoeConfig& c, MoePath p) { return c.norm_x && front_is_one(c, p); },
        .problem = norm_front_problem,
        .tensors =
            routing_tensors<NormRouterRoute>({{&NormRouterRoute::Args::x, &MoeIo::x},
                                              {&NormRouterRoute::Args::w, &MoeWeights::router},
                                              {&NormRouterRoute::Args::gate_bias, &MoeWeights::router_bias},
                                              {&NormRouterRoute::Args::norm_weight, &MoeIo::x_norm_weight},
                                              {&NormRouterRoute::Args::normed, MoeBuffer::kNormedX}})},
    MoeStage<RouteTopk>{
        .name = "route",
        .runs = [](const MoeConfig& c, MoePath p) { return p == MoePath::kAsOne && !front_is_one(c, p); },
        .problem = [](const MoeConfig& c) { return route_problem(c).route; },
        .tensors = routing_tensors<RouteTopk>({})},
    // Dense layers are experts that every token chooses, as the shared one is.
    group_of_all("latent.group", has_latent),
    MoeStage<ExpertGemm>{.name = "latent.in",
                         .runs = has_latent,
                         .problem = [](const MoeConfig& c) { return expert_problems(c).latent_in; },
                         .tensors = {{{&ExpertGemm::Args::x, kLayerX},
                                      {&ExpertGemm::Args::w, &MoeWeights::latent_in},
                                      {&ExpertGemm::Args::row_begin, MoeBuffer::kSharedBegin},
                                      {&ExpertGemm::Args::row_count, MoeBuffer::kSharedCount},
                                      {&ExpertGemm::Args::order, MoeBuffer::kSharedOrder},
                                      {&ExpertGemm::Args::y, MoeBuffer::kLatentX}}}},
    MoeStage<ExpertGemm>{.name = "experts.up",
                         .runs = [](const MoeConfig&, MoePath p) { return p == MoePath::kParts; },
                         .problem = [](const MoeConfig& c) { return expert_problems(c).up; },
                         .tensors = {{{&ExpertGemm::Args::x, kExpertsX},
                                      {&ExpertGemm::Args::w, routed(&ExpertWeights::up)},
                                      {&ExpertGemm::Args::w_scale, routed(&ExpertWeights::up_scale)},
                                      {&ExpertGemm::Args::bias, routed(&ExpertWeights::up_bias)},
                                      {&ExpertGemm::Args::act_params, routed(&ExpertWeights::act_params)},
                                      {&ExpertGemm::Args::row_begin, MoeBuffer::kRowBegin},
                                      {&ExpertGemm::Args::row_count, MoeBuffer::kRowCount},
                                      {&ExpertGemm::Args::order, MoeBuffer::kOrder},
                                      {&ExpertGemm::Args::weights, MoeBuffer::kWeights},
                                      {&ExpertGemm::Args::y, MoeBuffer::kH}}},
                         .kernel = MoeKernel::kOfExperts},
    MoeStage<ExpertGemm>{.name = "experts.down",
                         .runs = [](const MoeConfig&, MoePath p) { return p == MoePath::kParts; },
                         .problem = [](const MoeConfig& c) { return expert_problems(c).down; },
                         .tensors = {{{&ExpertGemm::Args::x, MoeBuffer::kH},
                                      {&ExpertGemm::Args::w, routed(&ExpertWeights::down)},
                                      {&ExpertGemm::Args::w_scale, routed(&ExpertWeights::down_scale)},
                                      {&ExpertGemm::Args::bias, routed(&ExpertWeights::down_bias)},
                                      {&ExpertGemm::Args::row_begin, MoeBuffer::kRowBegin},
                                      {&ExpertGemm::Args::row_count, MoeBuffer::kRowCount},
                                      {&ExpertGemm::Args::y, MoeBuffer::kG}}},
                         .rows = slots_of,
                         .kernel = MoeKernel::kOfExperts},
    group_of_all("shared.group",
                 [](const MoeConfig& c, MoePath) { return shared_apart(c) && c.latent == 0; }),
    MoeStage<ExpertGemm>{.name = "shared.up",
                         .runs = [](const MoeConfig& c, MoePath) { return shared_apart(c); },
                         .problem = [](const MoeConfig& c) { return expert_problems(c).shared_up; },
                         .tensors = {{{&ExpertGemm::Args::x, kLayerX},
                                      {&ExpertGemm::Args::w, shared(&ExpertWeights::up)},
                                      {&ExpertGemm::Args::w_scale, shared(&ExpertWeights::up_scale)},
                                      {&ExpertGemm::Args::bias, shared(&ExpertWeights::up_bias)},
                                      {&ExpertGemm::Args::row_begin, MoeBuffer::kSharedBegin},
                                      {&ExpertGemm::Args::row_count, MoeBuffer::kSharedCount},
                                      {&ExpertGemm::Args::order, MoeBuffer::kSharedOrder},
                                      {&ExpertGemm::Args::y, MoeBuffer::kSharedH}}}},
    MoeStage<ExpertGemm>{.name = "shared.down",
                         .runs = [](const MoeConfig& c, MoePath) { return shared_apart(c); },
                         .problem = [](const MoeConfig& c) { return expert_problems(c).shared_down; },
                         .tensors = {{{&ExpertGemm::Args::x, MoeBuffer::kSharedH},
                                      {&ExpertGemm::Args::w, shared(&ExpertWeights::down)},
                                      {&ExpertGemm::Args::w_scale, shared(&ExpertWeights::down_scale)},
                                      {&ExpertGemm::Args::bias, shared(&ExpertWeights::down_bias)},
                                      {&ExpertGemm::Args::row_begin, MoeBuffer::kSharedBegin},
                                      {&ExpertGemm::Args::row_count, MoeBuffer::kSharedCount},
                                      {&ExpertGemm::Args::y, MoeBuffer::kSharedY}}}},
    MoeStage<GroupedMlp>{.name = "experts",
                         .runs = [](const MoeConfig&, MoePath p) { return p == MoePath::kGrouped; },
                         .problem = grouped_problem,
                         .tensors = {{{&GroupedMlp::Args::x, kExpertsX},
                                      {&GroupedMlp::Args::up, routed(&ExpertWeights::up)},
                                      {&GroupedMlp::Args::up_scale, routed(&ExpertWeights::up_scale)},
                                      {&GroupedMlp::Args::up_bias, routed(&ExpertWeights::up_bias)},
                                      {&GroupedMlp::Args::down, routed(&ExpertWeights::down)},
                                      {&GroupedMlp::Args::down_scale, routed(&ExpertWeights::down_scale)},
                                      {&GroupedMlp::Args::down_bias, routed(&ExpertWeights::down_bias)},
                                      {&GroupedMlp::Args::row_begin, MoeBuffer::kRowBegin},
                                      {&GroupedMlp::Args::row_count, MoeBuffer::kRowCount},
                                      {&GroupedMlp::Args::order, MoeBuffer::kOrder},
                                      {&GroupedMlp::Args::weights, MoeBuffer::kWeights},
                                      {&GroupedMlp::Args::g, MoeBuffer::kG}}},
                         .kernel = MoeKernel::kOfExperts},
    MoeStage<ExpertMlp>{.name = "experts",
                        .runs = [](const MoeConfig&, MoePath p) { return p == MoePath::kAsOne; },
                        .problem = mlp_problem,
                        .tensors = {{{&ExpertMlp::Args::x, kExpertsX},
                                     {&ExpertMlp::Args::up, routed(&ExpertWeights::up)},
                                     {&ExpertMlp::Args::up_scale, routed(&ExpertWeights::up_scale)},
                                     {&ExpertMlp::Args::up_bias, routed(&ExpertWeights::up_bias)},
                                     {&ExpertMlp::Args::down, routed(&ExpertWeights::down)},
                                     {&ExpertMlp::Args::down_scale, routed(&ExpertWeights::down_scale)},
                                     {&ExpertMlp::Args::down_bias, routed(&ExpertWeights::down_bias)},
                                     {&ExpertMlp::Args::ids, MoeBuffer::kIds},
                                     {&ExpertMlp::Args::weights, MoeBuffer::kWeights},
                                     {&ExpertMlp::Args::shared, MoeBuffer::kSharedY},
                                     {&ExpertMlp::Args::residual, &MoeIo::residual},
                                     {&ExpertMlp::Args::y, kExpertsY}}},
                        .kernel = MoeKernel::kOfExperts},
    MoeStage<Combine>{
        .name = "combine",
        .runs = [](const MoeConfig& c, MoePath p) { return p != MoePath::kAsOne && !sum_is_normed(c, p); },
        .problem = combine_problem,
        .tensors = {{{&Combine::Args::g, MoeBuffer::kG},
                     {&Combine::Args::position, MoeBuffer::kPosition},
                     {&Combine::Args::weights, MoeBuffer::kWeights},
                     {&Combine::Args::shared, MoeBuffer::kSharedY},
                     {&Combine::Args::residual, &MoeIo::residual},
                     {&Combine::Args::y, kExpertsY}}}},
    MoeStage<CombineNorm>{.name = "combine",
                          .runs = sum_is_normed,
                          .problem = combine_norm_problem,
                          .tensors = {{{&CombineNorm::Args::g, MoeBuffer::kG},
                                       {&CombineNorm::Args::position, MoeBuffer::kPosition},
                                       {&CombineNorm::Args::weights, MoeBuffer::kWeights},
                                       {&CombineNorm::Args::shared, MoeBuffer::kSharedY},
                                       {&CombineNorm::Args::residual, &MoeIo::residual},
                                       {&CombineNorm::Args::y, &MoeIo::y},
                                       {&CombineNorm::Args::norm_weight, &MoeIo::norm_weight},
                                       {&CombineNorm::Args::normed, &MoeIo::normed}}}},
    MoeStage<ExpertGemm>{.name = "latent.out",
                         .runs = has_latent,
                         .problem = [](const MoeConfig& c) { return expert_problems(c).latent_out; },
                         .tensors = {{{&ExpertGemm::Args::x, MoeBuffer::kLatentY},
                                      {&ExpertGemm::Args::w, &MoeWeights::latent_out},
                                      {&ExpertGemm::Args::row_begin, MoeBuffer::kSharedBegin},
                                      {&ExpertGemm::Args::row_count, MoeBuffer::kSharedCount},
                                      {&ExpertGemm::Args::y, MoeBuffer::kLatentOut}}}},
    MoeStage<Combine>{.name = "latent.add",
                      .runs = has_latent,
                      .problem = latent_add_problem,
                      .tensors = {{{&Combine::Args::g, MoeBuffer::kLatentOut},
                                   {&Combine::Args::position, MoeBuffer::kSharedPosition},
                                   {&Combine::Args::shared, MoeBuffer::kSharedY},
                                   {&Combine::Args::residual, &MoeIo::residual},
                                   {&Combine::Args::y, &MoeIo::y}}}},
    MoeStage<RmsNorm>{
        .name = "norm.next",
        .runs = [](const MoeConfig& c, MoePath p) { return c.norm_next && !sum_is_normed(c, p); },
        .problem = norm_problem,
        .tensors = {{{&RmsNorm::Args::x, &MoeIo::y},
                     {&RmsNorm::Args::weight, &MoeIo::norm_weight},
                     {&RmsNorm::Args::y, &MoeIo::normed}}}}};

// Calls visit(stage, its place in the list as an integral_constant) for each stage.
template <class Visit>
void for_each_stage(Visit visit) {
  [&]<size_t... kAt>(std::index_sequence<kAt...>) {
    (visit(std::get<kAt>(kMoeStages), std::integral_constant<size_t, kAt>{}), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<decltype(kMoeStages)>>{});
}
// The same for a visit that may fail; stops at the first error.
template <class Visit>
Status try_each_stage(Visit visit) {
  Status status;
  for_each_stage([&](const auto& stage, auto at) {
    if (status.ok()) status = visit(stage, at);
  });
  return status;
}

// Whether the paths differ in this stage.
template <class Op>
bool of_one_path(const MoeStage<Op>& stage, const MoeConfig& c) {
  return std::any_of(kMoePaths.begin(), kMoePaths.end(),
                     [&](MoePath path) { return stage.runs(c, path) != stage.runs(c, kMoePaths[0]); });
}

template <class Op>
const MoeTensor* tensor_of(const MoeStage<Op>& stage, std::type_identity_t<Tensor Op::Args::*> slot) {
  for (const MoeBind<Op>& bind : stage.tensors)
    if (bind.slot == slot) return &bind.from;
  return nullptr;
}

// What a stage is given. Buffers come as contiguous tensors of the shape that it wants; what a caller gives comes as it is, so that
// the operation checks it.
template <class Op>
typename Op::Args args_of(const MoeStage<Op>& stage, const typename Op::Problem& problem,
                          const MoeConfig& config, const MoeIo& io, const MoeWeights& weights,
                          const MoeBuffers& buffers, Backend where) {
  typename Op::Args out;
  Op::slots(problem, [&](const SlotSpec& spec, Tensor Op::Args::*slot) {
    const MoeTensor* from = tensor_of(stage, slot);
    if (!from || (!spec.used && config.latent > 0)) return;  // then a call's tensors are another stage's
    const MoeBuffer buffer = from->buffer_of(config);
    Tensor& to = out.*slot;
    if (from->io && buffer == MoeBuffer::kNone) to = io.*(from->io);
    if (from->weight) to = weights.*(from->weight);
    if (from->experts) to = (weights.*(from->experts)).*(from->of_experts);
    if (buffer == MoeBuffer::kNone || !spec.used) return;
    to.data = buffers[static_cast<size_t>(buffer)];
    to.dtype = spec.dtype, to.where = where, to.rank = static_cast<int8_t>(spec.rank), to.shape = spec.shape;
    int64_t stride = 1;
    for (int i = spec.rank - 1; i >= 0; --i) {
      to.stride[static_cast<size_t>(i)] = stride;
      stride *= spec.shape[static_cast<size_t>(i)];
    }
  });
  return out;
}

}  // namespace sluice
