#include "nn/decoder.h"

#include <algorithm>

#include "base/arena.h"
#include "nn/constants.h"
#include "nn/decoder_graph.h"
#include "nn/moe/problems.h"

namespace sluice {
namespace {

// Upper bounds for the values of a call: token ids, six tables for each group of layers, captured experts,
// zeros, rows, taps.
constexpr size_t kTablesOfGroup = 6, kGroupsMax = 4;
// With Policy::batch_invariant, the logits kernel is chosen for this many rows, not for bounds.logit_rows().
// That bound is larger in an engine that verifies drafts, and engines with and without drafts must use the
// same kernel.
constexpr int64_t kChoiceRows = 1024;

Status check_layer(const DecoderConfig& c, size_t layer) {
  const LayerConfig &l = c.layers[layer], &first = c.layers.front();
  const auto same = [&](const char* what, int64_t found, int64_t wanted, const char* why) {
    if (found == wanted) return Status{};
    return invalid("decoder: layer " + std::to_string(layer) + ": " + what + ": wanted " +
                   std::to_string(wanted) + ", " + why + ", found " + std::to_string(found));
  };
  SLUICE_TRY(check_attention("decoder: layer " + std::to_string(layer), l.attention));
  SLUICE_TRY(same("attention.hidden", l.attention.hidden, c.hidden, "the decoder's hidden"));
  SLUICE_TRY(same("attention.rotary", l.attention.rotary, first.attention.rotary, "the value of layer 0"));
  SLUICE_TRY(same("mlp.hidden", l.mlp.hidden, c.hidden, "the decoder's hidden"));
  SLUICE_TRY(same("mlp.residual", l.mlp.residual, c.ranks == 1,
                  c.ranks == 1 ? "as in every whole decoder" : "as in every slice"));
  if (l.mlp.dense && c.ranks > 1)
    return unsupported("decoder: layer " + std::to_string(layer) +
                       ": wanted experts in every layer of a slice, found a dense MLP");
  if (l.mlp.dense) return {};
  SLUICE_TRY(same("mlp.experts", l.mlp.experts, c.moe().experts, "the value of the first MoE layer"));
  return same("mlp.top_k", l.mlp.top_k, c.moe().top_k, "the value of the first MoE layer");
}

Status check_config(const DecoderConfig& c) {
  if (c.layers.empty()) return invalid("decoder: wanted at least one layer, found none");
  if (c.moe_layers().empty())
    return invalid("decoder: wanted at least one MoE layer, found only dense layers");
  for (size_t layer = 0; layer < c.layers.size(); ++layer) SLUICE_TRY(check_layer(c, layer));
  for (const int32_t tap : c.taps)
    if (tap < 0 || tap > std::ssize(c.layers) + 1)
      return invalid("decoder: taps: wanted layers from 0 to " + std::to_string(c.layers.size() + 1) +
                     ", found " + std::to_string(tap));
  return {};
}

// kInvalidArgument: policy.force names an operation that none of the decoder's graphs has.
Status check_words(const DecoderConfig& c, const StepBounds& bounds, const Policy& policy) {
  if (policy.force.empty()) return {};
  std::vector<std::string_view> ops = ops_of(layers_graph(c, bounds, 0, false).graph);
  for (const bool greedy : {false, true})
    for (const std::string_view op : ops_of(head_graph(c, bounds, false, greedy))) ops.push_back(op);
  return check_force(policy, ops);
}

}  // namespace

MoeConfig mlp_with_norm(const DecoderConfig& c, int32_t layer) {
  MoeConfig mlp = c.layers[static_cast<size_t>(layer)].mlp;
  mlp.norm_x = true, mlp.norm_eps = c.eps;
  return mlp;
}

std::vector<HeldSlot> decoder_weights(const DecoderConfig& config) {
  std::vector<HeldSlot> out;
  for (const Graph& graph : {layers_graph(config, {}, 0, false).graph, head_graph(config, {}, true, false)})
    for (HeldSlot& slot : held_slots(graph))
      if (!slot.is_written()) out.push_back(std::move(slot));
  return out;
}

DecoderConfig DecoderConfig::with_layouts_of(const DeviceInfo& device) const {
  DecoderConfig out = *this;
  for (LayerConfig& layer : out.layers)
    layer.attention.layout = device.layout, layer.mlp.layout = layout_for(device.backend);
  return out;
}

DecoderConfig DecoderConfig::with_activations(DType type) const {
  DecoderConfig out = *this;
  out.x = type;
  for (LayerConfig& layer : out.layers) layer.attention.x = layer.mlp.x = layer.mlp.g = type;
  return out;
}

DecoderConfig DecoderConfig::with_caches(CacheType cache) const {
  DecoderConfig out = *this;
  for (LayerConfig& layer : out.layers) layer.attention.cache = cache;
  return out;
}

DecoderConfig DecoderConfig::with_fp8_activations(bool fp8) const {
  DecoderConfig out = *this;
  for (LayerConfig& layer : out.layers)
    if (!layer.mlp.dense) layer.mlp.fp8_activations = fp8;
  return out;
}

std::vector<int32_t> DecoderConfig::moe_layers() const {
  std::vector<int32_t> out;
  for (size_t i = 0; i < layers.size(); ++i)
    if (!layers[i].mlp.dense) out.push_back(static_cast<int32_t>(i));
  return out;
}

const MoeConfig& DecoderConfig::moe() const {
  const auto with_experts = [](const LayerConfig& layer) { return !layer.mlp.dense; };
  return std::find_if(layers.begin(), layers.end(), with_experts)->mlp;
}

std::vector<AttentionConfig> DecoderConfig::attention() const {
  std::vector<AttentionConfig> out;
  for (const LayerConfig& layer : layers) out.push_back(layer.attention);
  if (draft_attention) out.push_back(*draft_attention);
  return out;
}

Result<DecoderSteps> plan_decoder(const DeviceInfo& device, const Catalog& catalog, const DecoderConfig& c,
                                  const StepBounds& bounds, const Policy& policy, const MoeBackend& backend,
                                  bool experts_offloaded, Gaps gaps) {
  if (Status status = check_config(c); !status.ok()) return status;
  if (bounds.tokens < 1)
    return invalid("decoder: tokens: wanted at least 1, found " + std::to_string(bounds.tokens));
  if (experts_offloaded && c.ranks > 1)
    return unsupported("decoder: offloaded experts: wanted one rank, found " + std::to_string(c.ranks));
  if (Status status = check_words(c, bounds, policy); !status.ok()) return status;
  DecoderSteps out;
  const auto layers = [&](std::optional<Step>* to, int64_t tokens, int64_t rows_max) -> Status {
    const auto phases =
        phases_of(experts_offloaded ? MoeBackend{} : backend, device, catalog, tokens, policy);
    if (!phases.ok()) return phases.status();
    Graph graph = layers_graph(c, bounds, rows_max, experts_offloaded).graph;
    const StepPolicy own{.policy = policy_of(policy, graph), .phases = phases.value()};
    return keep_in(to, Step::plan("decoder", device, catalog, std::move(graph), tokens, own, gaps));
  };
  if (Status status = layers(&out.layers.any, bounds.tokens, 0); !status.ok()) return status;
  // With Policy::batch_invariant, all steps must use the same kernels.
  if (!policy.batch_invariant)
    if (Status status = layers(&out.layers.decode, std::min(bounds.tokens, bounds.sequences), 1);
        !status.ok())
      return status;
  out.layers.verify_rows = bounds.verify_rows;
  if (!policy.batch_invariant && bounds.verify_rows > 1)
    if (Status status = layers(&out.layers.verify, bounds.logit_rows(), bounds.verify_rows); !status.ok())
      return status;
  for (const bool every_row : {false, true})
    for (const bool greedy : {false, true}) {
      std::optional<Step>* to =
          greedy ? (every_row ? &out.all_greedy : &out.greedy) : (every_row ? &out.all_logits : &out.logits);
      Graph graph = head_graph(c, bounds, every_row, greedy);
      const StepPolicy own{.policy = policy_of(policy, graph), .choice_tokens = kChoiceRows};
      Status status = keep_in(
          to, Step::plan("decoder", device, catalog, std::move(graph), bounds.logit_rows(), own, gaps));
      if (!status.ok()) return status;
    }
  return out;
}

Result<std::unique_ptr<Decoder>> Decoder::plan(Device& device, const DecoderConfig& config,
                                               const StepBounds& bounds, const Policy& policy,
                                               const MoeSite& experts) {
  SLUICE_TRY(check_config(config));
  std::unique_ptr<Decoder> d(new Decoder(device, config, bounds, policy, experts));
  if (d->layout_.windows.size() > kGroupsMax)
    return unsupported("decoder: wanted at most " + std::to_string(kGroupsMax) +
                       " windows of attention, found " + std::to_string(d->layout_.windows.size()));
  const auto of_all_tokens = [](const LayerConfig& layer) { return has_dense_layers(layer.mlp); };
  if (std::any_of(config.layers.begin(), config.layers.end(), of_all_tokens)) {
    auto zeros = make_zeros(device, bounds.tokens);
    if (!zeros.ok()) return zeros.status();
    d->zeros_ = std::move(zeros).value();
  }
  if (!config.taps.empty()) {
    auto rows = make_row_numbers(device, bounds.tokens);
    if (!rows.ok()) return rows.status();
    d->rows_ = std::move(rows).value();
  }
  if (experts.device) SLUICE_TRY(d->plan_offloaded());
  SLUICE_TRY(d->plan_steps());
  return d;
}

double Decoder::cost_us(int64_t tokens, bool verifies) const {
  return steps_.layers.cost_us(tokens, verifies) + steps_.all_logits->cost_us(tokens);
}

Status Decoder::plan_steps() {
  auto steps = plan_decoder(device_.info(), device_.catalog(), config_, bounds_, policy_, experts_.backend,
                            offloaded_ != nullptr);
  if (!steps.ok()) return steps.status();
  steps_ = std::move(steps).value();
  size_t head = 0;
  for (const auto* step : {&steps_.logits, &steps_.all_logits})
    head = std::max(head, (*step)->workspace_bytes());
  // The head's workspace begins after the output of the layers, which the head reads.
  head_at_ = Arena::footprint(static_cast<size_t>(bytes_of(config_.x, bounds_.tokens * config_.hidden)));
  workspace_bytes_ = std::max(steps_.layers.workspace_bytes(), head_at_ + head);
  return {};
}

Status Decoder::set_pages(int64_t pages) {
  bounds_.pages = pages;
  return plan_steps();
}

Status Decoder::plan_offloaded() {
  if (!device_.shares_host_memory())
    return unsupported(
        "decoder: offloaded experts: wanted the rest of the model on a device whose memory the host can "
        "read, found " +
        text(device_.info()));
  const std::vector<int32_t> with_experts = config_.moe_layers();
  for (const int32_t layer : with_experts)
    if (config_.layers[static_cast<size_t>(layer)].mlp != config_.moe())
      return unsupported("decoder: offloaded experts: wanted equal MoE layers, found layers " +
                         std::to_string(with_experts.front()) + " and " + std::to_string(layer) +
                         ", which differ");
  MoeConfig moe = mlp_with_norm(config_, with_experts.front());
  moe.norm_y = true;
  auto offloaded = OffloadedMoe::plan(*experts_.device, moe, bounds_.tokens, policy_, experts_.backend);
  if (!offloaded.ok()) return offloaded.status();
  const LayersGraph values = layers_graph(config_, bounds_, 0, true);
  offloaded_stream_ = values.stream, offloaded_normed_ = values.normed;
  return offloaded_ = std::move(offloaded).value(), Status{};
}

int64_t Decoder::cache_bytes() const { return bounds_.pages * layout_.page_bytes_of_all(); }

std::vector<KvCache> Decoder::caches(void* memory) const {
  std::vector<std::byte*> tensors;
  auto* at = static_cast<std::byte*>(memory);
  for (const int64_t page : layout_.page_bytes) {
    const bool values = layout_.has_values[tensors.size()];
    tensors.push_back(at);
    at += (values ? 2 : 1) * bounds_.pages * page;
  }
  std::vector<KvCache> out;
  const std::vector<AttentionConfig> layers = config_.attention();
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const AttentionConfig& c = layers[layer];
    const size_t tensor = layout_.tensor[layer];
    const auto view = [&](std::byte* data) {
      return make_tensor(data, c.cache_type(), {bounds_.pages, c.kv_heads, bounds_.page_size, c.head_dim},
                         device_.info().backend);
    };
    out.push_back({.k = view(tensors[tensor])});
    if (layout_.has_values[tensor])
      out.back().v = view(tensors[tensor] + bounds_.pages * layout_.page_bytes[tensor]);
  }
  return out;
}

