#include "engine/scheduler.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace sluice {

Scheduler::Scheduler(const StepBounds& bounds, const SchedulerOptions& options)
    : bounds_(bounds),
      options_(options),
      pool_(bounds.pages, options.hash, options.windows),
      room_(longest_sequence()) {
  if (options_.speculation.method != DraftMethod::kNone)
    speculation_.emplace(options_.speculation, options_.costs);
}

int64_t Scheduler::longest_sequence() const {
  int64_t fits = 0;
  for (int64_t low = 0, high = bounds_.positions; low <= high;) {
    const int64_t tokens = (low + high) / 2;
    const int64_t pages = pages_needed(options_.windows, bounds_.page_size,
                                       {.tokens = tokens, .step_tokens = std::min(tokens, bounds_.tokens)});
    if (pages <= bounds_.pages) fits = tokens;
    (pages <= bounds_.pages ? low : high) = pages <= bounds_.pages ? tokens + 1 : tokens - 1;
  }
  return fits;
}

Result<int64_t> Scheduler::add(Request request) {
  const auto n = static_cast<int64_t>(request.prompt.size());
  if (n == 0) return invalid("prompt: wanted at least one token, found none");
  if (n >= room_)
    return invalid("prompt: wanted fewer than " + std::to_string(room_) +
                   " tokens (the context, max_model_len), found " + std::to_string(n));
  auto s = std::make_shared<Sequence>();
  s->id = next_id_++;
  s->prompt_tokens = n;
  s->tokens = std::move(request.prompt);
  const std::optional<int64_t> max_tokens = request.sampling.max_tokens;
  s->tokens_max = max_tokens ? std::min(room_, n + *max_tokens) : room_;
  s->sampling = complete(std::move(request.sampling));
  if (request.filter) s->mask = std::make_shared<TokenMask>(std::move(request.filter), n);
  const int64_t id = s->id;
  waiting_.push_back(std::move(s));
  return id;
}

void Scheduler::cancel(int64_t id) {
  const auto leaves = [&](const Owned& s) {
    if (s->id != id) return false;
    s->ended = true;
    if (s->mask) s->mask->stop();
    drop_pages(s.get());
    return true;
  };
  std::erase_if(waiting_, leaves);
  std::erase_if(running_, leaves);
}

bool Scheduler::needs_all_tokens() const {
  // A draft layer reads the last sampled tokens, so the host must have them before the next step.
  if (has_drafts_ || has_draft_layer(options_.speculation.method)) return true;
  const auto needs = [](const Owned& s) { return s->needs_all_tokens(); };
  return std::any_of(running_.begin(), running_.end(), needs) ||
         std::any_of(waiting_.begin(), waiting_.end(), needs);
}

std::vector<std::shared_ptr<Sequence>> Scheduler::filtered() const {
  std::vector<Owned> out;
  const auto has_filter = [](const Owned& s) { return s->mask != nullptr; };
  std::copy_if(running_.begin(), running_.end(), std::back_inserter(out), has_filter);
  std::copy_if(waiting_.begin(), waiting_.end(), std::back_inserter(out), has_filter);
  return out;
}

void Scheduler::drop_pages(Sequence* s) {
  for (int64_t i = s->pages.empty() ? 0 : std::ssize(s->pages.front().page); i-- > 0;)
    for (const GroupPages& own : s->pages)
      if (i >= own.first) pool_.release(own.page[static_cast<size_t>(i)], Reuse::kLikely);
  s->pages.clear();
  pool_.release_prefix(std::exchange(s->prefix, kNoPrefix));
  s->published = s->computed = 0;
}

// The first page that a token at position `first` or later can attend to. The window is measured from the
// last page boundary at or before `first` (scheduler.h).
int64_t Scheduler::first_page(size_t group, int64_t first) const {
  const int64_t window = options_.windows[group], size = bounds_.page_size;
  return window == 0 ? 0 : std::max<int64_t>(0, first / size * size - window + 1) / size;
}

