#include "engine/staging.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/places.h"

namespace sluice {
namespace {

// The first `wanted` entries of a row of TopLogprobs; none if `wanted` is absent.
std::vector<TokenLogprob> likeliest(const int32_t* ids, const float* logprobs,
                                    std::optional<int64_t> wanted) {
  std::vector<TokenLogprob> out;
  for (int64_t i = 0; i < wanted.value_or(0) && ids[i] >= 0; ++i) out.push_back({ids[i], logprobs[i]});
  return out;
}

}  // namespace

StepStaging::StepStaging(Device& device, const StepBounds& bounds, size_t groups)
    : device_(device), bounds_(bounds), groups_(groups) {
  Places places;
  const Counts largest{.tokens = bounds.tokens,
                       .sequences = bounds.sequences,
                       .rows = bounds.logit_rows(),
                       .requested = bounds.logit_rows(),
                       .scores = bounds.tokens};
  in_at_ = answers(largest).end;
  places.used = ids_at_ = layout(largest).end;
  places.take(DType::kI32, bounds.tokens);
  bytes_ = places.used;
}

StepStaging::~StepStaging() {
  for (const Block& block : blocks_) device_.release_host(block.host);
  if (block_) device_.release(block_);
}

Result<std::unique_ptr<StepStaging>> StepStaging::make(Device& device, const StepBounds& bounds,
                                                       size_t groups, size_t blocks) {
  std::unique_ptr<StepStaging> out(new StepStaging(device, bounds, groups));
  const Result<void*> block = device.allocate(out->bytes_);
  if (!block.ok()) return block.status();
  out->block_ = static_cast<std::byte*>(block.value());
  for (size_t i = 0; i < blocks; ++i) {
    const Result<void*> host = device.allocate_host(out->ids_at_);
    if (!host.ok()) return host.status();
    Block& one = out->blocks_.emplace_back(Block{static_cast<std::byte*>(host.value()), nullptr});
    auto mark = device.make_mark();
    if (!mark.ok()) return mark.status();
    one.done = std::move(mark).value();
    std::memset(one.host, 0, out->ids_at_);
  }
  // Initializes the gaps between tensors, because copies include them.
  SLUICE_TRY(device.copy(out->block_, out->blocks_.front().host, out->ids_at_, device.stream()));
  SLUICE_TRY(device.wait(device.stream()));
  return out;
}

StepStaging::Counts StepStaging::counts(const std::vector<Chunk>& chunks) {
  Counts out{};
  out.sequences = std::ssize(chunks);
  for (const Chunk& chunk : chunks) {
    out.tokens += chunk.count;
    out.rows += chunk.rows();
    out.requested += chunk.needs_logprobs() ? chunk.rows() : 0;
    out.scores += chunk.scores;
  }
  return out;
}

StepStaging::Answers StepStaging::answers(const Counts& counts) const {
  const int64_t requested = counts.requested, scores = counts.scores;
  Places places;
  Answers at{};
  at.token = places.take(DType::kI32, bounds_.logit_rows());
  at.logprob = places.take(DType::kF32, bounds_.logit_rows());
  at.requested_logprob = places.take(DType::kF32, requested);
  at.rank = places.take(DType::kI32, requested);
  at.top_id = places.take(DType::kI32, requested * kTopLogprobsMax);
  at.top_logprob = places.take(DType::kF32, requested * kTopLogprobsMax);
  at.score = places.take(DType::kF32, scores);
  at.score_rank = places.take(DType::kI32, scores);
  at.score_top_id = places.take(DType::kI32, scores * kTopLogprobsMax);
  at.score_top_logprob = places.take(DType::kF32, scores * kTopLogprobsMax);
  at.end = places.used;
  return at;
}

StepStaging::Layout StepStaging::layout(const Counts& counts) const {
  const auto [tokens, sequences, rows, requested, scores] = counts;
  Places places{in_at_};
  Layout at{};
  at.token_ids = places.take(DType::kI32, tokens);
  at.positions = places.take(DType::kI32, tokens);
  for (size_t group = 0; group < groups_; ++group) at.slot_of.push_back(places.take(DType::kI32, tokens));
  at.q_begin = places.take(DType::kI32, bounds_.sequences + 1);
  at.kv_len = places.take(DType::kI32, bounds_.sequences);
  at.logit_rows = places.take(DType::kI32, rows);
  at.temperature = places.take(DType::kF32, rows);
  at.top_k = places.take(DType::kI32, rows);
  at.top_p = places.take(DType::kF32, rows);
  at.min_p = places.take(DType::kF32, rows);
  at.seed = places.take(DType::kI64, rows);
  at.step = places.take(DType::kI64, rows);
  at.requested_row = places.take(DType::kI32, requested);
  at.score_row = places.take(DType::kI32, scores);
  // Leaves space for a full last slice, because TopLogprobs reads a token for every row of logits.
  at.scored_token = places.take(DType::kI32, scores > 0 ? scores + bounds_.logit_rows() : 0);
  at.scored_row = places.take(DType::kI32, std::min(scores, bounds_.logit_rows()));
  // Page table rows beyond the step's sequences are neither written nor copied. Their memory belongs to other
  // tensors, and no kernel reads it as a page table.
  for (size_t group = 0; group < groups_; ++group)
    at.page_table.push_back(places.take(DType::kI32, sequences * bounds_.pages_per_seq()));
  at.end = places.used;
  return at;
}

Tensor StepStaging::view(size_t at, DType dtype, std::initializer_list<int64_t> shape) const {
  return make_tensor(block_ + at, dtype, shape, device_.info().backend);
}

StepTensors StepStaging::tensors(const Layout& at, const Counts& counts, TakeIds ids) const {
  const auto [tokens, sequences, rows, requested, scores] = counts;
  const Answers to = answers(counts);
  StepTensors out;
  const Tensor sampled = view(to.token, DType::kI32, {bounds_.logit_rows()});
  const Tensor written = view(at.token_ids, DType::kI32, {tokens});
  out.take = {.ids = written, .sampled = sampled, .token_of = {}, .y = view(ids_at_, DType::kI32, {tokens})};
  out.in.token_ids = ids == TakeIds::kFromSampled ? out.take.y : written;
  for (size_t group = 0; group < groups_; ++group)
    out.in.tables.push_back(
        {.positions = view(at.positions, DType::kI32, {tokens}),
         .slot_of = view(at.slot_of[group], DType::kI32, {tokens}),
         .q_begin = view(at.q_begin, DType::kI32, {bounds_.sequences + 1}),
         .kv_len = view(at.kv_len, DType::kI32, {bounds_.sequences}),
         .page_table = view(at.page_table[group], DType::kI32, {bounds_.sequences, bounds_.pages_per_seq()}),
         .rope = {}});
  out.in.logit_rows = view(at.logit_rows, DType::kI32, {rows});
  out.sample = {.logits = {},
                .temperature = view(at.temperature, DType::kF32, {rows}),
                .top_k = view(at.top_k, DType::kI32, {rows}),
                .top_p = view(at.top_p, DType::kF32, {rows}),
                .min_p = view(at.min_p, DType::kF32, {rows}),
                .seed = view(at.seed, DType::kI64, {rows}),
                .step = view(at.step, DType::kI64, {rows}),
                .token = view(to.token, DType::kI32, {rows}),
                .logprob = view(to.logprob, DType::kF32, {rows})};
  out.top = {.logits = {},
             .token = sampled,
             .row = view(at.requested_row, DType::kI32, {requested}),
             .logprob = view(to.requested_logprob, DType::kF32, {requested}),
             .rank = view(to.rank, DType::kI32, {requested}),
             .top_id = view(to.top_id, DType::kI32, {requested, kTopLogprobsMax}),
             .top_logprob = view(to.top_logprob, DType::kF32, {requested, kTopLogprobsMax})};
  out.scores = score_tensors(at, counts);
  return out;
}

std::vector<StepTensors::Scores> StepStaging::score_tensors(const Layout& at, const Counts& counts) const {
  const Answers to = answers(counts);
  std::vector<StepTensors::Scores> out;
  for (int64_t first = 0; first < counts.scores; first += bounds_.logit_rows()) {
    const int64_t rows = std::min(bounds_.logit_rows(), counts.scores - first);
    const auto words = [&](size_t begin, int64_t of_row) {
      return begin + static_cast<size_t>(bytes_of(DType::kI32, first * of_row));
    };
    out.push_back({.logit_rows = view(words(at.score_row, 1), DType::kI32, {rows}),
                   .top = {.logits = {},
                           .token = view(words(at.scored_token, 1), DType::kI32, {bounds_.logit_rows()}),
                           .row = view(at.scored_row, DType::kI32, {rows}),
                           .logprob = view(words(to.score, 1), DType::kF32, {rows}),
                           .rank = view(words(to.score_rank, 1), DType::kI32, {rows}),
                           .top_id = view(words(to.score_top_id, kTopLogprobsMax), DType::kI32,
                                          {rows, kTopLogprobsMax}),
                           .top_logprob = view(words(to.score_top_logprob, kTopLogprobsMax), DType::kF32,
                                               {rows, kTopLogprobsMax})}});
  }
  return out;
}

void StepStaging::write(std::byte* host, const Layout& l, const std::vector<Chunk>& chunks) const {
  int64_t row = 0, sequence = 0;
  size_t sampled = 0, requested = 0;
  auto* const q_begin = at<int32_t>(host, l.q_begin);
  auto* const kv_len = at<int32_t>(host, l.kv_len);
  for (const Chunk& chunk : chunks) {
    const Sequence& s = *chunk.sequence;
    q_begin[sequence] = static_cast<int32_t>(row);
    kv_len[sequence] = static_cast<int32_t>(chunk.first + chunk.count);
    for (int64_t i = 0; i < chunk.count; ++i, ++row) {
      at<int32_t>(host, l.token_ids)[row] = chunk.token(i);
      at<int32_t>(host, l.positions)[row] = static_cast<int32_t>(chunk.first + i);
    }
    ++sequence;
    const SamplingParams& p = s.sampling;
    for (int64_t i = 0; i < chunk.rows(); ++i, ++sampled) {
      at<int32_t>(host, l.logit_rows)[sampled] = static_cast<int32_t>(row - chunk.rows() + i);
      at<float>(host, l.temperature)[sampled] = static_cast<float>(*p.temperature);
      at<int32_t>(host, l.top_k)[sampled] = static_cast<int32_t>(*p.top_k);
      at<float>(host, l.top_p)[sampled] = static_cast<float>(*p.top_p);
      at<float>(host, l.min_p)[sampled] = static_cast<float>(*p.min_p);
      at<int64_t>(host, l.seed)[sampled] = static_cast<int64_t>(*p.seed);
      at<int64_t>(host, l.step)[sampled] = chunk.number + i;
      if (chunk.needs_logprobs())
        at<int32_t>(host, l.requested_row)[requested++] = static_cast<int32_t>(sampled);
    }
  }
  // Entries beyond the step's sequences have no tokens.
  std::fill(kv_len + sequence, kv_len + bounds_.sequences, 0);
  std::fill(q_begin + sequence, q_begin + bounds_.sequences + 1, static_cast<int32_t>(row));
}

void StepStaging::write_scores(std::byte* host, const Layout& l, const std::vector<Chunk>& chunks) const {
  int64_t row = 0, score = 0;
  for (const Chunk& chunk : chunks) {
    for (int64_t i = 0; i < chunk.scores; ++i, ++score) {
      at<int32_t>(host, l.score_row)[score] = static_cast<int32_t>(row + i);
      at<int32_t>(host, l.scored_token)[score] =
          chunk.sequence->tokens[static_cast<size_t>(chunk.first + i + 1)];
    }
    row += chunk.count;
  }
  if (score == 0) return;
  // Each slice's logits begin at row 0. Padding tokens after the last score are 0.
  std::iota(at<int32_t>(host, l.scored_row),
            at<int32_t>(host, l.scored_row) + std::min(score, bounds_.logit_rows()), 0);
  std::fill_n(at<int32_t>(host, l.scored_token) + score, bounds_.logit_rows(), 0);
}

// No query attends to a page that has left the window, so its table entry may be any valid page. The entry must be
// valid, because a kernel may skip positions without a page, which would change the order of its sums.
void StepStaging::write_pages(std::byte* host, const Layout& l, const std::vector<Chunk>& chunks) const {
  for (size_t group = 0; group < groups_; ++group) {
    auto* slot = at<int32_t>(host, l.slot_of[group]);
    auto* table = at<int32_t>(host, l.page_table[group]);
    for (const Chunk& chunk : chunks) {
      const GroupPages& own = chunk.sequence->pages[group];
      const auto passed = static_cast<ptrdiff_t>(own.first);
      std::fill_n(table, passed, own.page[static_cast<size_t>(own.first)]);
      std::copy(own.page.begin() + passed, own.page.end(), table + passed);
      table += bounds_.pages_per_seq();
      for (int64_t position = chunk.first; position < chunk.first + chunk.count; ++position)
        *slot++ = static_cast<int32_t>(own.page[static_cast<size_t>(position / bounds_.page_size)] *
                                           bounds_.page_size +
                                       position % bounds_.page_size);
    }
  }
}

Result<StepTensors> StepStaging::fill(size_t block, const std::vector<Chunk>& chunks, TakeIds ids) {
  const Counts n = counts(chunks);
  const Layout l = layout(n);
  std::byte* const host = blocks_[block].host;
  write(host, l, chunks);
  write_scores(host, l, chunks);
  write_pages(host, l, chunks);
  SLUICE_TRY(device_.copy(block_ + in_at_, host + in_at_, l.end - in_at_, device_.stream()));
  StepTensors out = tensors(l, n, ids);
  for (StepTables& tables : out.in.tables)
    for (const Chunk& chunk : chunks) tables.rows_max = std::max(tables.rows_max, chunk.count);
  return out;
}

Status StepStaging::fetch(size_t block, const std::vector<Chunk>& chunks) {
  const Stream stream = device_.stream();
  const Block& to = blocks_[block];
  const Counts n = counts(chunks);
  const Answers from = answers(n);
  // One copy, which includes the small gaps between tensors.
  const size_t end = n.requested + n.scores > 0
                         ? from.end
                         : from.logprob + static_cast<size_t>(bytes_of(DType::kF32, n.rows));
  if (n.rows + n.scores > 0) SLUICE_TRY(device_.copy(to.host, block_, end, stream));
  return device_.place(*to.done, stream);
}

Result<std::vector<GeneratedToken>> StepStaging::sampled(size_t block, const std::vector<Chunk>& chunks) {
  SLUICE_TRY(device_.wait_for(*blocks_[block].done));
  std::byte* const host = blocks_[block].host;
  const Answers from = answers(counts(chunks));
  std::vector<GeneratedToken> out;
  size_t requested = 0;
  for (const Chunk& chunk : chunks)
    for (int64_t i = 0; i < chunk.rows(); ++i) {
      const size_t row = out.size();
      GeneratedToken& token = out.emplace_back();
      token.id = at<int32_t>(host, from.token)[row];
      token.logprob = at<float>(host, from.logprob)[row];
      if (!chunk.needs_logprobs()) continue;
      token.logprob = at<float>(host, from.requested_logprob)[requested];
      const std::optional<int64_t> wanted = chunk.sequence->sampling.logprobs;
      if (wanted) token.rank = at<int32_t>(host, from.rank)[requested];
      token.top_logprobs = likeliest(at<int32_t>(host, from.top_id) + requested * kTopLogprobsMax,
                                     at<float>(host, from.top_logprob) + requested * kTopLogprobsMax, wanted);
      ++requested;
    }
  return out;
}

std::vector<TokenScore> StepStaging::scores(size_t block, const std::vector<Chunk>& chunks) const {
  std::byte* const host = blocks_[block].host;
  const Answers from = answers(counts(chunks));
  std::vector<TokenScore> out;
  for (const Chunk& chunk : chunks)
    for (int64_t i = 0; i < chunk.scores; ++i) {
      const size_t row = out.size();
      out.push_back(
          {.logprob = at<float>(host, from.score)[row],
           .top_logprobs = likeliest(at<int32_t>(host, from.score_top_id) + row * kTopLogprobsMax,
                                     at<float>(host, from.score_top_logprob) + row * kTopLogprobsMax,
                                     chunk.sequence->sampling.prompt_logprobs)});
    }
  return out;
}

}  // namespace sluice
