// The part of Engine that runs steps; engine.cc creates engines.
#include <algorithm>
#include <cmath>
#include <new>

#include "base/arena.h"
#include "base/printable.h"
#include "engine/adjustments.h"
#include "engine/engine.h"
#include "engine/masks.h"
#include "engine/staging.h"
#include "graph/run_and_count.h"

namespace sluice {
namespace {

// Whether the step only decodes: every row is a sequence's last token or a draft, and is sampled from.
bool decodes(const std::vector<Chunk>& chunks) {
  return std::all_of(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.count == c.rows(); });
}

int64_t sampled_rows(const std::vector<Chunk>& chunks) {
  int64_t rows = 0;
  for (const Chunk& chunk : chunks) rows += chunk.rows();
  return rows;
}

int64_t tokens_of(const std::vector<Chunk>& chunks) {
  int64_t tokens = 0;
  for (const Chunk& chunk : chunks) tokens += chunk.count;
  return tokens;
}

// The number of a chunk's samples that are accepted.
int64_t counted_rows(const Chunk& chunk, const std::vector<GeneratedToken>& sampled) {
  if (!chunk.sampled) return 0;
  const auto first = static_cast<size_t>(*chunk.sampled);
  size_t same = 0;
  while (same < chunk.drafts.size() && sampled[first + same].id == chunk.drafts[same]) ++same;
  return 1 + static_cast<int64_t>(same);
}

bool needs_logprobs(const std::vector<Chunk>& chunks) {
  return std::any_of(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.needs_logprobs(); });
}
bool adjusts(const std::vector<Chunk>& chunks) {
  return std::any_of(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.adjusts(); });
}
bool masked(const std::vector<Chunk>& chunks) {
  return std::any_of(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.masked(); });
}

bool all_greedy(const std::vector<Chunk>& chunks) {
  return std::all_of(chunks.begin(), chunks.end(),
                     [](const Chunk& c) { return !c.sampled || !(*c.sequence->sampling.temperature > 0); });
}
bool scores(const std::vector<Chunk>& chunks) {
  return std::any_of(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.scores > 0; });
}

}  // namespace

int64_t Engine::recordings() const {
  int64_t count = 0;
  for (const auto& [shape, r] : recordings_)
    count += (r.greedy.recording != nullptr) + (r.sampled.recording != nullptr);
  return count;
}

DraftCounts Engine::draft_counts() const {
  DraftCounts out = scheduler_.draft_counts();
  if (plans_.drafts) out.not_finite = plans_.drafts->not_finite();
  return out;
}

// Samples a token from each row of logits. Logprobs refer to the model's own logits, but sampling uses the
// adjusted logits. So adjustments save the original logits of the listed tokens and restore them after
// sampling; masks save and restore whole rows. Then one pass over the restored logits computes the sampled
// token's logprob, its rank and the top logprobs. A pass before sampling would not know the sampled token.
Status Engine::sample(InFlight* step, const StepTensors& t, KernelRuns* runs) {
  if (step->rows == 0 || step->greedy) return {};
  const Stream stream = device_.stream();
  const Tensor all =
      make_tensor(logits_, DType::kF32, {bounds_.logit_rows(), decoder_->config().vocab}, stream.where);
  if (adjusts(step->chunks)) SLUICE_TRY(plans_.adjustments->apply(all, workspace(), stream, runs));
  // Waits as late as possible: the device computes the logits in the meantime. With several ranks, the masks
  // are ready before the step begins (enqueue_on_all_ranks).
  const bool alone = schedules_ && !ranks_;
  if (alone) await_masks(step);
  if (masked(step->chunks)) {
    if (alone) SLUICE_TRY(plans_.masks->fill(step->chunks));
    SLUICE_TRY(plans_.masks->apply(all, workspace(), stream, runs));
  }
  SLUICE_TRY(run_and_count(*plans_.sample, step->rows, t.sample, workspace(), stream, runs));
  if (masked(step->chunks)) SLUICE_TRY(plans_.masks->restore(all, workspace(), stream, runs));
  if (adjusts(step->chunks)) SLUICE_TRY(plans_.adjustments->restore(all, workspace(), stream, runs));
  if (!needs_logprobs(step->chunks)) return {};
  TopLogprobs::Args top = t.top;
  top.logits = all;
  return run_and_count(*plans_.top, top.row.shape[0], top, workspace(), stream, runs);
}

