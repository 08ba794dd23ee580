#include "engine/engine.h"

#include <algorithm>

#include "base/arena.h"
#include "base/printable.h"
#include "engine/adjustments.h"
#include "engine/masks.h"
#include "engine/staging.h"
#include "nn/plan_into.h"

namespace sluice {
namespace {

// Pages that `sequences` sequences of the maximum length need, however they are split into chunks.
int64_t pages_of_sequences(const CacheLayout& layout, const StepBounds& b, int64_t sequences) {
  return pages_needed(layout.windows, b.page_size,
                      {.sequences = sequences, .tokens = b.positions, .step_tokens = b.tokens});
}

// Computes EngineMemory::tokens. A sequence whose pages fit only in part counts with that part of its tokens.
int64_t tokens_held(const CacheLayout& layout, const StepBounds& b) {
  const int64_t of_one = pages_needed(layout.windows, b.page_size, {.tokens = b.positions});
  const int64_t tokens = b.pages_per_seq() * b.page_size;
  return std::min(b.sequences * tokens, b.pages * tokens / of_one);
}

Result<StepBounds> bounds_of(const DecoderConfig& config, const EngineOptions& o) {
  const auto positive = [](const char* name, int64_t value) -> Status {
    if (value >= 1) return {};
    return invalid(std::string(name) + ": wanted at least 1, found " + std::to_string(value));
  };
  // Checked before planning, because planning takes time for every token count up to the largest.
  const auto tokens = [](const char* name, int64_t value) -> Status {
    if (value >= 1 && value <= kStepTokensMax) return {};
    return invalid(std::string(name) + ": wanted 1 to " + std::to_string(kStepTokensMax) + ", found " +
                   std::to_string(value));
  };
  SLUICE_TRY(positive("max_model_len", o.max_model_len));
  SLUICE_TRY(tokens("max_num_seqs", o.max_num_seqs));
  SLUICE_TRY(tokens("max_num_batched_tokens", o.max_num_batched_tokens));
  SLUICE_TRY(positive("page_size", o.page_size));
  if (o.mixed_prefill_tokens < 0)
    return invalid("mixed_prefill_tokens: wanted 0 (no bound) or more, found " +
                   std::to_string(o.mixed_prefill_tokens));
  StepBounds b{.tokens = o.max_num_batched_tokens,
               .sequences = o.max_num_seqs,
               .positions = o.max_model_len,
               .page_size = o.page_size};
  if (o.speculation.method != DraftMethod::kNone) {
    b.verify_rows = 1 + o.speculation.num_speculative_tokens;
    b.rows = std::min({b.tokens, b.sequences * b.verify_rows, std::max(b.sequences, kVerifiedRows)});
  }
  if (b.tokens < b.sequences)
    return invalid("max_num_batched_tokens: wanted at least max_num_seqs = " + std::to_string(b.sequences) +
                   " (each samples a token per step), found " + std::to_string(b.tokens));
  const CacheLayout layout = cache_layout(config.attention(), b.page_size);
  const int64_t page_bytes = layout.page_bytes_of_all(), minimum = pages_of_sequences(layout, b, 1);
  b.pages = pages_of_sequences(layout, b, b.sequences);
  if (o.kv_cache_bytes > 0 && page_bytes > 0) b.pages = std::min(b.pages, o.kv_cache_bytes / page_bytes);
  if (b.pages < minimum)
    return invalid("kv_cache_bytes: wanted at least " + std::to_string(minimum * page_bytes) +
                   " for one sequence of max_model_len = " + std::to_string(b.positions) + ", found " +
                   std::to_string(o.kv_cache_bytes));
  return b;
}

// Returns the value of an option, which must be 0 to `maximum`. The default is min(there, maximum) on a device with
// its own memory and 0 on other devices.
Result<int64_t> choice_of(const char* name, const std::optional<int64_t>& wanted, int64_t there,
                          int64_t maximum, const Device& device) {
  const int64_t value = wanted.value_or(device.shares_host_memory() ? 0 : std::min(there, maximum));
  if (value >= 0 && value <= maximum) return value;
  return invalid(std::string(name) + ": wanted 0 to " + std::to_string(maximum) + ", found " +
                 std::to_string(value));
}

// Memory of a step besides weights and cache, in bytes.
struct StepBytes {
  int64_t workspace = 0, logits = 0, rope = 0, drafts = 0;
  int64_t sum() const { return workspace + logits + rope + drafts; }
};

Status check_draft_head(const DecoderConfig& c, const EngineOptions& o) {
  const bool wanted = has_draft_layer(o.speculation.method);
  if (wanted != o.draft_head.has_value())
    return invalid(std::string("draft_head: wanted ") + (wanted ? "one" : "none") + " with the method " +
                   std::string(text(o.speculation.method)) + ", found " + (wanted ? "none" : "one"));
  if (!wanted) return {};
  const DraftLayerConfig& head = o.draft_head->config;
  if (text(head.kind) != text(o.speculation.method))
    return invalid("draft_head: wanted one of the method " + std::string(text(o.speculation.method)) +
                   ", found " + std::string(text(head.kind)));
  const auto same = [](const char* what, int64_t found, int64_t model) {
    return found == model ? Status{}
                          : invalid(std::string("draft_head: ") + what + ": wanted the model's " +
                                    std::to_string(model) + ", found " + std::to_string(found));
  };
  SLUICE_TRY(same("model_hidden", head.model_hidden, c.hidden));
  return same("vocab", head.vocab, c.vocab);
}

// Adds the parts of the decoder's config that the options require: capture of chosen experts, the draft
// layer's cache, and taps on the rank that runs the draft layer. All ranks have that cache, so that pages
// have the same numbers.
DecoderConfig planned_config(const DecoderConfig& config, const EngineOptions& o, bool schedules,
                             DraftHead* head) {
  DecoderConfig out = config;
  const bool capture = o.count_experts || o.keep_chosen_experts;
  for (LayerConfig& layer : out.layers) layer.mlp.capture = capture && !layer.mlp.dense;
  if (!o.draft_head) return out;
  *head = *o.draft_head;
  head->config.attention.cache = config.layers.front().attention.cache;
  if (schedules) out.taps = head->config.taps;
  out.draft_attention = head->config.attention;
  return out;
}

StepBytes step_bytes(const Decoder& decoder, const StepPlans& plans) {
  const DecoderConfig& c = decoder.config();
  const StepBounds& b = decoder.bounds();
  // TopLogprobs scores the prompt while the decoder's workspace still holds the layers' output, so the two
  // workspaces must not overlap.
  const size_t scoring = Arena::footprint(decoder.workspace_bytes()) + plans.top->workspace_bytes();
  return {.workspace = static_cast<int64_t>(std::max(scoring, plans.workspace_bytes())),
          // A greedy step stores no logits and uses this memory as workspace.
          .logits = std::max(bytes_of(DType::kF32, b.logit_rows() * c.vocab),
                             static_cast<int64_t>(decoder.greedy_workspace_bytes())),
          .rope = bytes_of(DType::kF32, b.positions * c.layers.front().attention.rotary),
          .drafts = plans.drafts ? plans.drafts->bytes() : 0};
}

// Reduces the number of pages so that the process stays below memory_utilization of device memory; never
// raises that number.
Status fit_cache(const Device& device, const EngineOptions& o, const StepBytes& beside, Decoder* decoder) {
  if (o.memory_utilization == 0 || o.kv_cache_bytes > 0) return {};
  const StepBounds& b = decoder->bounds();
  const CacheLayout& layout = decoder->cache_layout();
  const int64_t page = layout.page_bytes_of_all(), minimum = pages_of_sequences(layout, b, 1);
  const double others = (1 - o.memory_utilization) * static_cast<double>(device.total_bytes());
  const int64_t left = device.free_bytes() - static_cast<int64_t>(others) - beside.sum();
  if (left >= b.pages * page) return {};
  if (left >= minimum * page) return decoder->set_pages(left / page);
  return out_of_memory("engine: wanted " + std::to_string(minimum * page) +
                       " bytes of cache for one sequence of " + std::to_string(b.positions) +
                       " tokens, found " + std::to_string(std::max<int64_t>(left, 0)) +
                       " bytes left within gpu_memory_utilization " + number_text(o.memory_utilization) +
                       " after " + std::to_string(beside.sum()) +
                       " bytes for steps; lower max_model_len or max_num_batched_tokens, or raise "
                       "gpu_memory_utilization");
}

// Plans all of StepPlans except `drafts`, whose plan depends on the number of pages.
Status plan_operations(Device& device, const DecoderConfig& planned, const StepBounds& bounds,
                       const EngineOptions& options, int64_t steps_ahead, StepPlans* out) {
  const int64_t vocab = planned.vocab, rows = bounds.logit_rows();
  const Policy& policy = options.policy;
  SLUICE_TRY(plan_into<Sample>(&out->sample, device, {.rows = 0, .vocab = vocab}, rows, policy));
  if (steps_ahead > 0)
    SLUICE_TRY(plan_into<TakeTokens>(&out->take, device, {.tokens = 0, .rows = rows}, bounds.tokens, policy));
  SLUICE_TRY(plan_into<TopLogprobs>(&out->top, device,
                                    {.rows = 0, .logit_rows = rows, .vocab = vocab, .top = kTopLogprobsMax},
                                    rows, policy));
  auto adjustments = LogitAdjustments::make(device, bounds, vocab, policy);
  if (!adjustments.ok()) return adjustments.status();
  out->adjustments = std::move(adjustments).value();
  auto masks = LogitMasks::make(device, bounds, vocab, policy);
  if (!masks.ok()) return masks.status();
  out->masks = std::move(masks).value();
  if (!planned.moe().capture) return {};
  auto counter = ExpertCounter::make(device, planned.moe(), planned.moe_layers(), bounds.tokens, policy);
  if (!counter.ok()) return counter.status();
  return out->experts = std::move(counter).value(), Status{};
}

Status plan_drafts(Device& device, const Decoder& decoder, const DraftHead& head, const Policy& policy,
                   StepPlans* out) {
  auto runner =
      DraftRunner::plan(device, head, decoder.bounds(), decoder.cache_layout().group.back(), policy);
  if (!runner.ok()) return runner.status();
  return out->drafts = std::move(runner).value(), Status{};
}

// The scheduler keeps references to `decoder` and `drafts`, which estimate the cost of steps.
SchedulerOptions scheduler_options(const EngineOptions& o, const Decoder& decoder, const DraftRunner* drafts,
                                   int64_t steps_ahead) {
  // With a draft layer, every step waits for the step before it, with drafts or without.
  StepCosts costs{.waiting = steps_ahead > 0 && !drafts ? kWaitingUs : 0};
  costs.step = [&decoder, drafts](int64_t tokens, bool verifies) {
    return decoder.cost_us(tokens, verifies) + (drafts ? drafts->extend_cost_us(tokens, verifies) : 0);
  };
  if (drafts) costs.draft = [drafts](int64_t rows, bool first) { return drafts->cost_us(rows, first); };
  return {.prefix_cache = o.prefix_cache,
          .mixed_prefill_tokens = o.mixed_prefill_tokens,
          .windows = decoder.cache_layout().windows,
          .speculation = o.speculation,
          .costs = std::move(costs)};
}

Status check_ranks(const DecoderConfig& c, const EngineOptions& o) {
  if (c.ranks == 1 && o.other_ranks.empty()) return {};
  const auto none = [](const char* what, std::string_view found) {
    return unsupported(std::string("tensor parallelism: wanted no ") + what + ", found " +
                       std::string(found));
  };
  if (o.experts.device) return none("offloaded experts", text(o.experts.device->info()));
  if (o.other_ranks.empty()) return {};  // the engine of a rank above 0
  const int64_t ranks = 1 + std::ssize(o.other_ranks);
  if (!o.group || o.group->ranks() != ranks || c.ranks != ranks)
    return invalid("tensor parallelism: wanted a group and a slice of " + std::to_string(ranks) +
                   " ranks, found " +
                   (o.group ? "a group of " + std::to_string(o.group->ranks()) : "no group") +
                   " and a slice of " + std::to_string(c.ranks));
  return {};
}

}  // namespace

size_t StepPlans::workspace_bytes() const {
  return std::max({drafts ? drafts->workspace_bytes() : 0, sample->workspace_bytes(),
                   take ? take->workspace_bytes() : 0, top->workspace_bytes(), adjustments->workspace_bytes(),
                   masks->workspace_bytes(), experts ? experts->workspace_bytes() : 0});
}

Engine::Engine(Device& device, const NamedWeights& weights, std::unique_ptr<Decoder> decoder, StepPlans plans,
               const SchedulerOptions& options)
    : device_(device),
      weights_(weights),
      decoder_(std::move(decoder)),
      bounds_(decoder_->bounds()),
      scheduler_(bounds_, options),
      plans_(std::move(plans)),
      mask_workers_(decoder_->config().vocab) {}

Engine::~Engine() {
  // Nothing else waits for steps in flight, for the draft layer's work after the last step, or for the steps
  // of ranks above 0.
  if (!in_flight_.empty() || plans_.drafts || !schedules_) (void)device_.wait(device_.stream());
  ranks_.reset();
  for (void* memory : {cache_, workspace_, logits_, rope_})
    if (memory) device_.release(memory);
}

Result<std::unique_ptr<Engine>> Engine::make(Device& device, const DecoderConfig& config,
                                             const NamedWeights& weights, const EngineOptions& options) {
  return make_rank(device, config, weights, options, true);
}

Result<std::unique_ptr<Engine>> Engine::make_rank(Device& device, const DecoderConfig& config,
                                                  const NamedWeights& weights, const EngineOptions& options,
                                                  bool schedules) {
  SLUICE_TRY(check_speculation(options.speculation));
  SLUICE_TRY(check_draft_head(config, options));
  SLUICE_TRY(check_ranks(config, options));
  DraftHead head;
  const DecoderConfig planned = planned_config(config, options, schedules, &head);
  const Result<StepBounds> wanted = bounds_of(planned, options);
  if (!wanted.ok()) return wanted.status();
  const StepBounds& bounds = wanted.value();
  SLUICE_TRY(check_range("memory_utilization", options.memory_utilization, 0, 1));
  const auto ahead = choice_of("steps_ahead", options.steps_ahead, 1, 1, device);
  if (!ahead.ok()) return ahead.status();
  // Offloaded experts cannot be captured in a graph.
  const auto recorded = choice_of("recorded_sequences", options.recorded_sequences, kRecordedSequences,
                                  options.experts.device ? 0 : bounds.sequences, device);
  if (!recorded.ok()) return recorded.status();
  auto decoder = Decoder::plan(device, planned, bounds, options.policy, options.experts);
  if (!decoder.ok()) return decoder.status();
  StepPlans plans;
  SLUICE_TRY(plan_operations(device, planned, bounds, options, ahead.value(), &plans));
  Decoder& steps = *decoder.value();
  const bool drafts = options.draft_head && schedules;
  if (drafts) SLUICE_TRY(plan_drafts(device, steps, head, options.policy, &plans));
  SLUICE_TRY(fit_cache(device, options, step_bytes(steps, plans), &steps));
  if (drafts && steps.bounds().pages != bounds.pages)
    SLUICE_TRY(plan_drafts(device, steps, head, options.policy, &plans));
  const SchedulerOptions scheduler = scheduler_options(options, steps, plans.drafts.get(), ahead.value());
  std::unique_ptr<Engine> engine(
      new Engine(device, weights, std::move(decoder).value(), std::move(plans), scheduler));
  engine->counts_experts_ = options.count_experts;
  engine->steps_ahead_ = static_cast<size_t>(ahead.value());
  engine->recorded_sequences_ = recorded.value();
  engine->batch_invariant_ = options.policy.batch_invariant;
  engine->schedules_ = schedules;
  SLUICE_TRY(engine->take_memory());
  SLUICE_TRY(engine->write_rope_table());
  if (!options.other_ranks.empty()) SLUICE_TRY(engine->add_ranks(options));
  return engine;
}

// The other ranks get the same number of pages as rank 0, even if they have more free memory.
Status Engine::add_ranks(const EngineOptions& options) {
  EngineOptions own = options;
  own.other_ranks.clear();
  own.memory_utilization = 0;
  own.kv_cache_bytes = bounds_.pages * decoder_->cache_layout().page_bytes_of_all();
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<Device*> devices;
  for (const EngineRank& rank : options.other_ranks) {
    auto engine = make_rank(*rank.device, *rank.config, *rank.weights, own, false);
    if (!engine.ok())
      return Status{engine.status().code,
                    "rank " + std::to_string(engines.size() + 1) + ": " + engine.status().message};
    engines.push_back(std::move(engine).value());
    devices.push_back(rank.device);
  }
  auto ranks = OtherRanks::make(*options.group, std::move(engines), std::move(devices));
  if (!ranks.ok()) return ranks.status();
  return ranks_ = std::move(ranks).value(), Status{};
}

Status Engine::take_memory() {
  const StepBytes bytes = step_bytes(*decoder_, plans_);
  memory_ = {.kv_cache_bytes = decoder_->cache_bytes(),
             .workspace_bytes = bytes.workspace,
             .pages = bounds_.pages,
             .tokens = tokens_held(decoder_->cache_layout(), bounds_)};
  // Checked here, because the operating system overcommits: an allocation that is too large may fail only when it is first written.
  const int64_t wanted = memory_.kv_cache_bytes + memory_.workspace_bytes, free = device_.free_bytes();
  if (wanted > free)
    return out_of_memory("engine: wanted " + std::to_string(memory_.kv_cache_bytes) + " bytes of cache (" +
                         std::to_string(bounds_.sequences) + " sequences of " +
                         std::to_string(bounds_.positions) + " tokens) and " +
                         std::to_string(memory_.workspace_bytes) + " of workspace, found " +
                         std::to_string(free) + " free; lower max_num_seqs or max_model_len");
  const auto take = [&](int64_t bytes_wanted, void** memory) -> Status {
    Result<void*> got = device_.allocate(static_cast<size_t>(bytes_wanted));
    if (!got.ok()) return Status{got.status().code, "engine: " + got.status().message};
    *memory = got.value();
    return {};
  };
  SLUICE_TRY(take(memory_.kv_cache_bytes, &cache_));
  SLUICE_TRY(take(bytes.workspace, &workspace_));
  SLUICE_TRY(take(bytes.logits, &logits_));
  logits_bytes_ = static_cast<size_t>(bytes.logits);
  SLUICE_TRY(take(bytes.rope, &rope_));
  const std::vector<KvCache> caches = decoder_->caches(cache_);
  auto held = decoder_->bind(weights_, caches);
  if (!held.ok()) return held.status();
  held_ = std::move(held).value();
  if (plans_.drafts) SLUICE_TRY(plans_.drafts->take_memory(caches.back()));
  auto staging =
      StepStaging::make(device_, bounds_, decoder_->cache_layout().windows.size(), steps_ahead_ + 1);
  if (!staging.ok()) return Status{staging.status().code, "engine: " + staging.status().message};
  staging_ = std::move(staging).value();
  return {};
}

Status Engine::write_rope_table() {
  const DecoderConfig& c = decoder_->config();
  const int64_t rotary = c.layers.front().attention.rotary;
  std::vector<float> table(static_cast<size_t>(bounds_.positions * rotary));
  SLUICE_TRY(rope_table(c.rope, bounds_.positions, rotary, table.data()));
  SLUICE_TRY(device_.copy(rope_, table.data(), table.size() * sizeof(float), device_.stream()));
  return device_.wait(device_.stream());
}

Result<int64_t> Engine::add(Request request) {
  const int64_t vocab = decoder_->config().vocab;
  for (int32_t id : request.prompt)
    if (id < 0 || id >= vocab)
      return invalid("prompt: wanted tokens from 0 to " + std::to_string(vocab - 1) +
                     " (the vocabulary), found " + std::to_string(id));
  SLUICE_TRY(check_sampling(request.sampling, vocab));
  if (request.filter) SLUICE_TRY(mask_workers_.open());
  return scheduler_.add(std::move(request));
}

}  // namespace sluice