Reuse Scheduler::reuse_of(const Sequence& s, size_t group, int64_t page) const {
  for (const int64_t end : {s.known, s.prompt_tokens / bounds_.page_size})
    if (page < end && page >= first_page(group, end * bounds_.page_size)) return Reuse::kLikely;
  return Reuse::kUnlikely;
}

// Releases the pages to which none of the tokens still to be computed can attend.
void Scheduler::release_passed(Sequence* s) {
  for (size_t group = 0; group < s->pages.size(); ++group) {
    GroupPages& own = s->pages[group];
    for (const int64_t end = first_page(group, s->computed); own.first < end; ++own.first)
      pool_.release(std::exchange(own.page[static_cast<size_t>(own.first)], kNoPage),
                    reuse_of(*s, group, own.first));
  }
}

// Allocates pages until the sequence has enough for `tokens` tokens in total. If there are too few free
// pages, returns false and allocates none.
bool Scheduler::reserve(Sequence* s, int64_t tokens) {
  s->pages.resize(options_.windows.size());
  const int64_t need = pages_of(tokens) - std::ssize(s->pages.front().page);
  if (need * std::ssize(s->pages) > free_pages()) return false;
  for (GroupPages& own : s->pages)
    for (int64_t i = 0; i < need; ++i) own.page.push_back(pool_.take());
  return true;
}

// Preempts the youngest sequence, which is later recomputed from its tokens.
void Scheduler::stop_youngest() {
  drop_pages(running_.back().get());
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
}

std::span<const int32_t> Scheduler::page_tokens(const Sequence& s, int64_t page) const {
  const auto size = static_cast<size_t>(bounds_.page_size);
  return std::span(s.tokens).subspan(static_cast<size_t>(page) * size, size);
}

// Acquires the pages of the longest cached prefix from which the sequence can continue. The sequence must
// have no pages, and all its tokens must be known.
void Scheduler::take_prefix(Sequence* s) {
  if (!options_.prefix_cache || s->needs_scores()) return;
  const PrefixTree& tree = pool_.prefixes();
  const size_t groups = options_.windows.size();
  // chain: the cached prefixes found. unbroken: per group, the number of consecutive cached pages at the end of the chain.
  std::vector<int64_t> chain, unbroken(groups);
  for (const int64_t pages_max = (s->length() - 1) / bounds_.page_size; std::ssize(chain) < pages_max;) {
    const auto next = tree.find(chain.empty() ? kNoPrefix : chain.back(), page_tokens(*s, std::ssize(chain)));
    if (!next) break;
    chain.push_back(*next);
    const int64_t end = std::ssize(chain);
    bool all = true;
    for (size_t group = 0; group < groups; ++group) {
      int64_t& pages = unbroken[group];
      pages = tree.page(*next, group) == kNoPage ? 0 : pages + 1;
      all = all && pages >= end - first_page(group, end * bounds_.page_size);
    }
    if (all) s->published = end;
  }
  s->known = std::ssize(chain);
  if (s->published == 0) return;
  s->prefix = chain[static_cast<size_t>(s->published) - 1];
  pool_.hold_prefix(s->prefix);
  s->computed = s->published * bounds_.page_size;
  s->pages.resize(groups);
  for (size_t group = 0; group < groups; ++group) {
    GroupPages& own = s->pages[group];
    own.first = first_page(group, s->computed);
    own.page.assign(static_cast<size_t>(s->published), kNoPage);
    for (auto i = static_cast<size_t>(own.first); i < own.page.size(); ++i)
      pool_.acquire(own.page[i] = tree.page(chain[i], group));
  }
}

// Whether a published page holds the same tokens as the first unpublished page of `s`.
bool Scheduler::has_twin(const Sequence& s) const {
  const auto prefix = pool_.prefixes().find(s.prefix, page_tokens(s, s.published));
  if (!prefix) return false;
  for (size_t group = 0; group < s.pages.size(); ++group)
    if (s.published >= s.pages[group].first && pool_.prefixes().page(*prefix, group) != kNoPage) return true;
  return false;
}

