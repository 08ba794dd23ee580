// Operations that are compositions of other operations (dispatch/compositions.h).
#include "dispatch/compositions.h"

#include "backends/cuda/device.h"

namespace sluice::cuda {

extern const Candidate<RouterGemm> router_gemm_fma_sm90;
extern const Candidate<RouteTopk> route_topk_warp_sm90;
extern const Candidate<ExpertGemm> expert_gemm_fma_sm90;
extern const Candidate<Linear> linear_fma_sm90;
extern const Candidate<Combine> combine_rows_sm90;
extern const Candidate<RmsNorm> rms_norm_rows_sm90;

// Planned where their parts are: in a build without CUDA kernels.
extern const Candidate<RouterRoute> router_route_in_turn = InTurn<RouterRouteParts<catalog>>::card(
    "cuda.router_route.in_turn", Backend::kCuda, 16, router_gemm_fma_sm90.planned);
extern const Candidate<NormRouterRoute> norm_router_route_in_turn =
    InTurn<NormRouterRouteParts<catalog>>::card("cuda.norm_router_route.in_turn", Backend::kCuda, 16,
                                                router_gemm_fma_sm90.planned);
extern const Candidate<NormRouterRoute> norm_router_route_apart = InTurn<NormApartParts<catalog>>::card(
    "cuda.norm_router_route.apart", Backend::kCuda, 16, router_gemm_fma_sm90.planned);
extern const Candidate<RouteGroup> route_group_in_turn = InTurn<RouteGroupParts<catalog>>::card(
    "cuda.route_group.in_turn", Backend::kCuda, 1, route_topk_warp_sm90.planned);
extern const Candidate<ExpertMlp> expert_mlp_in_turn = InTurn<ExpertMlpParts<catalog>>::card(
    "cuda.expert_mlp.in_turn", Backend::kCuda, 16, expert_gemm_fma_sm90.planned);
extern const Candidate<ExpertMlp> expert_mlp_grouped = InTurn<ExpertMlpGroupedParts<catalog>>::card(
    "cuda.expert_mlp.grouped", Backend::kCuda, 16, expert_gemm_fma_sm90.planned);
extern const Candidate<GroupedMlp> grouped_mlp_in_turn = InTurn<GroupedMlpParts<catalog>>::card(
    "cuda.grouped_mlp.in_turn", Backend::kCuda, 16, expert_gemm_fma_sm90.planned);
extern const Candidate<CombineNorm> combine_norm_in_turn = InTurn<CombineNormParts<catalog>>::card(
    "cuda.combine_norm.in_turn", Backend::kCuda, 1, combine_rows_sm90.planned);
extern const Candidate<QkNormRopeKvWrite> qk_norm_rope_kv_write_in_turn =
    InTurn<QkNormRopeKvWriteParts<catalog>>::card("cuda.qk_norm_rope_kv_write.in_turn", Backend::kCuda, 1,
                                                  rms_norm_rows_sm90.planned);
extern const Candidate<QkvRopeKvWrite> qkv_rope_kv_write_in_turn = InTurn<QkvRopeKvWriteParts<catalog>>::card(
    "cuda.qkv_rope_kv_write.in_turn", Backend::kCuda, 16, linear_fma_sm90.planned);

extern const Candidate<LinearArgmax> linear_argmax_in_turn = InTurn<LinearArgmaxParts<catalog>>::card(
    "cuda.linear_argmax.in_turn", Backend::kCuda, 16, linear_fma_sm90.planned);

}  // namespace sluice::cuda
