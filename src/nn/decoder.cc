#include "nn/decoder.h"

#include <algorithm>

#include "base/arena.h"
#include "nn/plan_into.h"

namespace sluice {
namespace {

struct DecoderProblems {
  Embedding::Problem embed, gather;
  RmsNorm::Problem norm;
  Linear::Problem lm_head;
  LinearArgmax::Problem greedy;
};

DecoderProblems problems_of(const DecoderConfig& c, const StepBounds& b) {
  DecoderProblems p;
  p.embed = {.tokens = 0, .vocab = c.vocab, .hidden = c.hidden, .y = c.x};
  // Rows whose logits are wanted: the same lookup, with what the last layer has normed as the table.
  p.gather = {.tokens = 0, .vocab = b.tokens, .hidden = c.hidden, .table = c.x, .y = c.x};
  p.norm = {.tokens = 0, .hidden = c.hidden, .eps = c.eps, .x = c.x, .y = c.x};
  p.lm_head = {.tokens = 0,
               .features = c.vocab,
               .width = c.hidden,
               .x = c.x,
               .y = DType::kF32,
               .layout = c.attention.front().layout};
  p.greedy = {.tokens = 0,
              .features = p.lm_head.features,
              .width = p.lm_head.width,
              .x = p.lm_head.x,
              .w = p.lm_head.w,
              .layout = p.lm_head.layout};
  return p;
}

Status check_config(const DecoderConfig& c) {
  if (c.attention.empty()) return invalid("decoder: wanted at least one kind of attention, found none");
  for (int32_t kind : c.kind)
    if (kind < 0 || kind >= static_cast<int32_t>(c.attention.size()))
      return invalid("decoder: wanted a kind of attention below " + std::to_string(c.attention.size()) +
                     ", found " + std::to_string(kind));
  if (c.kind.empty()) return invalid("decoder: wanted at least one layer, found none");
  return {};
}

}  // namespace

MoeConfig layer_moe(const DecoderConfig& c) {
  MoeConfig moe = c.moe;
  moe.norm_x = moe.norm_next = true, moe.norm_eps = c.eps;
  return moe;
}

DecoderConfig DecoderConfig::with_layouts_of(const DeviceInfo& device) const {
  DecoderConfig out = *this;
  for (AttentionConfig& kind : out.attention) kind.layout = device.layout;
  out.moe.layout = layout_for(device.backend);
  return out;
}

DecoderConfig DecoderConfig::with_activations(DType type) const {
  DecoderConfig out = *this;
  out.x = out.moe.x = out.moe.g = type;
  for (AttentionConfig& kind : out.attention) kind.x = type;
  return out;
}

DecoderConfig DecoderConfig::with_caches(CacheType cache) const {
  DecoderConfig out = *this;
  for (AttentionConfig& kind : out.attention) kind.cache = cache;
  return out;
}

std::vector<StageProblem> decoder_problems(const DecoderConfig& c, const StepBounds& bounds, int64_t tokens,
                                           int64_t rows, MoePath path) {
  const DecoderProblems p = problems_of(c, bounds);
  std::vector<StageProblem> out;
  out.push_back({"embed", any_problem<Embedding>(Embedding::at_tokens(p.embed, tokens))});
  for (int64_t layer = 0; layer < c.layers(); ++layer) {
    const std::string prefix = "layer " + std::to_string(layer) + " ";
    const auto take = [&](std::vector<StageProblem> stages) {
      for (StageProblem& s : stages) out.push_back({prefix + s.stage, std::move(s.problem)});
    };
    if (layer == 0)
      out.push_back({prefix + "attention.norm", any_problem<RmsNorm>(RmsNorm::at_tokens(p.norm, tokens))});
    const auto kind = static_cast<size_t>(c.kind[static_cast<size_t>(layer)]);
    take(attention_problems(c.attention[kind], bounds, tokens));
    take(moe_problems(layer_moe(c), tokens, path));
  }
  if (rows != tokens)
    out.push_back({"logits.gather", any_problem<Embedding>(Embedding::at_tokens(p.gather, rows))});
  out.push_back({"logits.greedy", any_problem<LinearArgmax>(LinearArgmax::at_tokens(p.greedy, rows))});
  return out;
}

Result<std::unique_ptr<Decoder>> Decoder::plan(Device& device, const DecoderConfig& config,
                                               const StepBounds& bounds, const Policy& policy,
                                               const MoeSite& experts) {
  SLUICE_TRY(check_config(config));
  std::unique_ptr<Decoder> d(new Decoder(device, config, bounds, policy));
  SLUICE_TRY(d->plan_attention());
  SLUICE_TRY(d->plan_moe(experts));
  const DecoderProblems p = problems_of(config, bounds);
  SLUICE_TRY(plan_into<Embedding>(&d->embed_, device, p.embed, bounds.tokens, policy));
  SLUICE_TRY(plan_into<Embedding>(&d->gather_, device, p.gather, bounds.sequences, policy));
  SLUICE_TRY(plan_into<RmsNorm>(&d->norm_, device, p.norm, bounds.tokens, policy));
  SLUICE_TRY(plan_into<Linear>(&d->lm_head_, device, p.lm_head, bounds.sequences, policy));
  SLUICE_TRY(plan_into<LinearArgmax>(&d->greedy_, device, p.greedy, bounds.sequences, policy));
  d->lay_out();
  return d;
}

Status Decoder::plan_attention() {
  attention_.clear();
  for (size_t kind = 0; kind < config_.attention.size(); ++kind) {
    auto block = AttentionBlock::plan(device_, config_.attention[kind], bounds_, policy_);
    if (!block.ok()) return block.status();
    attention_.push_back(std::move(block).value());
  }
  return {};
}

Status Decoder::set_pages(int64_t pages) {
  bounds_.pages = pages;
  SLUICE_TRY(plan_attention());
  return lay_out(), Status{};
}

Status Decoder::plan_moe(const MoeSite& experts) {
  if (!experts.device) {
    auto moe = Moe::plan(device_, layer_moe(config_), bounds_.tokens, policy_, experts.backend);
    if (!moe.ok()) return moe.status();
    return moe_ = std::move(moe).value(), Status{};
  }
  if (!device_.shares_host_memory())
    return unsupported("decoder: experts apart: wanted the other parts where the host can read them, found " +
                       text(device_.info()));
  auto apart = MoeApart::plan(*experts.device, layer_moe(config_), bounds_.tokens, policy_, experts.backend);
  if (!apart.ok()) return apart.status();
  return apart_ = std::move(apart).value(), Status{};
}

void Decoder::lay_out() {
  size_t used = 0;
  const auto take = [&](int64_t rows) {
    const size_t at = used;
    used += Arena::footprint(static_cast<size_t>(bytes_of(config_.x, rows * config_.hidden)));
    return at;
  };
  stream_at_ = take(bounds_.tokens);
  normed_at_ = take(bounds_.tokens);
  rows_at_ = take(bounds_.sequences);
  scratch_at_ = used;
  size_t scratch = moe_ ? moe_->workspace_bytes() : 0;
  for (const auto& block : attention_) scratch = std::max(scratch, block->workspace_bytes());
  for (size_t bytes : {embed_->workspace_bytes(), gather_->workspace_bytes(), norm_->workspace_bytes(),
                       lm_head_->workspace_bytes()})
    scratch = std::max(scratch, bytes);
  workspace_bytes_ = used + scratch;
}

int64_t Decoder::cache_bytes() const { return bounds_.pages * layout_.page_bytes_of_all(); }

std::vector<KvCache> Decoder::caches(void* memory) const {
  std::vector<std::byte*> tensors;
  auto* at = static_cast<std::byte*>(memory);
  for (const int64_t page : layout_.page_bytes) {
    tensors.push_back(at);
    at += 2 * bounds_.pages * page;
  }
  std::vector<KvCache> out;
  for (size_t layer = 0; layer < config_.kind.size(); ++layer) {
    const AttentionConfig& c = config_.attention[static_cast<size_t>(config_.kind[layer])];
    const size_t tensor = layout_.tensor[layer];
    const auto view = [&](std::byte* data) {
      return make_tensor(data, c.cache_type(), {bounds_.pages, c.kv_heads, bounds_.page_size, c.head_dim},
                         device_.info().backend);
    };
    out.push_back(
        {view(tensors[tensor]), view(tensors[tensor] + bounds_.pages * layout_.page_bytes[tensor])});
  }
  return out;
}

Status Decoder::check_workspace(Workspace workspace) const {
  if (workspace.data && workspace.bytes >= workspace_bytes_) return {};
  return invalid("decoder: workspace: wanted " + std::to_string(workspace_bytes_) + " bytes, found " +
                 std::to_string(workspace.data ? workspace.bytes : 0));
}

Status Decoder::forward(const StepIn& in, const DecoderWeights& w, const std::vector<KvCache>& caches,
                        const Tensor& logits, Workspace workspace, Stream stream) const {
  SLUICE_TRY(check_workspace(workspace));
  if (static_cast<int64_t>(w.layers.size()) != config_.layers() || caches.size() != w.layers.size())
    return invalid("decoder: wanted weights and caches of " + std::to_string(config_.layers()) +
                   " layers, found " + std::to_string(w.layers.size()) + " and " +
                   std::to_string(caches.size()));
  if (in.tables.size() != layout_.windows.size())
    return invalid("decoder: wanted tables of " + std::to_string(layout_.windows.size()) +
                   " groups of layers, found " + std::to_string(in.tables.size()));
  const int64_t n = in.token_ids.shape[0];
  const MoeConfig& moe = config_.moe;
  SLUICE_TRY(check_slot(slot("captured", Role::kOut, DType::kI32, {config_.layers(), n, moe.top_k},
                             moe.capture, Rows::kMayBeStrided),
                        in.captured, stream.where, 1));
  const auto view = [&](size_t at) {
    return make_tensor(workspace.data + at, config_.x, {n, config_.hidden}, stream.where);
  };
  const Workspace scratch{workspace.data + scratch_at_, workspace.bytes - scratch_at_};
  const Tensor x = view(stream_at_), normed = view(normed_at_);
  SLUICE_TRY(embed_->run(n, {.ids = in.token_ids, .table = w.embedding, .y = x}, scratch, stream));
  SLUICE_TRY(norm_->run(n, {.x = x, .weight = w.layers.front().attention_norm, .residual = {}, .y = normed},
                        scratch, stream));
  for (size_t layer = 0; layer < w.layers.size(); ++layer) {
    const DecoderLayerWeights& l = w.layers[layer];
    const AttentionIo io{.x = normed, .k_cache = caches[layer].k, .v_cache = caches[layer].v, .y = x};
    const auto kind = static_cast<size_t>(config_.kind[layer]);
    const StepTables& tables = in.tables[layout_.group[kind]];
    SLUICE_TRY(attention_[kind]->forward(io, l.attention, tables, scratch, stream));
    const bool last = layer + 1 == w.layers.size();
    MoeIo moe_io{.x = x, .residual = x, .token_ids = {}, .y = x};
    moe_io.x_norm_weight = l.moe_norm;
    moe_io.norm_weight = last ? w.final_norm : w.layers[layer + 1].attention_norm;
    moe_io.normed = normed;
    if (moe.capture)
      moe_io.captured = make_tensor(in.captured.row<int32_t>(static_cast<int64_t>(layer)), DType::kI32,
                                    {n, moe.top_k}, stream.where);
    SLUICE_TRY(apart_ ? apart_->forward(moe_io, l.moe) : moe_->forward(moe_io, l.moe, scratch, stream));
  }
  return logits_of(in.logit_rows, w, logits, workspace, stream, in.every_row);
}

Status Decoder::logits_of(const Tensor& logit_rows, const DecoderWeights& w, const Tensor& logits,
                          Workspace workspace, Stream stream, bool every_row) const {
  const int64_t rows = logit_rows.shape[0];
  if (rows == 0) return check_workspace(workspace);
  const Result<Tensor> wanted = wanted_rows(logit_rows, every_row, workspace, stream);
  if (!wanted.ok()) return wanted.status();
  const Workspace scratch{workspace.data + scratch_at_, workspace.bytes - scratch_at_};
  return lm_head_->run(rows, {.x = wanted.value(), .w = w.lm_head, .bias = {}, .residual = {}, .y = logits},
                       scratch, stream);
}

Status Decoder::draw_greedy(const StepIn& in, const DecoderWeights& w, const Tensor& token,
                            const Tensor& logprob, Workspace scratch, Workspace workspace,
                            Stream stream) const {
  const Result<Tensor> wanted = wanted_rows(in.logit_rows, in.every_row, workspace, stream);
  if (!wanted.ok()) return wanted.status();
  return greedy_->run(in.logit_rows.shape[0],
                      {.x = wanted.value(), .w = w.lm_head, .token = token, .logprob = logprob}, scratch,
                      stream);
}

// What the last layer left of the tokens whose logits are wanted, packed.
Result<Tensor> Decoder::wanted_rows(const Tensor& logit_rows, bool every_row, Workspace workspace,
                                    Stream stream) const {
  SLUICE_TRY(check_workspace(workspace));
  const int64_t rows = logit_rows.shape[0];
  const auto view = [&](size_t at, int64_t count) {
    return make_tensor(workspace.data + at, config_.x, {count, config_.hidden}, stream.where);
  };
  if (every_row) return view(normed_at_, rows);
  const Workspace scratch{workspace.data + scratch_at_, workspace.bytes - scratch_at_};
  // All rows there may be are the table, so that a row's number does not depend on how many tokens this step has.
  const Tensor table = view(normed_at_, bounds_.tokens), wanted = view(rows_at_, rows);
  SLUICE_TRY(gather_->run(rows, {.ids = logit_rows, .table = table, .y = wanted}, scratch, stream));
  return wanted;
}

std::vector<std::pair<std::string, std::string>> Decoder::kernels(int64_t tokens, int64_t rows) const {
  std::vector<std::pair<std::string, std::string>> out;
  out.emplace_back("norm", std::string(norm_->at(tokens).kernel()));  // before the first layer
  for (auto& stage : attention_.front()->kernels(tokens)) out.push_back(std::move(stage));
  for (auto& stage : moe().kernels(tokens)) out.push_back(std::move(stage));
  out.emplace_back("embed", std::string(embed_->at(tokens).kernel()));
  out.emplace_back("logits", std::string(lm_head_->at(rows).kernel()));
  // Where the host reads logits, an engine draws from them.
  if (!device_.shares_host_memory())
    out.emplace_back("logits.greedy", std::string(greedy_->at(rows).kernel()));
  return out;
}

void Decoder::count_kernels(const StepIn& in, KernelRuns* runs) const {
  const int64_t tokens = in.token_ids.shape[0];
  runs->add(embed_->at(tokens).kernel(), 1);
  runs->add(norm_->at(tokens).kernel(), 1);
  for (size_t kind = 0; kind < attention_.size(); ++kind)
    attention_[kind]->count_kernels(tokens, in.tables.front().rows_max,
                                    std::ranges::count(config_.kind, static_cast<int32_t>(kind)), runs);
  moe().count_kernels(tokens, config_.layers(), runs);
  count_logits_kernels(in.logit_rows.shape[0], runs, in.every_row);
}

void Decoder::count_logits_kernels(int64_t rows, KernelRuns* runs, bool every_row) const {
  if (rows == 0) return;
  if (!every_row) runs->add(gather_->at(rows).kernel(), 1);
  runs->add(lm_head_->at(rows).kernel(), 1);
}

void Decoder::count_greedy_kernels(const StepIn& in, KernelRuns* runs) const {
  const int64_t rows = in.logit_rows.shape[0];
  if (!in.every_row) runs->add(gather_->at(rows).kernel(), 1);
  runs->add(greedy_->at(rows).kernel(), 1);
}

}  // namespace sluice