Status Engine::launch_all(InFlight* step, const StepTensors& t, TakeIds ids, KernelRuns* runs) {
  const Stream stream = device_.stream();
  if (ids == TakeIds::kFromSampled)
    SLUICE_TRY(run_and_count(*plans_.take, t.take.ids.shape[0], t.take, workspace(), stream, runs));
  if (step->greedy) {
    StepIn layers = t.in;
    layers.logit_rows.shape[0] = 0;
    SLUICE_TRY(decoder_->forward(layers, held_, {}, workspace(), stream, runs));
    SLUICE_TRY(decoder_->sample_greedy(t.in, held_, t.sample.token, t.sample.logprob,
                                       {static_cast<std::byte*>(logits_), logits_bytes_}, workspace(), stream,
                                       runs));
  } else if (t.scores.empty()) {
    SLUICE_TRY(decoder_->forward(t.in, held_, t.sample.logits, workspace(), stream, runs));
  } else {
    SLUICE_TRY(forward_and_score(t, runs));
  }
  if (counts_experts_) {
    const int64_t tokens = t.in.token_ids.shape[0];
    SLUICE_TRY(plans_.experts->count(tokens, workspace(), stream, runs));
  }
  return sample(step, t, runs);
}

// Scores the prompt first. This must come first: the logits for sampling use the same buffer, and
// sampling overwrites the layers' output, from which scores are computed.
Status Engine::forward_and_score(const StepTensors& t, KernelRuns* runs) {
  const Stream stream = device_.stream();
  const int64_t vocab = decoder_->config().vocab;
  StepIn layers = t.in;
  layers.logit_rows.shape[0] = 0;
  SLUICE_TRY(decoder_->forward(layers, held_, {}, workspace(), stream, runs));
  const size_t used = Arena::footprint(decoder_->workspace_bytes());
  const Workspace top_workspace{workspace().data + used, workspace().bytes - used};
  for (const StepTensors::Scores& slice : t.scores) {
    const int64_t rows = slice.logit_rows.shape[0];
    const Tensor logits = make_tensor(logits_, DType::kF32, {rows, vocab}, stream.where);
    SLUICE_TRY(decoder_->logits_of(slice.logit_rows, held_, logits, workspace(), stream, false, runs));
    TopLogprobs::Args top = slice.top;
    top.logits = make_tensor(logits_, DType::kF32, {bounds_.logit_rows(), vocab}, stream.where);
    SLUICE_TRY(run_and_count(*plans_.top, rows, top, top_workspace, stream, runs));
  }
  return decoder_->logits_of(t.in.logit_rows, held_, t.sample.logits, workspace(), stream, false, runs);
}

// Enqueues a step without the copy of its results: replays a captured graph if the step has one
// (is_recorded), otherwise launches kernel by kernel. Steps with adjustments, masks or requested logprobs are
// not captured, because the sizes of their launches vary.
Status Engine::enqueue(InFlight* step, Recordings recordings) {
  const Stream stream = device_.stream();
  const bool recorded = is_recorded(*step);
  const bool takes =
      steps_ahead_ > 0 && (recorded || std::any_of(step->chunks.begin(), step->chunks.end(),
                                                   [](const Chunk& c) { return c.taken.has_value(); }));
  const TakeIds ids = takes ? TakeIds::kFromSampled : TakeIds::kFromHost;
  auto filled = staging_->fill(step->block, step->chunks, ids);
  if (!filled.ok()) return filled.status();
  StepTensors t = std::move(filled).value();
  const DecoderConfig& c = decoder_->config();
  const int64_t rotary = c.layers.front().attention.rotary;
  for (StepTables& tables : t.in.tables)
    tables.rope = make_tensor(rope_, DType::kF32, {bounds_.positions, rotary / 2, 2}, stream.where);
  if (plans_.drafts) {
    t.in.taps = plans_.drafts->taps(t.in.token_ids.shape[0]);
    step->draft_tables = t.in.tables[plans_.drafts->group()];
  }
  t.in.every_row = step->rows == t.in.token_ids.shape[0];
  chosen_tokens_ = t.in.token_ids.shape[0];
  if (plans_.experts) t.in.captured = plans_.experts->captured(chosen_tokens_);
  t.sample.logits = make_tensor(logits_, DType::kF32, {step->rows, c.vocab}, stream.where);
  const StepShape shape{std::ssize(step->chunks), chosen_tokens_};
  if (!recorded || (!recordings_.contains(shape) && recordings_.size() >= kRecordingsMax))
    return recordings == Recordings::kMake ? Status{} : launch_all(step, t, ids, &kernel_runs_);
  RecordedSteps& both = recordings_[shape];
  RecordedStep& known = step->greedy ? both.greedy : both.sampled;
  if (!known.recording) {
    KernelRuns runs;
    auto made = device_.record(stream, [&] { return launch_all(step, t, ids, &runs); });
    if (!made.ok()) return made.status();
    known = {std::move(made).value(), std::move(runs)};
  }
  if (recordings == Recordings::kMake) return {};
  SLUICE_TRY(device_.replay(*known.recording, stream));
  kernel_runs_.add(known.runs);
  return {};
}

