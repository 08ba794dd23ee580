// Operations that are compositions of other operations (dispatch/compositions.h).
#include "dispatch/compositions.h"

#include "backends/cuda/device.h"

namespace sluice::cuda {

extern const Candidate<RouterRoute> router_route_in_turn =
    InTurn<RouterRouteParts<catalog>>::card("cuda.router_route.in_turn", Backend::kCuda, 16);
extern const Candidate<ExpertMlp> expert_mlp_in_turn =
    InTurn<ExpertMlpParts<catalog>>::card("cuda.expert_mlp.in_turn", Backend::kCuda, 16);

}  // namespace sluice::cuda