// Adds the sequence's full pages whose tokens the host knows to the prefix cache, in order. If several pages
// hold the same tokens, only one of them is added.
void Scheduler::publish(Sequence* s, Twin twin) {
  if (!options_.prefix_cache) return;
  // With a mask, the last token's keys and values may be written again ("Late masks" in scheduler.h).
  const int64_t settled = std::ssize(s->tokens) - (s->mask ? 1 : 0);
  const int64_t full = std::min(s->computed, settled) / bounds_.page_size;
  for (; s->published < full; ++s->published) {
    if (twin == Twin::kKeepsOwn && has_twin(*s)) return;
    const int64_t prefix = pool_.hold_prefix(s->prefix, page_tokens(*s, s->published));
    pool_.release_prefix(std::exchange(s->prefix, prefix));
    for (size_t group = 0; group < s->pages.size(); ++group) {
      if (s->published < s->pages[group].first) continue;
      int32_t& own = s->pages[group].page[static_cast<size_t>(s->published)];
      const int32_t other = pool_.prefixes().page(prefix, group);
      if (other == kNoPage) {
        pool_.publish(own, prefix, group);
      } else {
        pool_.acquire(other);
        pool_.release(std::exchange(own, other), Reuse::kLikely);
      }
    }
  }
}

namespace {

// Tokens that the sequence has left to compute; 0 if a step in flight samples the last token of its answer.
int64_t left_of(const Sequence& s) { return s.length() < s.tokens_max ? s.length() - s.computed : 0; }

}  // namespace

std::vector<Chunk> Scheduler::next() {
  std::vector<Chunk> chunks;
  int64_t budget = bounds_.tokens, prompts = budget;  // tokens and prompt tokens that still fit
  const auto decodes = [](const Owned& s) { return left_of(*s) == 1 && !s->sits_out; };
  // Drafts get the tokens that remain after one token per decoding sequence.
  int64_t drafts = std::min(bounds_.logit_rows() - bounds_.sequences,
                            budget - std::count_if(running_.begin(), running_.end(), decodes));
  const int64_t preempted_before = preemptions_;
  for (const Owned& s : running_) release_passed(s.get());
  // A sequence may preempt only younger sequences, so the oldest always makes progress.
  const auto take = [&](Owned s, int64_t limit) -> int64_t {
    const int64_t count = std::min(left_of(*s), limit);
    while (!reserve(s.get(), s->computed + count)) {
      const Sequence* youngest = running_.back().get();
      if (youngest == s.get()) return 0;  // it waits for free pages
      std::erase_if(chunks, [&](const Chunk& c) {
        if (c.sequence.get() == youngest) budget += c.count;
        return c.sequence.get() == youngest;
      });
      stop_youngest();
      ++preemptions_;
    }
    chunks.push_back({s, s->computed, count});
    budget -= count;
    return count;
  };
  for (size_t i = 0; i < running_.size() && budget > 0; ++i)
    if (decodes(running_[i]) && take(running_[i], budget) > 0) {
      add_drafts(&chunks.back(), std::min(drafts, budget));
      drafts -= std::ssize(chunks.back().drafts), budget -= std::ssize(chunks.back().drafts);
    }
  if (options_.mixed_prefill_tokens > 0 && !chunks.empty()) prompts = options_.mixed_prefill_tokens;
  for (size_t i = 0; i < running_.size() && std::min(budget, prompts) > 0; ++i)
    if (left_of(*running_[i]) > 1) prompts -= take(running_[i], std::min(budget, prompts));
  const auto active = std::count_if(running_.begin(), running_.end(),
                                    [](const Owned& s) { return s->length() < s->tokens_max; });
  int64_t rows = 0;
  for (Chunk& chunk : chunks) start(&chunk, &rows);
  // Admits no sequence after a preemption, because the preempted sequence is the first in the queue and would
  // get its pages back.
  if (preemptions_ == preempted_before)
    admit({.tokens = std::min(budget, prompts), .sequences = bounds_.sequences - active, .rows = rows},
          &chunks);
  // A sequence keeps its own page even if another page holds the same tokens: this step may write both pages,
  // and two sequences must not write to one page.
  for (const Chunk& chunk : chunks) publish(chunk.sequence.get(), Twin::kKeepsOwn);
  return chunks;
}

