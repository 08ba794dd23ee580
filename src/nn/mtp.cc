#include "nn/mtp.h"

#include <algorithm>

#include "base/arena.h"
#include "nn/constants.h"
#include "nn/moe/graph.h"
#include "nn/steps_by_rows.h"

namespace sluice {
namespace {

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

RmsNorm::Problem norm_problem_of(const MtpConfig& c) {
  return {.tokens = 0, .hidden = c.hidden, .eps = c.eps, .x = c.x, .y = c.x};
}

struct MtpLayer {
  Graph graph;
  ValueId normed = kNoValue;  // input of the experts
};

// Call values: token_ids, hidden, positions, slot_of, q_begin, kv_len, page_table, rope, the stream, zeros.
MtpLayer mtp_layer(const MtpConfig& c, const StepBounds& bounds, bool experts_apart) {
  MtpLayer out;
  Graph& g = out.graph;
  NamedValues v;
  const ValueId token_ids = g.call("token_ids"), hidden = g.call("hidden");
  for (const char* name : {"positions", "slot_of", "q_begin", "kv_len", "page_table", "rope"})
    v.set(name, g.call(name));
  const ValueId stream = g.call("stream", c.hidden), zeros = g.call("zeros");
  const auto norm = [&](const char* name, const Bind& x, const char* weight, const Bind& y) {
    using A = RmsNorm::Args;
    g.add<RmsNorm>(name, norm_problem_of(c), {{&A::x, x}, {&A::weight, g.held(weight)}, {&A::y, y}});
  };
  // Both halves of the projection's input are written in place.
  const ValueId pair = g.between("pair", 2 * c.hidden);
  using E = Embedding::Args;
  g.add<Embedding>("embed", {.tokens = 0, .vocab = c.vocab, .hidden = c.hidden, .y = c.x},
                   {{&E::ids, token_ids}, {&E::table, g.held("embedding")}, {&E::y, pair}});
  norm("enorm", pair, "enorm", pair);
  norm("hnorm", hidden, "hnorm", Bind(pair, c.hidden));
  using L = Linear::Args;
  g.add<Linear>("eh_proj",
                {.tokens = 0,
                 .features = c.hidden,
                 .width = 2 * c.hidden,
                 .x = c.x,
                 .y = c.x,
                 .layout = c.attention.layout},
                {{&L::x, pair}, {&L::w, g.held("eh_proj")}, {&L::y, stream}});
  const ValueId normed = g.between("attention.normed");
  norm("attention.norm", stream, "attention.norm", normed);
  v.set("x", normed), v.set("stream", stream);
  append_latent_attention(&g, c.attention, bounds, v);
  out.normed = g.between("moe.normed");
  norm("moe.norm", stream, "mlp.norm", out.normed);
  if (experts_apart) {
    g.keep(out.normed);
    return out;
  }
  hold_weights(&g, c.moe, &v);
  v.set("x", out.normed), v.set("residual", stream), v.set("y", stream), v.set("zeros", zeros);
  append_moe(&g, c.moe, v);
  return out;
}

// Call values: logit_rows, the stream, logits. Held: final_norm, lm_head.
Graph mtp_head(const MtpConfig& c, const StepBounds& bounds) {
  Graph g;
  const ValueId logit_rows = g.call("logit_rows"), stream = g.call("stream"), logits = g.call("logits");
  const ValueId head_norm = g.held("final_norm"), head = g.held("lm_head"), x = g.between("rows");
  using E = Embedding::Args;
  g.add<Embedding>("logits.gather",
                   {.tokens = 0, .vocab = bounds.tokens, .hidden = c.hidden, .table = c.x, .y = c.x},
                   {{&E::ids, logit_rows}, {&E::table, stream}, {&E::y, x}});
  using N = RmsNorm::Args;
  g.add<RmsNorm>("logits.norm", norm_problem_of(c), {{&N::x, x}, {&N::weight, head_norm}, {&N::y, x}});
  using L = Linear::Args;
  g.add<Linear>("logits",
                {.tokens = 0,
                 .features = c.vocab,
                 .width = c.hidden,
                 .x = c.x,
                 .y = DType::kF32,
                 .layout = c.attention.layout},
                {{&L::x, x}, {&L::w, head}, {&L::y, logits}});
  return g;
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

Result<MtpSteps> plan_mtp(const DeviceInfo& device, const Catalog& catalog, const MtpConfig& c,
                          const StepBounds& bounds, const Policy& policy, bool experts_apart) {
  if (Status status = check_config(c); !status.ok()) return status;
  MtpSteps out;
  const auto plan = [&](std::optional<Step>* to, Graph graph, int64_t tokens) -> Status {
    StepPolicy own{.policy = policy_of(policy, graph)};
    return keep_in(to, Step::plan("mtp", device, catalog, std::move(graph), tokens, own));
  };
  if (Status status = plan(&out.layer, mtp_layer(c, bounds, experts_apart).graph, bounds.tokens);
      !status.ok())
    return status;
  if (Status status = plan(&out.head, mtp_head(c, bounds), bounds.sequences); !status.ok()) return status;
  return out;
}

Result<std::unique_ptr<Mtp>> Mtp::plan(Device& device, const MtpConfig& config, const StepBounds& bounds,
                                       const Policy& policy, Device* experts) {
  SLUICE_TRY(check_config(config));
  std::unique_ptr<Mtp> out(new Mtp(device, config, bounds));
  if (experts) SLUICE_TRY(out->plan_apart(policy, *experts));
  auto steps = plan_mtp(device.info(), device.catalog(), config, bounds, policy, experts != nullptr);
  if (!steps.ok()) return steps.status();
  out->steps_ = std::move(steps).value();
  auto zeros = make_zeros(device, bounds.tokens);
  if (!zeros.ok()) return zeros.status();
  out->zeros_ = std::move(zeros).value();
  out->workspace_bytes_ = std::max(out->steps_.layer->workspace_bytes(), out->steps_.head->workspace_bytes());
  return out;
}

Status Mtp::plan_apart(const Policy& policy, Device& experts) {
  if (!device_.shares_host_memory())
    return unsupported("mtp: experts apart: wanted the other parts where the host can read them, found " +
                       text(device_.info()));
  auto apart = MoeApart::plan(experts, config_.moe, bounds_.tokens, policy);
  if (!apart.ok()) return apart.status();
  normed_ = mtp_layer(config_, bounds_, true).normed;
  return apart_ = std::move(apart).value(), Status{};
}

int64_t Mtp::cache_bytes() const {
  return bytes_of(config_.x,
                  bounds_.pages * bounds_.page_size * (config_.attention.rank + config_.attention.rope));
}

Tensor Mtp::cache(void* memory) const {
  return make_tensor(memory, config_.x,
                     {bounds_.pages, 1, bounds_.page_size, config_.attention.rank + config_.attention.rope},
                     device_.info().backend);
}

Result<MtpHeld> Mtp::bind(const NamedWeights& weights, const Tensor& cache) const {
  NamedWeights all = weights;
  all.set(-1, "cache", cache);
  MtpHeld out;
  SLUICE_TRY(bind_held("mtp", steps_.layer->graph(), all, device_.info().backend, &out.layer));
  SLUICE_TRY(bind_held("mtp", steps_.head->graph(), all, device_.info().backend, &out.head));
  if (apart_) out.apart = weights.moe(-1, config_.moe);
  return out;
}

Status Mtp::forward(const MtpIn& in, const MtpHeld& held, const MtpOut& out, Workspace workspace,
                    Stream stream) const {
  if (!workspace.data || workspace.bytes < workspace_bytes_)
    return invalid("mtp: workspace: wanted " + std::to_string(workspace_bytes_) + " bytes, found " +
                   std::to_string(workspace.data ? workspace.bytes : 0));
  const int64_t n = in.token_ids.shape[0], rows = in.logit_rows.shape[0];
  const SlotSpec wanted_hidden = slot("hidden", Role::kOut, config_.x, {bounds_.tokens, config_.hidden});
  if (const Status status = check_slot(wanted_hidden, out.hidden, stream.where, 1); !status.ok())
    return Status{status.code, "mtp: " + status.message};
  const StepTables& t = in.tables;
  const std::array call = {in.token_ids, in.hidden,    t.positions, t.slot_of,  t.q_begin,
                           t.kv_len,     t.page_table, t.rope,      out.hidden, first_rows(zeros_.view(), n)};
  const Given given{.call = call, .held = held.layer};
  SLUICE_TRY(steps_.layer->run(n, given, workspace, stream));
  if (apart_) {
    const Tensor normed = steps_.layer->between(normed_, config_.x, {n, config_.hidden}, workspace);
    const Tensor x = first_rows(out.hidden, n);
    SLUICE_TRY(apart_->forward({.x = normed, .residual = x, .token_ids = {}, .y = x}, held.apart));
  }
  if (rows == 0) return {};
  const std::array of_head = {in.logit_rows, out.hidden, out.logits};
  return steps_.head->run(rows, {.call = of_head, .held = held.head}, workspace, stream);
}

std::vector<std::pair<std::string, std::string>> Mtp::kernels(int64_t tokens, int64_t rows) const {
  std::vector<std::pair<std::string, std::string>> out;
  for (StageKernel& s : steps_.layer->kernels(tokens))
    out.emplace_back(std::move(s.stage), std::move(s.kernel));
  if (apart_)
    for (auto& stage : apart_->moe().kernels(tokens)) out.push_back(std::move(stage));
  for (StageKernel& s : steps_.head->kernels(rows)) out.emplace_back(std::move(s.stage), std::move(s.kernel));
  return out;
}

}  // namespace sluice