// One thread fills the adjustments and masks of all ranks, because filling updates token counts in the sequences, and
// because a device must not allocate memory while another rank's all-reduce waits for that device.
Status Engine::fill_for_all_ranks(const InFlight& step) {
  if (adjusts(step.chunks)) SLUICE_TRY(plans_.adjustments->fill(step.chunks));
  if (!ranks_) return {};
  if (masked(step.chunks)) SLUICE_TRY(plans_.masks->fill(step.chunks));
  if (!adjusts(step.chunks) && !masked(step.chunks)) return {};
  return ranks_->for_each([&](Engine& rank) -> Status {
    // the rank may still be sampling in the previous step
    SLUICE_TRY(rank.device_.wait(rank.device_.stream()));
    if (adjusts(step.chunks)) SLUICE_TRY(rank.plans_.adjustments->fill(step.chunks));
    return masked(step.chunks) ? rank.plans_.masks->fill(step.chunks) : Status{};
  });
}

// Whether the step is run from a captured graph.
bool Engine::is_recorded(const InFlight& step) const {
  return decodes(step.chunks) && std::ssize(step.chunks) <= recorded_sequences_ &&
         !needs_logprobs(step.chunks);
}

Status Engine::enqueue_on_all_ranks(InFlight* step) {
  if (ranks_) await_masks(step);
  SLUICE_TRY(fill_for_all_ranks(*step));
  if (!ranks_) return enqueue(step);
  const auto on_all = [&](Recordings recordings) {
    const InFlight same = *step;  // enqueue() of rank 0 changes *step meanwhile
    const auto enqueue_copy = [&same, recordings](Engine& engine) {
      InFlight own = same;
      return engine.enqueue(&own, recordings);
    };
    return ranks_->run(enqueue_copy, [&] { return enqueue(step, recordings); });
  };
  // Capturing allocates device memory, so all ranks capture the graph before any rank runs it: a rank that
  // runs it waits for the others.
  const auto known = recordings_.find({std::ssize(step->chunks), tokens_of(step->chunks)});
  if (is_recorded(*step) && (known == recordings_.end() ||
                             !(step->greedy ? known->second.greedy : known->second.sampled).recording))
    SLUICE_TRY(on_all(Recordings::kMake));
  return on_all(Recordings::kMakeAndRun);
}

Status Engine::begin(std::vector<Chunk> chunks) {
  InFlight step{.chunks = std::move(chunks), .number = ++steps_};
  step.rows = sampled_rows(step.chunks);
  // If the host can read the logits, they must be written, because check_logits reads them. With
  // batch_invariant, a row's logprob must not depend on whether the other rows are greedy, so all steps must
  // use the same kernels.
  step.greedy = step.rows > 0 && !batch_invariant_ && all_greedy(step.chunks) &&
                !needs_logprobs(step.chunks) && !scores(step.chunks) && !logits_are_readable();
  step.block = static_cast<size_t>(step.number) % (steps_ahead_ + 1);
  Status status;
  try {
    status = enqueue_on_all_ranks(&step);
    if (status.ok() && plans_.experts) status = plans_.experts->fetch(step.number);
    if (status.ok()) status = staging_->fetch(step.block, step.chunks);
  } catch (const std::bad_alloc&) {
    status = {Code::kOutOfMemory, {}};  // without a message, which would need memory too
  }
  if (!status.ok()) {
    end_all_work(status);  // waits, because work already enqueued still reads the staging block
    if (plans_.experts) plans_.experts->take_back();
    scheduler_.take_back(step.chunks);
    --steps_;
    return status;
  }
  in_flight_.push_back(std::move(step));
  return {};
}

