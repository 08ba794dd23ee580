// All operations, in the order in which explain and the tests list them.
#pragma once
#include "ops/adjust_logits.h"
#include "ops/all_reduce_norm.h"
#include "ops/attention.h"
#include "ops/combine.h"
#include "ops/combine_norm.h"
#include "ops/count_experts.h"
#include "ops/embedding.h"
#include "ops/expert_gemm.h"
#include "ops/expert_lora.h"
#include "ops/expert_mlp.h"
#include "ops/group_rows.h"
#include "ops/grouped_mlp.h"
#include "ops/kv_write.h"
#include "ops/latent_attention.h"
#include "ops/latent_norm_rope_kv_write.h"
#include "ops/linear.h"
#include "ops/linear_argmax.h"
#include "ops/lora_delta.h"
#include "ops/mask_logits.h"
#include "ops/norm_router_route.h"
#include "ops/pack_experts.h"
#include "ops/qk_norm_rope_kv_write.h"
#include "ops/qkv_rope_kv_write.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/rope_kv_write.h"
#include "ops/route_group.h"
#include "ops/route_topk.h"
#include "ops/router_gemm.h"
#include "ops/router_route.h"
#include "ops/sample.h"
#include "ops/take_tokens.h"
#include "ops/top_logprobs.h"

namespace sluice {

template <class... Ops>
struct OpList {};

using AllOps = OpList<RouterGemm, LoraDelta, RouteTopk, RouterRoute, NormRouterRoute, GroupRows, RouteGroup,
                      PackExperts, ExpertGemm, ExpertLora, Combine, CombineNorm, AllReduceNorm, GroupedMlp,
                      ExpertMlp, CountExperts, Linear, TakeTokens, Embedding, RmsNorm, Rope, KvWrite,
                      RopeKvWrite, QkNormRopeKvWrite, QkvRopeKvWrite, LatentNormRopeKvWrite, Attention,
                      LatentAttention, AdjustLogits, MaskLogits, Sample, LinearArgmax, TopLogprobs>;

}  // namespace sluice
