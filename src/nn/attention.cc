#include "nn/attention.h"

#include <algorithm>

#include "base/arena.h"
#include "nn/plan_into.h"

namespace sluice {
namespace {

struct AttentionProblems {
  QkvRopeKvWrite::Problem qkv;
  Attention::Problem attention;
  Linear::Problem o;
};

int64_t qkv_width(const AttentionConfig& c) { return (c.heads + 2 * c.kv_heads) * c.head_dim; }

AttentionProblems problems_of(const AttentionConfig& c, const StepBounds& b) {
  AttentionProblems p;
  p.qkv = {.rope = {.rope = {.tokens = 0,
                             .heads = c.heads,
                             .head_dim = c.head_dim,
                             .rotary = c.rotary,
                             .table_rows = b.positions,
                             .pairs = c.pairs,
                             .x = c.x},
                    .kv_heads = c.kv_heads,
                    .pages = b.pages,
                    .page_size = b.page_size,
                    .cache = c.cache,
                    .settled = true},  // the tables of a step come from the host
           .width = c.hidden,
           .layout = c.layout,
           .bias = c.qkv_bias};
  p.attention = {.tokens = 0,
                 .sequences = b.sequences,
                 .heads = c.heads,
                 .kv_heads = c.kv_heads,
                 .head_dim = c.head_dim,
                 .pages = b.pages,
                 .page_size = b.page_size,
                 .pages_per_seq = b.pages_per_seq(),
                 .window = c.window,
                 .scale = c.scale,
                 .q = c.x,
                 .cache = c.cache,
                 .sinks = c.sinks,
                 .settled = true};
  p.o = {.tokens = 0,
         .features = c.hidden,
         .width = c.heads * c.head_dim,
         .x = c.x,
         .y = c.x,
         .layout = c.layout,
         .bias = c.o_bias,
         .residual = true};
  return p;
}

const char* stage_name(const AttentionConfig& c) {
  return c.window > 0 ? "attention.sliding" : "attention.full";
}

}  // namespace

std::vector<StageProblem> attention_problems(const AttentionConfig& config, const StepBounds& bounds,
                                             int64_t tokens) {
  const AttentionProblems p = problems_of(config, bounds);
  std::vector<StageProblem> out;
  out.push_back({"attention.qkv", any_problem<QkvRopeKvWrite>(QkvRopeKvWrite::at_tokens(p.qkv, tokens))});
  Attention::Problem attention = Attention::at_tokens(p.attention, tokens);
  attention.rows_max = tokens <= bounds.sequences;
  out.push_back({stage_name(config), any_problem<Attention>(attention)});
  out.push_back({"attention.o", any_problem<Linear>(Linear::at_tokens(p.o, tokens))});
  return out;
}

Result<std::unique_ptr<AttentionBlock>> AttentionBlock::plan(Device& device, const AttentionConfig& config,
                                                             const StepBounds& bounds, const Policy& policy) {
  if (bounds.tokens < 1)
    return invalid("attention: tokens: wanted at least 1, found " + std::to_string(bounds.tokens));
  std::unique_ptr<AttentionBlock> block(new AttentionBlock(config, bounds));
  const AttentionProblems p = problems_of(config, bounds);
  const int64_t n = bounds.tokens;
  SLUICE_TRY(plan_into<QkvRopeKvWrite>(&block->qkv_, device, p.qkv, n, policy));
  SLUICE_TRY(plan_into<Attention>(&block->attention_, device, p.attention, n, policy));
  if (!policy.batch_invariant) {
    Attention::Problem decode = p.attention;
    decode.rows_max = 1;
    SLUICE_TRY(plan_into<Attention>(&block->decode_, device, decode, std::min(n, bounds.sequences), policy));
  }
  SLUICE_TRY(plan_into<Linear>(&block->o_, device, p.o, n, policy));
  size_t used = 0;
  const auto take = [&](int64_t elements) {
    const size_t at = used;
    used += Arena::footprint(static_cast<size_t>(bytes_of(config.x, elements)));
    return at;
  };
  block->qkv_at_ = take(n * qkv_width(config));
  block->heads_at_ = take(n * config.heads * config.head_dim);
  block->scratch_at_ = used;
  const size_t scratch =
      std::max({block->qkv_->workspace_bytes(), block->attention_->workspace_bytes(),
                block->decode_ ? block->decode_->workspace_bytes() : 0, block->o_->workspace_bytes()});
  block->workspace_bytes_ = used + scratch;
  return block;
}

Status AttentionBlock::forward(const AttentionIo& io, const AttentionWeights& w, const StepTables& t,
                               Workspace workspace, Stream stream) const {
  if (!workspace.data || workspace.bytes < workspace_bytes_)
    return invalid("attention: workspace: wanted " + std::to_string(workspace_bytes_) + " bytes, found " +
                   std::to_string(workspace.data ? workspace.bytes : 0));
  const AttentionConfig& c = config_;
  const int64_t n = io.x.shape[0];
  const Workspace scratch{workspace.data + scratch_at_, workspace.bytes - scratch_at_};
  const Tensor qkv = make_tensor(workspace.data + qkv_at_, c.x, {n, qkv_width(c)}, stream.where);
  const Tensor heads = make_tensor(workspace.data + heads_at_, c.x, {n, c.heads, c.head_dim}, stream.where);
  SLUICE_TRY(qkv_->run(n,
                       {.x = io.x,
                        .w = w.qkv,
                        .bias = w.qkv_bias,
                        .positions = t.positions,
                        .table = t.rope,
                        .slot_of = t.slot_of,
                        .qkv = qkv,
                        .k_cache = io.k_cache,
                        .v_cache = io.v_cache},
                       scratch, stream));
  SLUICE_TRY(attention_for(n, t.rows_max)
                 .run(n,
                      {.q = QkvRopeKvWrite::heads_of(qkv, 0, c.heads, c.head_dim),
                       .k_cache = io.k_cache,
                       .v_cache = io.v_cache,
                       .page_table = t.page_table,
                       .q_begin = t.q_begin,
                       .kv_len = t.kv_len,
                       .sinks = w.sinks,
                       .y = heads},
                      scratch, stream));
  const Tensor flat = make_tensor(heads.data, c.x, {n, c.heads * c.head_dim}, stream.where);
  return o_->run(n, {.x = flat, .w = w.o, .bias = w.o_bias, .residual = io.y, .y = io.y}, scratch, stream);
}

const PlanTable<Attention>& AttentionBlock::attention_for(int64_t tokens, int64_t rows_max) const {
  return decode_ && rows_max == 1 && tokens <= decode_->tokens_max() ? *decode_ : *attention_;
}

void AttentionBlock::count_kernels(int64_t tokens, int64_t rows_max, int64_t blocks, KernelRuns* runs) const {
  runs->add(qkv_->at(tokens).kernel(), blocks);
  runs->add(attention_for(tokens, rows_max).at(tokens).kernel(), blocks);
  runs->add(o_->at(tokens).kernel(), blocks);
}

std::vector<std::pair<std::string, std::string>> AttentionBlock::kernels(int64_t tokens) const {
  const PlanTable<Attention>& attention = attention_for(tokens, 1);
  return {{"attention.qkv", std::string(qkv_->at(tokens).kernel())},
          {stage_name(config_), std::string(attention.at(tokens).kernel())},
          {"attention.o", std::string(o_->at(tokens).kernel())}};
}

}  // namespace sluice