Status Engine::begin_steps() {
  while (in_flight_.size() <= steps_ahead_) {
    // Penalties, filters and drafts need the previous step's tokens on the host.
    if (!in_flight_.empty() && scheduler_.needs_all_tokens()) return {};
    std::vector<Chunk> chunks = scheduler_.next();
    if (chunks.empty()) return {};
    if (const Status status = begin(std::move(chunks)); !status.ok())
      return in_flight_.empty() ? status : Status{};  // the steps in flight are valid; the next call retries
  }
  return {};
}

// If the host cannot read the logits, or a later step has already overwritten them, checks the sample's
// logprob instead, which is not finite if the row has an infinity or only NaN.
Status Engine::check_logits(const InFlight& step, const std::vector<GeneratedToken>& sampled,
                            const std::vector<TokenScore>& scores) const {
  const int64_t vocab = decoder_->config().vocab;
  const auto* logits = logits_are_readable() ? static_cast<const float*>(logits_) : nullptr;
  auto score = scores.begin();
  for (const Chunk& chunk : step.chunks) {
    const auto scored = std::exchange(score, score + chunk.scores);
    if (chunk.sequence->ended) continue;
    const auto unlike =
        std::find_if(scored, score, [](const TokenScore& s) { return !std::isfinite(s.logprob); });
    if (unlike != score)
      return {Code::kDevice, "step " + std::to_string(step.number) + ": request " +
                                 std::to_string(chunk.sequence->id) + ": wanted finite logits, found " +
                                 number_text(unlike->logprob) + " as a logprob of its prompt"};
    // Ignores samples after a rejected draft, which are discarded.
    for (int64_t i = 0; i < counted_rows(chunk, sampled); ++i) {
      const int64_t row = *chunk.sampled + i;
      const float* begin = logits ? logits + row * vocab : &sampled[static_cast<size_t>(row)].logprob;
      const float* end = begin + (logits ? vocab : 1);
      const float* wrong = std::find_if(begin, end, [](float x) { return !std::isfinite(x); });
      if (wrong == end) continue;
      return {Code::kDevice, "step " + std::to_string(step.number) + ": request " +
                                 std::to_string(chunk.sequence->id) + ": wanted finite logits, found " +
                                 number_text(*wrong) +
                                 (logits ? " for token " + std::to_string(wrong - begin) : " as a logprob")};
    }
  }
  return {};
}

// Ignores errors, because the caller is already reporting one.
void Engine::end_all_work(const Status& why) {
  if (ranks_) ranks_->stop_and_recover(why);
  (void)device_.wait(device_.stream());
}

void Engine::take_back_all(const Status& why) {
  end_all_work(why);
  if (plans_.experts) plans_.experts->take_back();
  for (; !in_flight_.empty(); in_flight_.pop_back()) scheduler_.take_back(in_flight_.back().chunks);
}

// The step's tokens are valid even if the draft layer fails, so the next call of step() reports the error.
void Engine::draft(const InFlight& step) {
  draft_status_ = plans_.drafts->run(step.chunks, step.draft_tables, workspace(), &kernel_runs_);
}

Result<std::vector<GeneratedToken>> Engine::finish_oldest() {
  const InFlight& step = in_flight_.front();
  const auto sampled = staging_->sampled(step.block, step.chunks);
  std::vector<TokenScore> scores;
  if (sampled.ok()) scores = staging_->scores(step.block, step.chunks);
  const Status status = sampled.ok() ? check_logits(step, sampled.value(), scores) : sampled.status();
  if (!status.ok()) {
    take_back_all(status);
    return status;
  }
  auto tokens = scheduler_.accept(step.chunks, sampled.value(), std::move(scores));
  if (plans_.drafts) draft(step);
  if (plans_.experts) plans_.experts->finish(step.number);
  in_flight_.pop_front();
  return tokens;
}