Result<DecoderHeld> Decoder::bind(const NamedWeights& weights, const std::vector<KvCache>& caches) const {
  if (caches.size() < config_.layers.size())
    return invalid("decoder: wanted caches of " + std::to_string(config_.layers.size()) + " layers, found " +
                   std::to_string(caches.size()));
  NamedWeights all = weights;
  for (size_t layer = 0; layer < config_.layers.size(); ++layer) {
    const KvCache& cache = caches[layer];
    all.set(static_cast<int64_t>(layer), "k_cache", cache.k);
    if (cache.v.present()) all.set(static_cast<int64_t>(layer), "v_cache", cache.v);
  }
  DecoderHeld out;
  SLUICE_TRY(bind_held("decoder", steps_.layers.any->graph(), all, device_.info().backend, &out.layers));
  SLUICE_TRY(bind_held("decoder", steps_.logits->graph(), all, device_.info().backend, &out.head));
  if (!offloaded_) return out;
  for (const int32_t layer : config_.moe_layers()) {
    const bool last = layer + 1 == static_cast<int32_t>(config_.layers.size());
    out.offloaded.push_back(
        {.weights = weights.moe(layer, config_.moe()),
         .norm = weights(layer, "mlp.norm"),
         .next_norm = last ? weights(-1, "final_norm") : weights(layer + 1, "attention.norm")});
  }
  return out;
}

