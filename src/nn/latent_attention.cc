#include "nn/latent_attention.h"

#include <algorithm>

#include "base/arena.h"
#include "nn/plan_into.h"

namespace sluice {
namespace {

struct LatentProblems {
  Linear::Problem q_a, q_b, kv_a, o;
  RmsNorm::Problem q_norm, kv_norm;
  Rope::Problem q_rope, k_rope;
  KvWrite::Problem kv_write;
  LatentAttention::Problem attention;
};

LatentProblems problems_of(const LatentAttentionConfig& c, const StepBounds& b) {
  const auto linear = [&](int64_t features, int64_t width) {
    return Linear::Problem{
        .tokens = 0, .features = features, .width = width, .x = c.x, .y = c.x, .layout = c.layout};
  };
  const auto norm = [&](int64_t width) {
    return RmsNorm::Problem{.tokens = 0, .hidden = width, .eps = c.eps, .x = c.x, .y = c.x};
  };
  LatentProblems p;
  p.q_a = linear(c.q_rank, c.hidden);
  p.q_b = linear(c.heads * (c.nope + c.rope), c.q_rank);
  p.kv_a = linear(c.rank + c.rope, c.hidden);
  p.o = linear(c.hidden, c.heads * c.v_dim);
  p.o.residual = true;
  p.q_norm = norm(c.q_rank);
  p.kv_norm = norm(c.rank);
  p.q_rope = {.tokens = 0,
              .heads = c.heads,
              .head_dim = c.nope + c.rope,
              .rotary = c.rope,
              .first = c.nope,
              .table_rows = b.positions,
              .pairs = RopePairs::kInterleaved,
              .x = c.x};
  // One key for all heads, after the latent.
  p.k_rope = p.q_rope;
  p.k_rope.heads = 1;
  p.k_rope.head_dim = c.rank + c.rope;
  p.k_rope.first = c.rank;
  p.kv_write = {.tokens = 0,
                .kv_heads = 1,
                .head_dim = c.rank + c.rope,
                .pages = b.pages,
                .page_size = b.page_size,
                .kv = c.x,
                .values = false};
  p.attention = {.tokens = 0,
                 .sequences = b.sequences,
                 .heads = c.heads,
                 .rank = c.rank,
                 .nope = c.nope,
                 .rope = c.rope,
                 .v_dim = c.v_dim,
                 .pages = b.pages,
                 .page_size = b.page_size,
                 .pages_per_seq = b.pages_per_seq(),
                 .scale = c.scale,
                 .q = c.x};
  return p;
}

}  // namespace

std::vector<StageProblem> latent_attention_problems(const LatentAttentionConfig& config,
                                                    const StepBounds& bounds, int64_t tokens) {
  const LatentProblems p = problems_of(config, bounds);
  std::vector<StageProblem> out;
  const auto add = [&]<class P>(const char* stage, const P& problem, auto op) {
    using Op = decltype(op);
    out.push_back({stage, any_problem<Op>(Op::at_tokens(problem, tokens))});
  };
  add("attention.q_a", p.q_a, Linear{});
  add("attention.q_norm", p.q_norm, RmsNorm{});
  add("attention.q_b", p.q_b, Linear{});
  add("attention.q_rope", p.q_rope, Rope{});
  add("attention.kv_a", p.kv_a, Linear{});
  add("attention.kv_norm", p.kv_norm, RmsNorm{});
  add("attention.k_rope", p.k_rope, Rope{});
  add("attention.kv_write", p.kv_write, KvWrite{});
  add("attention.latent", p.attention, LatentAttention{});
  add("attention.o", p.o, Linear{});
  return out;
}

Result<std::unique_ptr<LatentAttentionBlock>> LatentAttentionBlock::plan(Device& device,
                                                                         const LatentAttentionConfig& config,
                                                                         const StepBounds& bounds,
                                                                         const Policy& policy) {
  if (bounds.tokens < 1)
    return invalid("latent attention: tokens: wanted at least 1, found " + std::to_string(bounds.tokens));
  std::unique_ptr<LatentAttentionBlock> block(new LatentAttentionBlock(config, bounds));
  const LatentProblems p = problems_of(config, bounds);
  const int64_t n = bounds.tokens;
  SLUICE_TRY(plan_into<Linear>(&block->q_a_, device, p.q_a, n, policy));
  SLUICE_TRY(plan_into<RmsNorm>(&block->q_norm_, device, p.q_norm, n, policy));
  SLUICE_TRY(plan_into<Linear>(&block->q_b_, device, p.q_b, n, policy));
  SLUICE_TRY(plan_into<Rope>(&block->q_rope_, device, p.q_rope, n, policy));
  SLUICE_TRY(plan_into<Linear>(&block->kv_a_, device, p.kv_a, n, policy));
  SLUICE_TRY(plan_into<RmsNorm>(&block->kv_norm_, device, p.kv_norm, n, policy));
  SLUICE_TRY(plan_into<Rope>(&block->k_rope_, device, p.k_rope, n, policy));
  SLUICE_TRY(plan_into<KvWrite>(&block->kv_write_, device, p.kv_write, n, policy));
  SLUICE_TRY(plan_into<LatentAttention>(&block->attention_, device, p.attention, n, policy));
  SLUICE_TRY(plan_into<Linear>(&block->o_, device, p.o, n, policy));
  block->lay_out();
  return block;
}

void LatentAttentionBlock::lay_out() {
  const LatentAttentionConfig& c = config_;
  size_t used = 0;
  const auto take = [&](int64_t width) {
    const size_t at = used;
    used += Arena::footprint(static_cast<size_t>(bytes_of(c.x, bounds_.tokens * width)));
    return at;
  };
  q_latent_at_ = take(c.q_rank);
  q_at_ = take(c.heads * (c.nope + c.rope));
  latent_at_ = take(c.rank + c.rope);
  heads_at_ = take(c.heads * c.v_dim);
  scratch_at_ = used;
  workspace_bytes_ =
      used + std::max({q_a_->workspace_bytes(), q_norm_->workspace_bytes(), q_b_->workspace_bytes(),
                       q_rope_->workspace_bytes(), kv_a_->workspace_bytes(), kv_norm_->workspace_bytes(),
                       k_rope_->workspace_bytes(), kv_write_->workspace_bytes(),
                       attention_->workspace_bytes(), o_->workspace_bytes()});
}

int64_t LatentAttentionBlock::cache_bytes() const {
  return bytes_of(config_.x, bounds_.pages * bounds_.page_size * (config_.rank + config_.rope));
}

Status LatentAttentionBlock::forward(const LatentAttentionIo& io, const LatentAttentionWeights& w,
                                     const StepTables& t, Workspace workspace, Stream stream) const {
  if (!workspace.data || workspace.bytes < workspace_bytes_)
    return invalid("latent attention: workspace: wanted " + std::to_string(workspace_bytes_) +
                   " bytes, found " + std::to_string(workspace.data ? workspace.bytes : 0));
  const LatentAttentionConfig& c = config_;
  const int64_t n = io.x.shape[0], head = c.nope + c.rope, row = c.rank + c.rope;
  const auto view = [&](size_t at, std::initializer_list<int64_t> shape) {
    return make_tensor(workspace.data + at, c.x, shape, stream.where);
  };
  const Workspace scratch{workspace.data + scratch_at_, workspace.bytes - scratch_at_};
  const auto project = [&](const PlanTable<Linear>& plan, const Tensor& x, const Tensor& weight,
                           const Tensor& y) {
    return plan.run(n, {.x = x, .w = weight, .bias = {}, .residual = {}, .y = y}, scratch, stream);
  };
  const auto norm = [&](const PlanTable<RmsNorm>& plan, const Tensor& x, const Tensor& weight) {
    return plan.run(n, {.x = x, .weight = weight, .residual = {}, .y = x}, scratch, stream);
  };
  const Tensor q_latent = view(q_latent_at_, {n, c.q_rank}), q = view(q_at_, {n, c.heads, head});
  SLUICE_TRY(project(*q_a_, io.x, w.q_a, q_latent));
  SLUICE_TRY(norm(*q_norm_, q_latent, w.q_norm));
  SLUICE_TRY(project(*q_b_, q_latent, w.q_b, view(q_at_, {n, c.heads * head})));
  SLUICE_TRY(q_rope_->run(n, {.positions = t.positions, .table = t.rope, .x = q}, scratch, stream));
  // A row is the latent and the key that carries the position: the norm takes the first, the rotation the second.
  SLUICE_TRY(project(*kv_a_, io.x, w.kv_a, view(latent_at_, {n, row})));
  Tensor latent = view(latent_at_, {n, row});
  latent.shape[1] = c.rank;
  SLUICE_TRY(norm(*kv_norm_, latent, w.kv_norm));
  const Tensor rows = view(latent_at_, {n, 1, row});
  SLUICE_TRY(k_rope_->run(n, {.positions = t.positions, .table = t.rope, .x = rows}, scratch, stream));
  SLUICE_TRY(kv_write_->run(n, {.k = rows, .v = {}, .slot_of = t.slot_of, .k_cache = io.cache, .v_cache = {}},
                            scratch, stream));
  SLUICE_TRY(attention_->run(n,
                             {.q = q,
                              .kv_b = w.kv_b,
                              .cache = io.cache,
                              .page_table = t.page_table,
                              .q_begin = t.q_begin,
                              .kv_len = t.kv_len,
                              .y = view(heads_at_, {n, c.heads, c.v_dim})},
                             scratch, stream));
  const Tensor flat = view(heads_at_, {n, c.heads * c.v_dim});
  return o_->run(n, {.x = flat, .w = w.o, .bias = {}, .residual = io.y, .y = io.y}, scratch, stream);
}

std::vector<std::pair<std::string, std::string>> LatentAttentionBlock::kernels(int64_t tokens) const {
  return {{"attention.q_a", std::string(q_a_->at(tokens).kernel())},
          {"attention.q_norm", std::string(q_norm_->at(tokens).kernel())},
          {"attention.q_b", std::string(q_b_->at(tokens).kernel())},
          {"attention.q_rope", std::string(q_rope_->at(tokens).kernel())},
          {"attention.kv_a", std::string(kv_a_->at(tokens).kernel())},
          {"attention.kv_norm", std::string(kv_norm_->at(tokens).kernel())},
          {"attention.k_rope", std::string(k_rope_->at(tokens).kernel())},
          {"attention.kv_write", std::string(kv_write_->at(tokens).kernel())},
          {"attention.latent", std::string(attention_->at(tokens).kernel())},
          {"attention.o", std::string(o_->at(tokens).kernel())}};
}

}  // namespace sluice
