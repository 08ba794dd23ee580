#include "serve/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/arena.h"
#include "base/printable.h"
#include "models/family.h"
#include "nn/plan_into.h"
#include "serve/staging.h"

namespace sluice {
namespace {

Status check_range(const char* name, double value, double least, double most) {
  if (value >= least && value <= most) return {};  // NaN fails
  return invalid(std::string(name) + ": wanted " + number_text(least) + " to " + number_text(most) +
                 ", found " + number_text(value));
}

Status check_sampling(const SamplingParams& s) {
  SLUICE_TRY(check_range("temperature", s.temperature, 0, kTemperatureMax));
  SLUICE_TRY(check_range("top_p", s.top_p, 0, 1));
  SLUICE_TRY(check_range("min_p", s.min_p, 0, 1));
  SLUICE_TRY(check_range("top_k", static_cast<double>(s.top_k), 0, INT32_MAX));
  return check_range("max_tokens", static_cast<double>(s.max_tokens), 0, INT32_MAX);
}

Result<StepBounds> bounds_of(const DecoderConfig& config, const EngineOptions& o) {
  const auto positive = [](const char* name, int64_t value) -> Status {
    if (value >= 1) return {};
    return invalid(std::string(name) + ": wanted at least 1, found " + std::to_string(value));
  };
  // Before anything is planned: a plan looks at the counts of tokens, up to the largest.
  const auto tokens = [](const char* name, int64_t value) -> Status {
    if (value >= 1 && value <= kStepTokensMax) return {};
    return invalid(std::string(name) + ": wanted 1 to " + std::to_string(kStepTokensMax) + ", found " +
                   std::to_string(value));
  };
  SLUICE_TRY(positive("max_model_len", o.max_model_len));
  SLUICE_TRY(tokens("max_num_seqs", o.max_num_seqs));
  SLUICE_TRY(tokens("max_num_batched_tokens", o.max_num_batched_tokens));
  SLUICE_TRY(positive("page_size", o.page_size));
  StepBounds b{.tokens = o.max_num_batched_tokens,
               .sequences = o.max_num_seqs,
               .positions = o.max_model_len,
               .page_size = o.page_size};
  if (b.tokens < b.sequences)
    return invalid("max_num_batched_tokens: wanted at least max_num_seqs = " + std::to_string(b.sequences) +
                   " (each draws a token a step), found " + std::to_string(b.tokens));
  int64_t page_bytes = 0;
  for (int32_t kind : config.kind) {
    const AttentionConfig& a = config.attention[static_cast<size_t>(kind)];
    page_bytes += 2 * bytes_of(a.x, b.page_size * a.kv_heads * a.head_dim);
  }
  b.pages = b.sequences * b.pages_per_seq();
  if (o.kv_cache_bytes > 0 && page_bytes > 0) b.pages = std::min(b.pages, o.kv_cache_bytes / page_bytes);
  if (b.pages < b.pages_per_seq())
    return invalid("kv_cache_bytes: wanted at least " + std::to_string(b.pages_per_seq() * page_bytes) +
                   " for one sequence of max_model_len = " + std::to_string(b.positions) + ", found " +
                   std::to_string(o.kv_cache_bytes));
  return b;
}

}  // namespace

Engine::Engine(Device& device, const DecoderWeights& weights, const StepBounds& bounds)
    : device_(device), weights_(weights), bounds_(bounds), scheduler_(bounds) {}

Engine::~Engine() {
  for (void* memory : {cache_, workspace_, logits_, rope_})
    if (memory) device_.release(memory);
}

Result<std::unique_ptr<Engine>> Engine::make(Device& device, const DecoderConfig& config,
                                             const DecoderWeights& weights, const EngineOptions& options) {
  const Result<StepBounds> bounds = bounds_of(config, options);
  if (!bounds.ok()) return bounds.status();
  std::unique_ptr<Engine> engine(new Engine(device, weights, bounds.value()));
  auto decoder = Decoder::plan(device, config, bounds.value(), options.policy, options.experts);
  if (!decoder.ok()) return decoder.status();
  engine->decoder_ = std::move(decoder).value();
  SLUICE_TRY(plan_into<Sample>(&engine->sample_, device, {.rows = 0, .vocab = config.vocab},
                               bounds.value().sequences, options.policy));
  SLUICE_TRY(engine->allocate(config.rope));
  return engine;
}

Status Engine::allocate(const RopeScaling& rope) {
  const DecoderConfig& c = decoder_->config();
  memory_ = {.kv_cache_bytes = decoder_->cache_bytes(),
             .workspace_bytes =
                 static_cast<int64_t>(std::max(decoder_->workspace_bytes(), sample_->workspace_bytes())),
             .pages = bounds_.pages};
  const int64_t rotary = c.attention.front().rotary;
  const int64_t rope_bytes = bytes_of(DType::kF32, bounds_.positions * rotary);
  // Before the first page is touched: systems lend what they do not have.
  const int64_t wanted = memory_.kv_cache_bytes + memory_.workspace_bytes, free = device_.free_bytes();
  if (wanted > free)
    return out_of_memory("engine: wanted " + std::to_string(memory_.kv_cache_bytes) + " bytes of cache (" +
                         std::to_string(bounds_.sequences) + " sequences of " +
                         std::to_string(bounds_.positions) + " tokens) and " +
                         std::to_string(memory_.workspace_bytes) + " of workspace, found " +
                         std::to_string(free) + " free; lower --max-num-seqs or --max-model-len");
  const auto take = [&](int64_t bytes, void** memory) -> Status {
    Result<void*> got = device_.allocate(static_cast<size_t>(bytes));
    if (!got.ok()) return Status{got.status().code, "engine: " + got.status().message};
    *memory = got.value();
    return {};
  };
  SLUICE_TRY(take(memory_.kv_cache_bytes, &cache_));
  SLUICE_TRY(take(memory_.workspace_bytes, &workspace_));
  SLUICE_TRY(take(bytes_of(DType::kF32, bounds_.sequences * c.vocab), &logits_));
  SLUICE_TRY(take(rope_bytes, &rope_));
  caches_ = decoder_->caches(cache_);
  auto staging = StepStaging::make(device_, bounds_);
  if (!staging.ok()) return staging.status();
  staging_ = std::move(staging).value();
  std::vector<float> table(static_cast<size_t>(bounds_.positions * rotary));
  SLUICE_TRY(rope_table(rope, bounds_.positions, rotary, table.data()));
  SLUICE_TRY(device_.copy(rope_, table.data(), static_cast<size_t>(rope_bytes), device_.stream()));
  return device_.wait(device_.stream());
}

Result<int64_t> Engine::add(Request request) {
  const int64_t vocab = decoder_->config().vocab;
  for (int32_t id : request.prompt)
    if (id < 0 || id >= vocab)
      return invalid("prompt: wanted tokens from 0 to " + std::to_string(vocab - 1) +
                     " (the vocabulary), found " + std::to_string(id));
  SLUICE_TRY(check_sampling(request.sampling));
  return scheduler_.add(std::move(request));
}

Status Engine::compute(const std::vector<Chunk>& chunks) {
  const Stream stream = device_.stream();
  auto filled = staging_->fill(device_, chunks);
  if (!filled.ok()) return filled.status();
  StepIn in = filled.value();
  const DecoderConfig& c = decoder_->config();
  const int64_t rotary = c.attention.front().rotary;
  in.tables.rope = make_tensor(rope_, DType::kF32, {bounds_.positions, rotary / 2, 2}, stream.where);
  const Tensor logits = make_tensor(logits_, DType::kF32, {in.logit_rows.shape[0], c.vocab}, stream.where);
  const Workspace workspace{static_cast<std::byte*>(workspace_),
                            static_cast<size_t>(memory_.workspace_bytes)};
  return decoder_->forward(in, weights_, caches_, logits, workspace, stream);
}

Result<std::vector<GeneratedToken>> Engine::sample(const std::vector<Chunk>& chunks) {
  const auto rows = std::count_if(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.ends(); });
  if (rows == 0) return std::vector<GeneratedToken>{};
  const Stream stream = device_.stream();
  const Tensor logits = make_tensor(logits_, DType::kF32, {rows, decoder_->config().vocab}, stream.where);
  const Workspace workspace{static_cast<std::byte*>(workspace_),
                            static_cast<size_t>(memory_.workspace_bytes)};
  SLUICE_TRY(sample_->run(rows, staging_->sample_args(logits), workspace, stream));
  return staging_->drawn(device_, rows);
}