Status Decoder::check_call(const StepIn& in, const DecoderHeld& held, Workspace workspace) const {
  if (!workspace.data || workspace.bytes < workspace_bytes_)
    return invalid("decoder: workspace: wanted " + std::to_string(workspace_bytes_) + " bytes, found " +
                   std::to_string(workspace.data ? workspace.bytes : 0));
  if (in.tables.size() != layout_.windows.size())
    return invalid("decoder: wanted tables of " + std::to_string(layout_.windows.size()) +
                   " groups of layers, found " + std::to_string(in.tables.size()));
  if (std::ssize(held.layers) != steps_.layers.any->graph().held_count())
    return invalid("decoder: held: wanted " + std::to_string(steps_.layers.any->graph().held_count()) +
                   " tensors, as bind() gives them, found " + std::to_string(held.layers.size()));
  const SlotSpec taps =
      slot("taps", Role::kOut, config_.x, {in.token_ids.shape[0], std::ssize(config_.taps) * config_.hidden},
           !config_.taps.empty(), Rows::kMayBeStrided);
  SLUICE_TRY(check_slot(taps, in.taps, device_.info().backend, 1));
  return check_slot(slot("captured", Role::kOut, DType::kI32,
                         {captured_layers_, in.token_ids.shape[0], config_.moe().top_k},
                         config_.moe().capture, Rows::kMayBeStrided),
                    in.captured, device_.info().backend, 1);
}

