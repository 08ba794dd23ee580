// Expert MLP for very few tokens, mxfp4 weights: both products and
// the weighted sums over experts in one launch (fused_slices.cuh).
//
// Wins    one token of gpt-oss-120b (22.0 us against 23.4 us of expert_mlp_mxfp4_fewtokens_sm90) and two of DeepSeek V4 Flash (45.6 us
//         against 47.0 us; mxfp4_candidates.csv). h and the partial sums fit into shared memory next to the weights, so there is no
//         combine launch, and all warps have equal shares of the second product.
// Loses   to expert_mlp_mxfp4_fewtokens_sm90 for two tokens of gpt-oss-120b: 35.4 us against 34.9 us.
// Limits  16 slots (tokens x slots per token); see supports() below. Sums are split at the same k for any batch, so the kernel is
//         batch-invariant.
// Source  original; the contract is ops/fused/expert_mlp.h.
#include "backends/cuda/experts/cards.h"
#include "backends/cuda/experts/mlp_workspace.h"

namespace sluice::cuda {
namespace {

Refusal supports(const ExpertMlp::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_fewtokens(r, p, d);
  need_format(r, {p.w, p.scales}, {DType::kE2M1}, "dequantised in registers");
  if (!r.accepted()) return r;
  const slices::Plan plan(p, d.cores);
  r.need(plan.cut.box > 0, "intermediate that fits into a cluster's shared memory", "intermediate",
         p.intermediate);
  if (!r.accepted()) return r;
  r.need(ExpertMlp::rows(p) <= slices::kRowsOfH,
         "tokens * slots <= " + std::to_string(slices::kRowsOfH) + " (a row of h for each stage)",
         "tokens * slots", ExpertMlp::rows(p));
  r.need(plan.sums(p) <= slices::kSums, "at most " + std::to_string(slices::kSums) + " sums per block",
         "sums", plan.sums(p));
  r.need(plan.epilogue_threads(p) <= slices::kEpilogueThreads,
         "at most " + std::to_string(slices::kEpilogueThreads) + " rows of slots per block (a thread each)",
         "rows of slots", plan.epilogue_threads(p));
  return r;
}

// Fitted to measurements on an H200 at 1 and 2 tokens of gpt-oss-120b and DeepSeek V4
// Flash, and at one token of a tensor-parallel shard of V4 Pro. The error is up to 4%.
double cost_us(const ExpertMlp::Problem& p, const DeviceInfo& d) {
  return fewtokens_us(p, d, {.begin_us = 9.7, .memory_share = 0.92});
}

struct Launcher {
  static Status enqueue(const ExpertMlp::Problem&, const ExpertMlp::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<ExpertMlp> expert_mlp_mxfp4_slices_sm90 = {
    .name = "cuda.expert_mlp.mxfp4_slices_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = fewtokens_workspace_bytes,
    .enqueue = enqueue_of<ExpertMlp, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/experts/fused/fused_slices.cuh"

namespace sluice::cuda {
namespace {

template <bool kGated, bool kCut>
auto kernel_for(int box) {
  return box == 3 ? slices::expert_mlp_slices<kGated, 3, kCut> : slices::expert_mlp_slices<kGated, 4, kCut>;
}
template <bool kGated>
auto kernel_for(const ExpertMlp::Problem& p, int box) {
  return fewtokens::is_cut(p) ? kernel_for<kGated, true>(box) : kernel_for<kGated, false>(box);
}

Status Launcher::enqueue(const ExpertMlp::Problem& p, const ExpertMlp::Args& a, Workspace w, Stream stream) {
  if (p.tokens == 0) return {};
  constexpr size_t kBytes = 128 + sizeof(slices::Memory);
  static_assert(kBytes <= fewtokens::kSharedMax);
  const ExpertMlpBetween between = ExpertMlpBetween::at(w.data, ExpertMlp::with_f32_g(p), stream.where);
  const int sms = queue_of(stream).sms;
  const slices::Plan plan(p, sms);
  const ExpertGemm::Problem up = ExpertMlp::up(p), down = ExpertMlp::down(ExpertMlp::with_f32_g(p));
  slices::Parameters q;
  q.two = {.product = {expert_parameters(up, ExpertMlp::up(p, a, {}, between.h)),
                       expert_parameters(down, ExpertMlp::down(a, {}, between.h, between.g))},
           .ids = a.ids.as<const int32_t>(),
           .grid_words = queue_of(stream).grid_words,
           .tokens_slots = static_cast<int>(ExpertMlp::rows(p)),
           .splits = fewtokens::Splits(ExpertGemm::fragments(up).k_blocks)};
  SLUICE_TRY(tile::map_slabs(q.codes, q.scales, a.down, a.down_scale,
                             fragment_shape(p.hidden, false, p.intermediate), p.experts,
                             plan.cut.box * plan.cut.group_warps()));
  q.combined = {.weights = p.weight_on_input ? nullptr : a.weights.as<const float>(),
                .shared = p.shared ? a.shared.data : nullptr,
                .residual = p.residual ? a.residual.data : nullptr,
                .y = a.y.data,
                .shared_stride = a.shared.stride[0],
                .residual_stride = a.residual.stride[0],
                .y_stride = a.y.stride[0],
                .y_f32 = p.y == DType::kF32,
                .scale = static_cast<float>(p.scale)};
  q.tokens = static_cast<int>(p.tokens), q.slots = static_cast<int>(p.slots);
  q.tokens_inverse = (65536u + static_cast<uint32_t>(p.tokens) - 1) / static_cast<uint32_t>(p.tokens);
  q.lanes_log = plan.lanes_log;
  q.parts = (plan.cut.blocks() + 3) / 4;
  q.parts_inverse = (65536u + static_cast<uint32_t>(q.parts) - 1) / static_cast<uint32_t>(q.parts);
  q.groups = plan.cut.groups, q.boxes = plan.cut.boxes, q.split = plan.cut.split;
  q.slices_whole = plan.slices / plan.clusters, q.slices_over = plan.slices % plan.clusters;
  const Launch how{.grid = {static_cast<unsigned>(plan.clusters * 2), 1, 1},
                   .block = {slices::kThreads, 1, 1},
                   .shared_bytes = kBytes,
                   .cluster = {2, 1, 1},
                   .cooperative = true};
  return launch(expert_mlp_mxfp4_slices_sm90.name,
                is_gated(p.act) ? kernel_for<true>(p, plan.cut.box) : kernel_for<false>(p, plan.cut.box), how,
                stream, q);
}

}  // namespace

}  // namespace sluice::cuda
#endif