// Adds the sequence's drafts to its chunk if there are pages for them; never preempts a sequence.
void Scheduler::add_drafts(Chunk* chunk, int64_t limit) {
  Sequence& s = *chunk->sequence;
  if (s.ahead > 0) return;
  const auto wanted = static_cast<ptrdiff_t>(std::min(limit, std::ssize(s.drafts_now())));
  if (wanted < 1 || !reserve(&s, s.computed + 1 + wanted)) return;
  chunk->drafts.assign(s.drafts.begin(), s.drafts.begin() + wanted);
  chunk->count += wanted;
}

// Chooses drafts for all decoding sequences.
void Scheduler::draft() {
  if (!speculation_) return;
  std::vector<Sequence*> decoding;
  for (const Owned& s : running_)
    if (std::ssize(s->tokens) > s->prompt_tokens && s->length() - s->computed <= 1)
      decoding.push_back(s.get());
  has_drafts_ = speculation_->draft(decoding, bounds_.logit_rows() - bounds_.sequences);
  if (!has_draft_layer(options_.speculation.method)) return;
  // The draft layer writes keys and values of the drafts, so it needs pages for them.
  for (Sequence* s : decoding)
    if (!s->drafts.empty() && !reserve(s, s->computed + 1 + std::ssize(s->drafts))) s->drafts.clear();
}

// Whether this step computes the next page that `s` needs after its cached pages.
bool Scheduler::computes_next_page(const std::vector<Chunk>& chunks, const Sequence& s) const {
  const auto end = static_cast<size_t>((s.published + 1) * bounds_.page_size);
  if (!options_.prefix_cache || s.needs_scores() || end >= s.tokens.size()) return false;
  return std::any_of(chunks.begin(), chunks.end(), [&](const Chunk& chunk) {
    const Sequence& other = *chunk.sequence;
    return static_cast<size_t>(chunk.first) < end &&
           std::min(static_cast<size_t>(other.computed), other.tokens.size()) >= end &&
           std::equal(s.tokens.begin(), s.tokens.begin() + static_cast<ptrdiff_t>(end), other.tokens.begin());
  });
}

void Scheduler::admit(Room room, std::vector<Chunk>* chunks) {
  for (auto at = waiting_.begin(); at != waiting_.end() && room.tokens > 0 && room.sequences > 0;) {
    const Owned s = *at;
    if (s->ahead > 0) return;  // preempted before the host knew its last token
    take_prefix(s.get());
    if (computes_next_page(*chunks, *s)) {
      drop_pages(s.get());
      ++at;
      continue;
    }
    const int64_t tokens = std::min(left_of(*s), room.tokens);
    if (!reserve(s.get(), s->computed + tokens)) return drop_pages(s.get());
    count_query(s.get());
    chunks->push_back({s, s->computed, tokens});
    start(&chunks->back(), &room.rows);
    room.tokens -= tokens, --room.sequences;
    running_.push_back(s);
    at = waiting_.erase(at);
  }
}

void Scheduler::count_query(Sequence* s) {
  if (!options_.prefix_cache || s->cached_tokens) return;
  s->cached_tokens = s->computed;
  if (s->needs_scores()) return;  // its prefix was not looked up
  queries_ += s->length();
  hits_ += s->computed;
}

// Marks the chunk as in flight and assigns the rows that it samples. *rows: the number of rows that the
// step's earlier chunks sample.
void Scheduler::start(Chunk* chunk, int64_t* rows) {
  Sequence& s = *chunk->sequence;
  if (s.needs_scores())
    chunk->scores = std::clamp<int64_t>(s.prompt_tokens - 1 - chunk->first, 0, chunk->count);
  s.computed += chunk->count;
  if (s.computed < s.length()) return;
  if (s.ahead > 0) chunk->taken = s.sampled_row;
  chunk->number = s.length() - s.prompt_tokens;
  chunk->sampled = s.sampled_row = *rows;
  *rows += chunk->rows();
  ++s.ahead;
}

