#include "serve/scheduler.h"

#include <algorithm>
#include <string>

namespace sluice {

Scheduler::Scheduler(const StepBounds& bounds) : bounds_(bounds) {
  // Taken from the back: low numbers first.
  for (int64_t page = bounds.pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

Result<int64_t> Scheduler::add(Request request) {
  const auto n = static_cast<int64_t>(request.prompt.size());
  if (n == 0) return invalid("prompt: wanted at least one token, found none");
  const int64_t room = std::min(bounds_.positions, bounds_.pages * bounds_.page_size);
  if (n >= room)
    return invalid("prompt: wanted fewer than " + std::to_string(room) +
                   " tokens (the context, --max-model-len), found " + std::to_string(n));
  auto s = std::make_shared<Sequence>();
  s->id = next_id_++;
  s->prompt_tokens = n;
  s->tokens = std::move(request.prompt);
  s->tokens_max = request.sampling.max_tokens > 0 ? std::min(room, n + request.sampling.max_tokens) : room;
  s->sampling = std::move(request.sampling);
  const int64_t id = s->id;
  waiting_.push_back(std::move(s));
  return id;
}

void Scheduler::cancel(int64_t id) {
  const auto leaves = [&](const Owned& s) {
    if (s->id != id) return false;
    s->ended = true;
    release_pages(s.get());
    return true;
  };
  std::erase_if(waiting_, leaves);
  std::erase_if(running_, leaves);
}

bool Scheduler::needs_all_tokens() const {
  const auto adjusts = [](const Owned& s) { return s->sampling.adjusts(); };
  return std::any_of(running_.begin(), running_.end(), adjusts) ||
         std::any_of(waiting_.begin(), waiting_.end(), adjusts);
}

void Scheduler::release_pages(Sequence* s) {
  free_.insert(free_.end(), s->pages.rbegin(), s->pages.rend());
  s->pages.clear();
}

// Pages for `tokens` tokens in all; false when there are not enough, and then none is taken.
bool Scheduler::reserve(Sequence* s, int64_t tokens) {
  const int64_t need =
      (tokens + bounds_.page_size - 1) / bounds_.page_size - static_cast<int64_t>(s->pages.size());
  if (need > free_pages()) return false;
  for (int64_t i = 0; i < need; ++i) {
    s->pages.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void Scheduler::preempt_youngest() {
  Owned s = std::move(running_.back());
  running_.pop_back();
  release_pages(s.get());
  s->computed = 0;
  waiting_.push_front(std::move(s));
  ++preemptions_;
}

namespace {

// A sequence whose last token a step in flight draws has nothing left to compute.
int64_t left_of(const Sequence& s) { return s.length() < s.tokens_max ? s.length() - s.computed : 0; }

}  // namespace

std::vector<Chunk> Scheduler::next() {
  std::vector<Chunk> chunks;
  int64_t budget = bounds_.tokens;
  const int64_t preempted_before = preemptions_;
  // Older sequences may take pages from younger ones, never the other way round, so the oldest always makes progress.
  const auto take = [&](Owned s) {
    const int64_t count = std::min(left_of(*s), budget);
    while (!reserve(s.get(), s->computed + count)) {
      const Sequence* youngest = running_.back().get();
      if (youngest == s.get()) return;  // it waits for a free page
      std::erase_if(chunks, [&](const Chunk& c) {
        if (c.sequence.get() == youngest) budget += c.count;
        return c.sequence.get() == youngest;
      });
      preempt_youngest();
    }
    chunks.push_back({s, s->computed, count});
    budget -= count;
  };
  const auto pass = [&](auto wants) {
    for (size_t i = 0; i < running_.size() && budget > 0; ++i)
      if (wants(left_of(*running_[i]))) take(running_[i]);
  };
  pass([](int64_t left) { return left == 1; });
  pass([](int64_t left) { return left > 1; });
  // A sequence that has just lost its pages would take them again.
  if (preemptions_ == preempted_before) admit(budget, &chunks);
  start(&chunks);
  return chunks;
}

void Scheduler::admit(int64_t budget, std::vector<Chunk>* chunks) {
  auto active = std::count_if(running_.begin(), running_.end(),
                              [](const Owned& s) { return s->length() < s->tokens_max; });
  for (; !waiting_.empty() && budget > 0 && active < bounds_.sequences; ++active) {
    const Owned& s = waiting_.front();
    if (s->ahead > 0) return;  // it lost its pages before the host knew its last token
    const int64_t count = std::min(left_of(*s), budget);
    if (!reserve(s.get(), count)) return;
    chunks->push_back({s, 0, count});
    budget -= count;
    running_.push_back(s);
    waiting_.pop_front();
  }
}

// From here on the step is in flight.
void Scheduler::start(std::vector<Chunk>* chunks) {
  int64_t rows = 0;
  for (Chunk& chunk : *chunks) {
    Sequence& s = *chunk.sequence;
    s.computed += chunk.count;
    if (s.computed < s.length()) continue;
    if (s.ahead > 0) chunk.taken = s.drawn_row;
    chunk.number = s.length() - s.prompt_tokens;
    chunk.drawn = s.drawn_row = rows++;
    ++s.ahead;
  }
}

std::vector<GeneratedToken> Scheduler::accept(const std::vector<Chunk>& chunks,
                                              const std::vector<GeneratedToken>& drawn) {
  std::vector<GeneratedToken> out;
  size_t at = 0;
  for (const Chunk& chunk : chunks) {
    if (!chunk.drawn) continue;
    Sequence& s = *chunk.sequence;
    GeneratedToken token = drawn[at++];
    --s.ahead;
    if (s.ended) continue;
    token.request = s.id;
    s.tokens.push_back(token.id);
    const auto& stops = s.sampling.stop_token_ids;
    if (std::find(stops.begin(), stops.end(), token.id) != stops.end()) {
      token.finish = FinishReason::kStop;
    } else if (static_cast<int64_t>(s.tokens.size()) >= s.tokens_max) {
      token.finish = FinishReason::kLength;
    }
    out.push_back(std::move(token));
  }
  for (const GeneratedToken& token : out)
    if (token.finish != FinishReason::kNone) cancel(token.request);
  return out;
}

void Scheduler::take_back(const std::vector<Chunk>& chunks) {
  for (const Chunk& chunk : chunks) {
    Sequence& s = *chunk.sequence;
    if (chunk.drawn) --s.ahead;
    s.computed = std::min(s.computed, chunk.first);  // less where it has lost its pages since
  }
}

}  // namespace sluice