Status Decoder::forward(const StepIn& in, const DecoderHeld& held, const Tensor& logits, Workspace workspace,
                        Stream stream, KernelRuns* runs) const {
  SLUICE_TRY(check_call(in, held, workspace));
  std::array<Tensor, 5 + kTablesOfGroup * kGroupsMax> call;
  size_t count = 0;
  call[count++] = in.token_ids;
  for (const StepTables& t : in.tables)
    for (const Tensor& table : {t.positions, t.slot_of, t.q_begin, t.kv_len, t.page_table, t.rope})
      call[count++] = table;
  call[count++] = in.captured;
  call[count++] = first_rows(zeros_.view(), in.token_ids.shape[0]);
  if (!config_.taps.empty())
    call[count++] = first_rows(rows_.view(), in.token_ids.shape[0]), call[count++] = in.taps;
  const Given given{.call = std::span(call).first(count), .held = held.layers};
  const int64_t n = in.token_ids.shape[0];
  const Step& step = steps_.layers.of(n, in.tables.front().rows_max);
  SLUICE_TRY(offloaded_ ? run_offloaded(step, in, given, held, workspace, stream, runs)
                        : step.run(n, given, workspace, stream, runs));
  return logits_of(in.logit_rows, held, logits, workspace, stream, in.every_row, runs);
}

