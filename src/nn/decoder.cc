#include "nn/decoder.h"

#include <algorithm>

#include "base/arena.h"
#include "nn/decoder_graph.h"
#include "nn/moe_problems.h"
#include "nn/zeros.h"

namespace sluice {
namespace {

// Of a call: token ids, six tables of each group of layers, the chosen experts, zeros.
constexpr size_t kTablesOfGroup = 6, kGroupsMost = 4;

Status check_config(const DecoderConfig& c) {
  if (c.attention.empty()) return invalid("decoder: wanted at least one kind of attention, found none");
  for (int32_t kind : c.kind)
    if (kind < 0 || kind >= static_cast<int32_t>(c.attention.size()))
      return invalid("decoder: wanted a kind of attention below " + std::to_string(c.attention.size()) +
                     ", found " + std::to_string(kind));
  if (c.kind.empty()) return invalid("decoder: wanted at least one layer, found none");
  return {};
}

Status plan_into(std::optional<Step>* out, Result<Step> made) {
  if (!made.ok()) return made.status();
  *out = std::move(made).value();
  return {};
}

// kInvalidArgument: a word of the policy that speaks of no operation of any graph here.
Status check_words(const DecoderConfig& c, const StepBounds& bounds, const Policy& policy) {
  if (policy.force.empty()) return {};
  std::vector<std::string_view> ops = ops_of(layers_graph(c, bounds, false, false).graph);
  for (const bool greedy : {false, true})
    for (const std::string_view op : ops_of(head_graph(c, bounds, false, greedy))) ops.push_back(op);
  return check_force(policy, ops);
}

}  // namespace

MoeConfig layer_moe(const DecoderConfig& c) {
  MoeConfig moe = c.moe;
  moe.norm_x = true, moe.norm_eps = c.eps;
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

Result<DecoderSteps> plan_decoder(const DeviceInfo& device, const Catalog& catalog, const DecoderConfig& c,
                                  const StepBounds& bounds, const Policy& policy, const MoeBackend& backend,
                                  bool experts_apart, Gaps gaps) {
  if (Status status = check_config(c); !status.ok()) return status;
  if (bounds.tokens < 1)
    return invalid("decoder: tokens: wanted at least 1, found " + std::to_string(bounds.tokens));
  if (Status status = check_words(c, bounds, policy); !status.ok()) return status;
  DecoderSteps out;
  const auto layers = [&](std::optional<Step>* to, int64_t tokens, bool decodes) -> Status {
    const auto phases = phases_of(experts_apart ? MoeBackend{} : backend, device, catalog, tokens, policy);
    if (!phases.ok()) return phases.status();
    Graph graph = layers_graph(c, bounds, decodes, experts_apart).graph;
    const StepPolicy own{.policy = policy_of(policy, graph), .phases = phases.value()};
    return plan_into(to, Step::plan("decoder", device, catalog, std::move(graph), tokens, own, gaps));
  };
  if (Status status = layers(&out.any, bounds.tokens, false); !status.ok()) return status;
  // Under Policy::batch_invariant one kernel serves all steps.
  if (!policy.batch_invariant)
    if (Status status = layers(&out.decode, std::min(bounds.tokens, bounds.sequences), true); !status.ok())
      return status;
  for (const bool every_row : {false, true})
    for (const bool greedy : {false, true}) {
      std::optional<Step>* to =
          greedy ? (every_row ? &out.all_greedy : &out.greedy) : (every_row ? &out.all_logits : &out.logits);
      Graph graph = head_graph(c, bounds, every_row, greedy);
      const StepPolicy own{.policy = policy_of(policy, graph)};
      Status status = plan_into(
          to, Step::plan("decoder", device, catalog, std::move(graph), bounds.sequences, own, gaps));
      if (!status.ok()) return status;
    }
  return out;
}

Result<std::unique_ptr<Decoder>> Decoder::plan(Device& device, const DecoderConfig& config,
                                               const StepBounds& bounds, const Policy& policy,
                                               const MoeSite& experts) {
  SLUICE_TRY(check_config(config));
  std::unique_ptr<Decoder> d(new Decoder(device, config, bounds, policy, experts));
  if (d->layout_.windows.size() > kGroupsMost)
    return unsupported("decoder: wanted at most " + std::to_string(kGroupsMost) +
                       " windows of attention, found " + std::to_string(d->layout_.windows.size()));
  if (has_dense_layers(config.moe)) {
    auto zeros = make_zeros(device, bounds.tokens);
    if (!zeros.ok()) return zeros.status();
    d->zeros_ = std::move(zeros).value();
  }
  if (experts.device) SLUICE_TRY(d->plan_apart());
  SLUICE_TRY(d->plan_steps());
  return d;
}

Status Decoder::plan_steps() {
  auto steps = plan_decoder(device_.info(), device_.catalog(), config_, bounds_, policy_, experts_.backend,
                            apart_ != nullptr);
  if (!steps.ok()) return steps.status();
  steps_ = std::move(steps).value();
  size_t layers = steps_.any->workspace_bytes(), head = 0;
  if (steps_.decode) layers = std::max(layers, steps_.decode->workspace_bytes());
  for (const auto* step : {&steps_.logits, &steps_.all_logits})
    head = std::max(head, (*step)->workspace_bytes());
  // Behind what the layers leave.
  head_at_ = Arena::footprint(static_cast<size_t>(bytes_of(config_.x, bounds_.tokens * config_.hidden)));
  workspace_bytes_ = std::max(layers, head_at_ + head);
  return {};
}

Status Decoder::set_pages(int64_t pages) {
  bounds_.pages = pages;
  return plan_steps();
}

Status Decoder::plan_apart() {
  if (!device_.shares_host_memory())
    return unsupported("decoder: experts apart: wanted the other parts where the host can read them, found " +
                       text(device_.info()));
  MoeConfig moe = layer_moe(config_);
  moe.norm_y = true;
  auto apart = MoeApart::plan(*experts_.device, moe, bounds_.tokens, policy_, experts_.backend);
  if (!apart.ok()) return apart.status();
  const LayersGraph values = layers_graph(config_, bounds_, false, true);
  apart_stream_ = values.stream, apart_normed_ = values.normed;
  return apart_ = std::move(apart).value(), Status{};
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

Result<std::vector<Tensor>> Decoder::bind(const DecoderWeights& w, const std::vector<KvCache>& caches) const {
  if (static_cast<int64_t>(w.layers.size()) != config_.layers() || caches.size() != w.layers.size())
    return invalid("decoder: wanted weights and caches of " + std::to_string(config_.layers()) +
                   " layers, found " + std::to_string(w.layers.size()) + " and " +
                   std::to_string(caches.size()));
  std::vector<Tensor> out;
  for_each_held(config_, &w, &caches,
                [&](int32_t, std::string_view, const Tensor* tensor) { out.push_back(*tensor); });
  return out;
}

Status Decoder::check_call(const StepIn& in, std::span<const Tensor> held, Workspace workspace) const {
  if (!workspace.data || workspace.bytes < workspace_bytes_)
    return invalid("decoder: workspace: wanted " + std::to_string(workspace_bytes_) + " bytes, found " +
                   std::to_string(workspace.data ? workspace.bytes : 0));
  if (static_cast<int32_t>(held.size()) != steps_.any->graph().held_count())
    return invalid("decoder: held: wanted " + std::to_string(steps_.any->graph().held_count()) +
                   " tensors, as bind() gives them, found " + std::to_string(held.size()));
  if (in.tables.size() != layout_.windows.size())
    return invalid("decoder: wanted tables of " + std::to_string(layout_.windows.size()) +
                   " groups of layers, found " + std::to_string(in.tables.size()));
  return check_slot(
      slot("captured", Role::kOut, DType::kI32, {config_.layers(), in.token_ids.shape[0], config_.moe.top_k},
           config_.moe.capture, Rows::kMayBeStrided),
      in.captured, device_.info().backend, 1);
}

Status Decoder::forward(const StepIn& in, std::span<const Tensor> held, const Tensor& logits,
                        Workspace workspace, Stream stream, KernelRuns* runs) const {
  SLUICE_TRY(check_call(in, held, workspace));
  std::array<Tensor, 3 + kTablesOfGroup * kGroupsMost> call;
  size_t count = 0;
  call[count++] = in.token_ids;
  for (const StepTables& t : in.tables)
    for (const Tensor& table : {t.positions, t.slot_of, t.q_begin, t.kv_len, t.page_table, t.rope})
      call[count++] = table;
  call[count++] = in.captured;
  call[count++] = first_rows(zeros_.view(), in.token_ids.shape[0]);
  const Given given{.call = std::span(call).first(count), .held = held};
  const int64_t n = in.token_ids.shape[0];
  const Step& step = steps_.layers(n, in.tables.front().rows_max);
  SLUICE_TRY(apart_ ? run_apart(step, in, given, held, workspace, stream, runs)
                    : step.run(n, given, workspace, stream, runs));
  return logits_of(in.logit_rows, held, logits, workspace, stream, in.every_row, runs);
}

Tensor Decoder::last_normed(Workspace workspace, int64_t rows) const {
  return make_tensor(workspace.data, config_.x, {rows, config_.hidden}, device_.info().backend);
}

Status Decoder::logits_of(const Tensor& logit_rows, std::span<const Tensor> held, const Tensor& logits,
                          Workspace workspace, Stream stream, bool every_row, KernelRuns* runs) const {
  const int64_t rows = logit_rows.shape[0];
  if (rows == 0) return {};
  const Workspace head{workspace.data + head_at_, workspace.bytes - head_at_};
  if (every_row) {
    const std::array call = {last_normed(workspace, rows), logits};
    return steps_.all_logits->run(rows, {.call = call, .held = held.first(1)}, head, stream, runs);
  }
  // All rows there may be are the table, so that a row's number does not depend on how many tokens this step has.
  const std::array call = {logit_rows, last_normed(workspace, bounds_.tokens), logits};
  return steps_.logits->run(rows, {.call = call, .held = held.first(1)}, head, stream, runs);
}

size_t Decoder::greedy_workspace_bytes() const {
  return std::max(steps_.greedy->workspace_bytes(), steps_.all_greedy->workspace_bytes());
}

Status Decoder::draw_greedy(const StepIn& in, std::span<const Tensor> held, const Tensor& token,
                            const Tensor& logprob, Workspace scratch, Workspace workspace, Stream stream,
                            KernelRuns* runs) const {
  const int64_t rows = in.logit_rows.shape[0];
  if (in.every_row) {
    const std::array call = {last_normed(workspace, rows), token, logprob};
    return steps_.all_greedy->run(rows, {.call = call, .held = held.first(1)}, scratch, stream, runs);
  }
  const std::array call = {in.logit_rows, last_normed(workspace, bounds_.tokens), token, logprob};
  return steps_.greedy->run(rows, {.call = call, .held = held.first(1)}, scratch, stream, runs);
}

// Layer by layer: attention here, experts there, with the norms around them. `held` as for_each_held() orders it.
Status Decoder::run_apart(const Step& step, const StepIn& in, const Given& given,
                          std::span<const Tensor> held, Workspace workspace, Stream stream,
                          KernelRuns* runs) const {
  const int64_t n = in.token_ids.shape[0];
  const auto view = [&](ValueId value) {
    return step.between(value, config_.x, {n, config_.hidden}, workspace);
  };
  MoeWeights weights;
  const auto slots = weight_slots(layer_moe(config_), &weights);
  const size_t layers = config_.kind.size(), of_layer = kHeldOfLayer + slots.size();
  for (size_t layer = 0; layer < layers; ++layer) {
    const std::span<const Tensor> own = held.subspan(kHeldAround + layer * of_layer);
    SLUICE_TRY(step.run_part(static_cast<int32_t>(layer), n, given, workspace, stream, runs));
    for (size_t i = 0; i < slots.size(); ++i) *slots[i].second = own[kHeldOfLayer + i];
    MoeIo io{
        .x = view(apart_stream_), .residual = view(apart_stream_), .token_ids = {}, .y = view(apart_stream_)};
    io.x_norm_weight = own[1];
    io.norm_weight = layer + 1 < layers ? own[of_layer] : held[2];
    io.normed = view(apart_normed_);
    if (config_.moe.capture)
      io.captured = make_tensor(in.captured.row<int32_t>(static_cast<int64_t>(layer)), DType::kI32,
                                {n, config_.moe.top_k}, stream.where);
    SLUICE_TRY(apart_->forward(io, weights, runs));
  }
  return {};
}

std::vector<std::pair<std::string, std::string>> Decoder::kernels(int64_t tokens, int64_t rows) const {
  std::vector<std::pair<std::string, std::string>> out;
  const auto add = [&](std::string stage, std::string kernel) {
    const std::pair<std::string, std::string> one{std::move(stage), std::move(kernel)};
    if (std::find(out.begin(), out.end(), one) == out.end()) out.push_back(one);
  };
  for (StageKernel& s : steps_.layers(tokens, 1).kernels(tokens))
    add(std::move(s.stage), std::move(s.kernel));
  if (apart_)
    for (auto& [stage, kernel] : apart_->moe().kernels(tokens)) add(std::move(stage), std::move(kernel));
  for (StageKernel& s : steps_.all_logits->kernels(rows)) add(std::move(s.stage), std::move(s.kernel));
  // Where the host reads logits, an engine draws from them.
  if (!device_.shares_host_memory())
    for (StageKernel& s : steps_.all_greedy->kernels(rows)) add(std::move(s.stage), std::move(s.kernel));
  return out;
}

}  // namespace sluice
