// Operations that are others in turn: what stands between them, of some tokens, stays in a near cache, and a call costs next to
// nothing.
#include "dispatch/compositions.h"

#include "backends/cpu/device.h"

namespace sluice::cpu {

extern const Candidate<RouterRoute> router_route_in_turn =
    InTurn<RouterRouteParts<catalog>>::card("cpu.router_route.in_turn", Backend::kCpu, 1);
extern const Candidate<NormRouterRoute> norm_router_route_in_turn =
    InTurn<NormRouterRouteParts<catalog>>::card("cpu.norm_router_route.in_turn", Backend::kCpu, 1);
extern const Candidate<RouteGroup> route_group_in_turn =
    InTurn<RouteGroupParts<catalog>>::card("cpu.route_group.in_turn", Backend::kCpu, 1);
extern const Candidate<ExpertMlp> expert_mlp_in_turn =
    InTurn<ExpertMlpParts<catalog>>::card("cpu.expert_mlp.in_turn", Backend::kCpu, 1);
extern const Candidate<GroupedMlp> grouped_mlp_in_turn =
    InTurn<GroupedMlpParts<catalog>>::card("cpu.grouped_mlp.in_turn", Backend::kCpu, 1);
extern const Candidate<CombineNorm> combine_norm_in_turn =
    InTurn<CombineNormParts<catalog>>::card("cpu.combine_norm.in_turn", Backend::kCpu, 1);
extern const Candidate<QkNormRopeKvWrite> qk_norm_rope_kv_write_in_turn =
    InTurn<QkNormRopeKvWriteParts<catalog>>::card("cpu.qk_norm_rope_kv_write.in_turn", Backend::kCpu, 1);
extern const Candidate<QkvRopeKvWrite> qkv_rope_kv_write_in_turn =
    InTurn<QkvRopeKvWriteParts<catalog>>::card("cpu.qkv_rope_kv_write.in_turn", Backend::kCpu, 1);

extern const Candidate<LinearArgmax> linear_argmax_in_turn =
    InTurn<LinearArgmaxParts<catalog>>::card("cpu.linear_argmax.in_turn", Backend::kCpu, 1);

}  // namespace sluice::cpu