// `drawn` for each chunk that ends, in order. Where the host cannot read the logits, the draw tells: a row with an infinity or
// without a number has no logprob.
Status Engine::check_logits(const std::vector<Chunk>& chunks,
                            const std::vector<GeneratedToken>& drawn) const {
  const int64_t vocab = decoder_->config().vocab;
  const auto* logits = device_.shares_host_memory() ? static_cast<const float*>(logits_) : nullptr;
  size_t row = 0;
  for (const Chunk& chunk : chunks) {
    if (!chunk.ends()) continue;
    const float* begin = logits ? logits + static_cast<int64_t>(row) * vocab : &drawn[row].logprob;
    const float* end = begin + (logits ? vocab : 1);
    const float* wrong = std::find_if(begin, end, [](float x) { return !std::isfinite(x); });
    ++row;
    if (wrong == end) continue;
    return {Code::kDevice, "step " + std::to_string(steps_) + ": request " +
                               std::to_string(chunk.sequence->id) + ": wanted finite logits, found " +
                               number_text(*wrong) +
                               (logits ? " for token " + std::to_string(wrong - begin) : " as a logprob")};
  }
  return {};
}

Result<std::vector<GeneratedToken>> Engine::step() {
  const std::vector<Chunk> chunks = scheduler_.next();
  if (chunks.empty()) return std::vector<GeneratedToken>{};
  ++steps_;
  SLUICE_TRY(compute(chunks));
  const auto drawn = sample(chunks);
  if (!drawn.ok()) return drawn.status();
  SLUICE_TRY(device_.wait(device_.stream()));
  SLUICE_TRY(check_logits(chunks, drawn.value()));
  return scheduler_.accept(chunks, drawn.value());
}