// Completes and removes steps in flight whose sequences have all ended.
void Engine::drop_ended_steps() {
  while (!in_flight_.empty()) {
    const InFlight& step = in_flight_.front();
    const auto ended = [](const Chunk& c) { return c.sequence->ended; };
    if (!std::all_of(step.chunks.begin(), step.chunks.end(), ended)) return;
    const auto sampled = staging_->sampled(step.block, step.chunks);
    // Discards all work, because other sequences may use pages of this step. Does not report the error: if it
    // persists, the next step reports it.
    if (!sampled.ok()) return take_back_all(sampled.status());
    (void)scheduler_.accept(step.chunks, sampled.value(), staging_->scores(step.block, step.chunks));
    if (plans_.experts) plans_.experts->finish(step.number);
    in_flight_.pop_front();
  }
}

Result<std::vector<GeneratedToken>> Engine::step() {
  if (!draft_status_.ok()) {
    const Status failed = std::exchange(draft_status_, {});
    return Status{failed.code, "drafts: " + failed.message};
  }
  drop_ended_steps();
  begin_masks();
  SLUICE_TRY(begin_steps());
  if (in_flight_.empty()) {
    await_any_mask();
    return std::vector<GeneratedToken>{};
  }
  auto tokens = finish_oldest();
  if (tokens.ok()) {
    count_sitting_out();
    begin_masks();
  }
  return tokens;
}

Status Engine::ask_expert_counts() {
  if (!counts_experts_) return {};
  if (!idle()) return plans_.experts->request_copy(), Status{};
  drop_ended_steps();
  return plans_.experts->read_now();
}

Result<ChosenExperts> Engine::chosen_experts() {
  if (!plans_.experts) return ChosenExperts{};
  return plans_.experts->chosen(chosen_tokens_);
}

Result<std::vector<float>> Engine::logits(const std::vector<int32_t>& tokens,
                                          const std::vector<int64_t>& positions) {
  const auto n = static_cast<int64_t>(tokens.size());
  if (!idle()) return invalid("logits: wanted an idle engine, found requests in it");
  if (n > bounds_.positions)
    return invalid("logits: wanted at most " + std::to_string(bounds_.positions) + " tokens, found " +
                   std::to_string(n));
  drop_ended_steps();
  const auto s = std::make_shared<Sequence>();
  s->tokens = tokens;
  auto out = logits_in_pages(s, positions);
  scheduler_.release_pages(s.get());
  return out;
}

Result<std::vector<float>> Engine::logits_in_pages(const std::shared_ptr<Sequence>& s,
                                                   const std::vector<int64_t>& positions) {
  const auto n = static_cast<int64_t>(s->tokens.size());
  const int64_t vocab = decoder_->config().vocab;
  std::vector<float> out;
  int64_t last = -1;
  for (int64_t position : positions) {
    if (position <= last || position >= n)
      return invalid("logits: wanted ascending positions below " + std::to_string(n) + ", found " +
                     std::to_string(position));
    last = position;
    // No chunk extends past a requested position, because only a chunk's last token has logits.
    while (s->computed <= position) {
      const int64_t count = std::min(position + 1 - s->computed, bounds_.tokens);
      scheduler_.take_pages(s.get(), s->computed + count);
      InFlight step{.chunks = {{.sequence = s, .first = s->computed, .count = count, .sampled = 0}},
                    .rows = 1};
      Status status = enqueue_on_all_ranks(&step);
      if (status.ok()) status = device_.wait(device_.stream());
      if (!status.ok()) return end_all_work(status), status;
      s->computed += count;
    }
    out.resize(out.size() + static_cast<size_t>(vocab));
    SLUICE_TRY(device_.copy(out.data() + out.size() - static_cast<size_t>(vocab), logits_,
                            static_cast<size_t>(vocab) * sizeof(float), device_.stream()));
    SLUICE_TRY(device_.wait(device_.stream()));
  }
  return out;
}

}  // namespace sluice
