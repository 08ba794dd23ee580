// All operations, in the order in which explain and the tests list them.
#pragma once
#include "ops/adjust_logits.h"
#include "ops/all_reduce_norm.h"
#include "ops/attention.h"
#include "ops/combine.h"
#include "ops/count_experts.h"
#include "ops/embedding.h"
#include "ops/expert_gemm.h"
#include "ops/expert_lora.h"
#include "ops/group_rows.h"
#include "ops/kv_write.h"
#include "ops/latent_attention.h"
#include "ops/linear.h"
#include "ops/lora_delta.h"
#include "ops/mask_logits.h"
#include "ops/pack_experts.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/route_topk.h"
#include "ops/router_gemm.h"
#include "ops/sample.h"
#include "ops/take_tokens.h"
#include "ops/top_logprobs.h"

// Several of them in sequence.
#include "ops/fused/combine_norm.h"
#include "ops/fused/expert_mlp.h"
#include "ops/fused/grouped_mlp.h"
#include "ops/fused/latent_norm_rope_kv_write.h"
#include "ops/fused/linear_argmax.h"
#include "ops/fused/norm_router_route.h"
#include "ops/fused/qk_norm_rope_kv_write.h"
#include "ops/fused/qkv_rope_kv_write.h"
#include "ops/fused/rope_kv_write.h"
#include "ops/fused/route_group.h"
#include "ops/fused/router_route.h"

namespace sluice {

template <class... Ops>
struct OpList {};

using AllOps = OpList<RouterGemm, LoraDelta, RouteTopk, RouterRoute, NormRouterRoute, GroupRows, RouteGroup,
                      PackExperts, ExpertGemm, ExpertLora, Combine, CombineNorm, AllReduceNorm, GroupedMlp,
                      ExpertMlp, CountExperts, Linear, TakeTokens, Embedding, RmsNorm, Rope, KvWrite,
                      RopeKvWrite, QkNormRopeKvWrite, QkvRopeKvWrite, LatentNormRopeKvWrite, Attention,
                      LatentAttention, AdjustLogits, MaskLogits, Sample, LinearArgmax, TopLogprobs>;

}  // namespace sluice