Tensor Decoder::last_normed(Workspace workspace, int64_t rows) const {
  return make_tensor(workspace.data, config_.x, {rows, config_.hidden}, device_.info().backend);
}

Status Decoder::logits_of(const Tensor& logit_rows, const DecoderHeld& held, const Tensor& logits,
                          Workspace workspace, Stream stream, bool every_row, KernelRuns* runs) const {
  const int64_t rows = logit_rows.shape[0];
  if (rows == 0) return {};
  const Workspace head{workspace.data + head_at_, workspace.bytes - head_at_};
  if (every_row) {
    const std::array call = {last_normed(workspace, rows), logits};
    return steps_.all_logits->run(rows, {.call = call, .held = held.head}, head, stream, runs);
  }
  // The lookup table always has bounds_.tokens rows, as planned, whatever the number of tokens of this step.
  const std::array call = {logit_rows, last_normed(workspace, bounds_.tokens), logits};
  return steps_.logits->run(rows, {.call = call, .held = held.head}, head, stream, runs);
}

size_t Decoder::greedy_workspace_bytes() const {
  return std::max(steps_.greedy->workspace_bytes(), steps_.all_greedy->workspace_bytes());
}

Status Decoder::sample_greedy(const StepIn& in, const DecoderHeld& held, const Tensor& token,
                              const Tensor& logprob, Workspace scratch, Workspace workspace, Stream stream,
                              KernelRuns* runs) const {
  const int64_t rows = in.logit_rows.shape[0];
  if (in.every_row) {
    const std::array call = {last_normed(workspace, rows), token, logprob};
    return steps_.all_greedy->run(rows, {.call = call, .held = held.head}, scratch, stream, runs);
  }
  const std::array call = {in.logit_rows, last_normed(workspace, bounds_.tokens), token, logprob};
  return steps_.greedy->run(rows, {.call = call, .held = held.head}, scratch, stream, runs);
}

// Runs the step layer by layer: attention and dense layers on this device; experts, with the norms before and
// after them, on the other device.
Status Decoder::run_offloaded(const Step& step, const StepIn& in, const Given& given, const DecoderHeld& held,
                              Workspace workspace, Stream stream, KernelRuns* runs) const {
  const int64_t n = in.token_ids.shape[0];
  const auto view = [&](ValueId value) {
    return step.between(value, config_.x, {n, config_.hidden}, workspace);
  };
  int32_t part = 0;
  for (const DecoderHeld::Offloaded& layer : held.offloaded) {
    SLUICE_TRY(step.run_part(part, n, given, workspace, stream, runs));
    MoeIo io{.x = view(offloaded_stream_),
             .residual = view(offloaded_stream_),
             .token_ids = {},
             .y = view(offloaded_stream_)};
    io.x_norm_weight = layer.norm;
    io.norm_weight = layer.next_norm;
    io.normed = view(offloaded_normed_);
    if (config_.moe().capture)
      io.captured =
          make_tensor(in.captured.row<int32_t>(part), DType::kI32, {n, config_.moe().top_k}, stream.where);
    SLUICE_TRY(offloaded_->forward(io, layer.weights, runs));
    ++part;
  }
  return step.run_part(part, n, given, workspace, stream, runs);
}

std::vector<std::pair<std::string, std::string>> Decoder::kernels(int64_t tokens, int64_t rows) const {
  std::vector<std::pair<std::string, std::string>> out;
  const auto add = [&](std::string stage, std::string kernel) {
    const std::pair<std::string, std::string> one{std::move(stage), std::move(kernel)};
    if (std::find(out.begin(), out.end(), one) == out.end()) out.push_back(one);
  };
  for (StageKernel& s : steps_.layers.of(tokens, 1).kernels(tokens))
    add(std::move(s.stage), std::move(s.kernel));
  if (offloaded_)
    for (auto& [stage, kernel] : offloaded_->moe().kernels(tokens)) add(std::move(stage), std::move(kernel));
  for (StageKernel& s : steps_.all_logits->kernels(rows)) add(std::move(s.stage), std::move(s.kernel));
  // If the device shares the host's memory, the engine by default computes all logits, and never runs the greedy head.
  if (!device_.shares_host_memory())
    for (StageKernel& s : steps_.all_greedy->kernels(rows)) add(std::move(s.stage), std::move(s.kernel));
  return out;
}

}  // namespace sluice