Result<std::vector<float>> Engine::logits(const std::vector<int32_t>& tokens,
                                          const std::vector<int64_t>& positions) {
  const auto n = static_cast<int64_t>(tokens.size());
  if (!idle()) return invalid("logits: wanted an idle engine, found requests in it");
  if (n > bounds_.positions)
    return invalid("logits: wanted at most " + std::to_string(bounds_.positions) + " tokens, found " +
                   std::to_string(n));
  Sequence s;
  for (int32_t page = 0; page < bounds_.pages_per_seq(); ++page) s.pages.push_back(page);
  const int64_t vocab = decoder_->config().vocab;
  std::vector<float> out;
  for (int64_t position : positions) {
    if (position < static_cast<int64_t>(s.tokens.size()) || position >= n)
      return invalid("logits: wanted ascending positions below " + std::to_string(n) + ", found " +
                     std::to_string(position));
    while (s.computed <= position) {
      // Tokens beyond a chunk stay unknown to it, so that each chunk ends where logits may be asked for.
      const int64_t count = std::min(position + 1 - s.computed, bounds_.tokens);
      s.tokens.assign(tokens.begin(), tokens.begin() + s.computed + count);
      SLUICE_TRY(compute({{&s, s.computed, count}}));
      s.computed += count;
    }
    out.resize(out.size() + static_cast<size_t>(vocab));
    SLUICE_TRY(device_.copy(out.data() + out.size() - static_cast<size_t>(vocab), logits_,
                            static_cast<size_t>(vocab) * sizeof(float), device_.stream()));
    SLUICE_TRY(device_.wait(device_.stream()));
  }
  return out;
}

}  // namespace sluice