// Appends the scores of the chunk's prompt tokens. After a preemption tokens are computed again; tokens that
// already have a score are skipped.
void Scheduler::take_scores(const Chunk& chunk, std::span<TokenScore> scores) {
  Sequence& s = *chunk.sequence;
  for (int64_t i = std::max<int64_t>(0, s.scored - chunk.first); i < chunk.scores; ++i, ++s.scored)
    s.scores.push_back(std::move(scores[static_cast<size_t>(i)]));
}

// Appends the chunk's accepted tokens to `out`. Returns the number of rows that the chunk sampled.
size_t Scheduler::take_tokens(const Chunk& chunk, std::span<const GeneratedToken> sampled,
                              std::vector<GeneratedToken>* out) {
  const auto rows = static_cast<size_t>(chunk.rows());
  if (rows == 0) return 0;
  Sequence& s = *chunk.sequence;
  --s.ahead;
  if (s.ended) return rows;
  s.sits_out = chunk.dropped;
  if (chunk.dropped) {
    s.computed -= chunk.rows();
    return rows;
  }
  const auto& stops = s.sampling.stop_token_ids;
  const int64_t length = std::ssize(s.tokens);
  size_t taken = 0;
  int64_t accepted = 0;
  for (bool goes_on = true; goes_on; ++taken) {
    GeneratedToken token = sampled[taken];
    token.request = s.id;
    token.cached_tokens = s.cached_tokens.value_or(0);
    token.prompt = std::exchange(s.scores, {});
    s.tokens.push_back(token.id);
    if (std::find(stops.begin(), stops.end(), token.id) != stops.end()) {
      token.finish = FinishReason::kStop;
    } else if (static_cast<int64_t>(s.tokens.size()) >= s.tokens_max) {
      token.finish = FinishReason::kLength;
    }
    const bool accepts =
        taken + 1 < rows && speculation_->accepts(s.id, length, taken, chunk.drafts[taken], token.id);
    accepted += accepts ? 1 : 0;
    goes_on = accepts && token.finish == FinishReason::kNone;
    out->push_back(std::move(token));
  }
  s.has_features = true;
  // Positions after a rejected draft are recomputed.
  s.computed -= static_cast<int64_t>(rows - taken);
  if (!chunk.drafts.empty()) speculation_->verified(&s, chunk.rows() - 1, accepted);
  // Replacing the sequence's page by another with the same tokens is safe: steps in flight have their own
  // page tables.
  publish(&s, Twin::kTakesOther);
  return rows;
}

std::vector<GeneratedToken> Scheduler::accept(const std::vector<Chunk>& chunks,
                                              const std::vector<GeneratedToken>& sampled,
                                              std::vector<TokenScore> scores) {
  std::vector<GeneratedToken> out;
  for (const Owned& s : running_) s->has_features = false;
  size_t at = 0, scores_at = 0;
  for (const Chunk& chunk : chunks) {
    const auto count = static_cast<size_t>(chunk.scores);
    take_scores(chunk, std::span(scores).subspan(std::exchange(scores_at, scores_at + count), count));
    at += take_tokens(chunk, std::span(sampled).subspan(at), &out);
  }
  for (const GeneratedToken& token : out)
    if (token.finish != FinishReason::kNone) cancel(token.request);
  draft();
  return out;
}

void Scheduler::take_back(const std::vector<Chunk>& chunks) {
  for (const Chunk& chunk : chunks)
    if (chunk.sampled) --chunk.sequence->ahead;
  while (!running_.empty()) stop_youngest();
  pool_.forget_all();
}

void Scheduler::take_pages(Sequence* s, int64_t tokens) {
  release_passed(s);
  (void)reserve(s, tokens);
}

PrefixCacheCounts Scheduler::prefix_cache() const {
  return {.queries = queries_, .hits = hits_, .evictions = pool_.evictions()};
}

}  // namespace sluice
