#include "nn/mtp.h"

#include <algorithm>

#include "base/arena.h"
#include "nn/plan_into.h"

namespace sluice {
namespace {

struct MtpProblems {
  Embedding::Problem embed, gather;
  RmsNorm::Problem norm;
  Linear::Problem eh_proj, head;
};

MtpProblems problems_of(const MtpConfig& c, const StepBounds& b) {
  MtpProblems p;
  p.embed = {.tokens = 0, .vocab = c.vocab, .hidden = c.hidden, .y = c.x};
  // Rows of the residual stream whose logits are wanted: the same lookup, with the stream as the table.
  p.gather = {.tokens = 0, .vocab = b.tokens, .hidden = c.hidden, .table = c.x, .y = c.x};
  p.norm = {.tokens = 0, .hidden = c.hidden, .eps = c.eps, .x = c.x, .y = c.x};
  p.eh_proj = {.tokens = 0,
               .features = c.hidden,
               .width = 2 * c.hidden,
               .x = c.x,
               .y = c.x,
               .layout = c.attention.layout};
  p.head = {.tokens = 0,
            .features = c.vocab,
            .width = c.hidden,
            .x = c.x,
            .y = DType::kF32,
            .layout = c.attention.layout};
  return p;
}

Status check_config(const MtpConfig& c) {
  const auto same = [](const char* what, int64_t found, int64_t wanted) {
    return found == wanted ? Status{}
                           : invalid(std::string("mtp: ") + what + ": wanted " + std::to_string(wanted) +
                                     ", the layer's, found " + std::to_string(found));
  };
  SLUICE_TRY(same("attention.hidden", c.attention.hidden, c.hidden));
  SLUICE_TRY(same("moe.hidden", c.moe.hidden, c.hidden));
  return c.moe.residual
             ? Status{}
             : invalid("mtp: moe.residual: wanted a layer that adds the stream, found one without");
}

}  // namespace

MtpConfig MtpConfig::with_layouts_of(const DeviceInfo& device) const {
  MtpConfig out = *this;
  out.attention.layout = device.layout;
  out.moe.layout = layout_for(device.backend);
  return out;
}

MtpConfig MtpConfig::with_activations(DType type) const {
  MtpConfig out = *this;
  out.x = out.attention.x = out.moe.x = out.moe.g = type;
  return out;
}

std::vector<StageProblem> mtp_problems(const MtpConfig& c, const StepBounds& bounds, int64_t tokens,
                                       int64_t rows, MoePath path) {
  const MtpProblems p = problems_of(c, bounds);
  std::vector<StageProblem> out;
  const auto norm = [&](const char* name, int64_t n) {
    out.push_back({name, any_problem<RmsNorm>(RmsNorm::at_tokens(p.norm, n))});
  };
  const auto take = [&](std::vector<StageProblem> stages) {
    for (StageProblem& s : stages) out.push_back(std::move(s));
  };
  out.push_back({"embed", any_problem<Embedding>(Embedding::at_tokens(p.embed, tokens))});
  norm("enorm", tokens);
  norm("hnorm", tokens);
  out.push_back({"eh_proj", any_problem<Linear>(Linear::at_tokens(p.eh_proj, tokens))});
  norm("attention.norm", tokens);
  take(latent_attention_problems(c.attention, bounds, tokens));
  norm("moe.norm", tokens);
  take(moe_problems(c.moe, tokens, path));
  out.push_back({"logits.gather", any_problem<Embedding>(Embedding::at_tokens(p.gather, rows))});
  norm("logits.norm", rows);
  out.push_back({"logits", any_problem<Linear>(Linear::at_tokens(p.head, rows))});
  return out;
}

Result<std::unique_ptr<Mtp>> Mtp::plan(Device& device, const MtpConfig& config, const StepBounds& bounds,
                                       const Policy& policy, Device* experts) {
  SLUICE_TRY(check_config(config));
  std::unique_ptr<Mtp> out(new Mtp(device, config, bounds));
  auto attention = LatentAttentionBlock::plan(device, config.attention, bounds, policy);
  if (!attention.ok()) return attention.status();
  out->attention_ = std::move(attention).value();
  SLUICE_TRY(out->plan_moe(policy, experts));
  const MtpProblems p = problems_of(config, bounds);
  SLUICE_TRY(plan_into<Embedding>(&out->embed_, device, p.embed, bounds.tokens, policy));
  SLUICE_TRY(plan_into<Embedding>(&out->gather_, device, p.gather, bounds.sequences, policy));
  SLUICE_TRY(plan_into<RmsNorm>(&out->norm_, device, p.norm, bounds.tokens, policy));
  SLUICE_TRY(plan_into<RmsNorm>(&out->head_norm_, device, p.norm, bounds.sequences, policy));
  SLUICE_TRY(plan_into<Linear>(&out->eh_proj_, device, p.eh_proj, bounds.tokens, policy));
  SLUICE_TRY(plan_into<Linear>(&out->head_, device, p.head, bounds.sequences, policy));
  out->lay_out();
  return out;
}

Status Mtp::plan_moe(const Policy& policy, Device* experts) {
  if (!experts) {
    auto moe = Moe::plan(device_, config_.moe, bounds_.tokens, policy);
    if (!moe.ok()) return moe.status();
    return moe_ = std::move(moe).value(), Status{};
  }
  if (!device_.shares_host_memory())
    return unsupported("mtp: experts apart: wanted the other parts where the host can read them, found " +
                       text(device_.info()));
  auto apart = MoeApart::plan(*experts, config_.moe, bounds_.tokens, policy);
  if (!apart.ok()) return apart.status();
  return apart_ = std::move(apart).value(), Status{};
}

void Mtp::lay_out() {
  size_t used = 0;
  const auto take = [&](int64_t elements) {
    const size_t at = used;
    used += Arena::footprint(static_cast<size_t>(bytes_of(config_.x, elements)));
    return at;
  };
  pair_at_ = take(bounds_.tokens * 2 * config_.hidden);
  normed_at_ = take(bounds_.tokens * config_.hidden);
  rows_at_ = take(bounds_.sequences * config_.hidden);
  scratch_at_ = used;
  workspace_bytes_ =
      used + std::max({embed_->workspace_bytes(), gather_->workspace_bytes(), norm_->workspace_bytes(),
                       head_norm_->workspace_bytes(), eh_proj_->workspace_bytes(), head_->workspace_bytes(),
                       attention_->workspace_bytes(), moe_ ? moe_->workspace_bytes() : 0});
}

Tensor Mtp::cache(void* memory) const {
  return make_tensor(memory, config_.x,
                     {bounds_.pages, 1, bounds_.page_size, config_.attention.rank + config_.attention.rope},
                     device_.info().backend);
}

Status Mtp::forward(const MtpIn& in, const MtpWeights& w, const Tensor& cache, const MtpOut& out,
                    Workspace workspace, Stream stream) const {
  if (!workspace.data || workspace.bytes < workspace_bytes_)
    return invalid("mtp: workspace: wanted " + std::to_string(workspace_bytes_) + " bytes, found " +
                   std::to_string(workspace.data ? workspace.bytes : 0));
  const int64_t n = in.token_ids.shape[0], rows = in.logit_rows.shape[0], hidden = config_.hidden;
  const SlotSpec wanted_hidden = slot("hidden", Role::kOut, config_.x, {bounds_.tokens, hidden});
  if (const Status status = check_slot(wanted_hidden, out.hidden, stream.where, 1); !status.ok())
    return Status{status.code, "mtp: " + status.message};
  const auto view = [&](size_t at, std::initializer_list<int64_t> shape) {
    return make_tensor(workspace.data + at, config_.x, shape, stream.where);
  };
  const Workspace scratch{workspace.data + scratch_at_, workspace.bytes - scratch_at_};
  // Both halves of the projection's input are written where they belong.
  const Tensor pair = view(pair_at_, {n, 2 * hidden});
  const auto half = [&](int64_t which) {
    Tensor t = pair;
    t.data = pair.as<std::byte>() + bytes_of(config_.x, which * hidden);
    t.shape[1] = hidden;
    return t;
  };
  Tensor x = out.hidden;
  x.shape[0] = n;
  const Tensor normed = view(normed_at_, {n, hidden});
  const auto norm = [&](const Tensor& from, const Tensor& weight, const Tensor& to) {
    return norm_->run(n, {.x = from, .weight = weight, .residual = {}, .y = to}, scratch, stream);
  };
  SLUICE_TRY(embed_->run(n, {.ids = in.token_ids, .table = w.embedding, .y = half(0)}, scratch, stream));
  SLUICE_TRY(norm(half(0), w.enorm, half(0)));
  SLUICE_TRY(norm(in.hidden, w.hnorm, half(1)));
  SLUICE_TRY(
      eh_proj_->run(n, {.x = pair, .w = w.eh_proj, .bias = {}, .residual = {}, .y = x}, scratch, stream));
  SLUICE_TRY(norm(x, w.attention_norm, normed));
  SLUICE_TRY(
      attention_->forward({.x = normed, .cache = cache, .y = x}, w.attention, in.tables, scratch, stream));
  SLUICE_TRY(norm(x, w.moe_norm, normed));
  const MoeIo moe_io{.x = normed, .residual = x, .token_ids = {}, .y = x};
  SLUICE_TRY(apart_ ? apart_->forward(moe_io, w.moe) : moe_->forward(moe_io, w.moe, scratch, stream));
  if (rows == 0) return {};
  const Tensor wanted = view(rows_at_, {rows, hidden});
  SLUICE_TRY(gather_->run(rows, {.ids = in.logit_rows, .table = out.hidden, .y = wanted}, scratch, stream));
  SLUICE_TRY(head_norm_->run(rows, {.x = wanted, .weight = w.head_norm, .residual = {}, .y = wanted}, scratch,
                             stream));
  return head_->run(rows, {.x = wanted, .w = w.head, .bias = {}, .residual = {}, .y = out.logits}, scratch,
                    stream);
}

std::vector<std::pair<std::string, std::string>> Mtp::kernels(int64_t tokens, int64_t rows) const {
  std::vector<std::pair<std::string, std::string>> out;
  out.emplace_back("embed", std::string(embed_->at(tokens).kernel()));
  out.emplace_back("norm", std::string(norm_->at(tokens).kernel()));
  out.emplace_back("eh_proj", std::string(eh_proj_->at(tokens).kernel()));
  for (auto& stage : attention_->kernels(tokens)) out.push_back(std::move(stage));
  for (auto& stage : moe().kernels(tokens)) out.push_back(std::move(stage));
  out.emplace_back("logits", std::string(head_->at(rows).kernel()));
  return out;
}

}  // namespace sluice
