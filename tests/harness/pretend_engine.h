// A scheduler with a device that only remembers which prefix stands in which slot of the cache: what a step reads is checked.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "serve/scheduler.h"

namespace sluice::test {

// The keys and values of a token, which depend on all tokens before it.
inline uint64_t prefix_of(const std::vector<int32_t>& tokens) {
  uint64_t h = 1469598103934665603u;
  for (const int32_t token : tokens) h = (h ^ static_cast<uint64_t>(token + 1)) * 1099511628211u;
  return h;
}

// What a request draws behind `tokens`: one of a few tokens, so that answers are often alike.
inline int32_t drawn_behind(const std::vector<int32_t>& tokens, const SamplingParams& p, int64_t number) {
  return static_cast<int32_t>((prefix_of(tokens) >> 32 ^ p.seed * 31 ^ static_cast<uint64_t>(number)) % 3);
}

inline std::vector<int32_t> answer_alone(const Request& request, int64_t positions) {
  std::vector<int32_t> tokens = request.prompt, answer;
  const SamplingParams& p = request.sampling;
  while (static_cast<int64_t>(tokens.size()) < positions) {
    answer.push_back(drawn_behind(tokens, p, static_cast<int64_t>(answer.size())));
    tokens.push_back(answer.back());
    if (static_cast<int64_t>(answer.size()) == p.max_tokens) break;
    if (std::count(p.stop_token_ids.begin(), p.stop_token_ids.end(), answer.back())) break;
  }
  return answer;
}

// Takes steps as Engine does: some of them ahead.
class PretendEngine {
 public:
  PretendEngine(const StepBounds& bounds, const SchedulerOptions& options, size_t ahead)
      : scheduler(bounds, options),
        bounds_(bounds),
        ahead_(ahead),
        slots_(static_cast<size_t>(bounds.pages * bounds.page_size)) {}

  enum class Fault : uint8_t { kNone, kWhenBegun, kWhenAwaited };
  // The tokens that the oldest step drew; none after a fault.
  std::vector<GeneratedToken> step(Fault fault = Fault::kNone) {
    drop_ended();
    while (in_flight_.size() <= ahead_) {
      Step step{scheduler.next(), {}};
      if (step.chunks.empty()) break;
      chunks_ = step.chunks;
      execute(&step);
      if (::testing::Test::HasFatalFailure()) return {};
      if (fault == Fault::kWhenBegun) {
        garble();
        scheduler.take_back(step.chunks);
        break;
      }
      in_flight_.push_back(std::move(step));
    }
    if (in_flight_.empty()) return {};
    if (fault == Fault::kWhenAwaited) {
      garble();
      for (; !in_flight_.empty(); in_flight_.pop_back()) scheduler.take_back(in_flight_.back().chunks);
      return {};
    }
    const auto out = scheduler.accept(in_flight_.front().chunks, in_flight_.front().drawn);
    in_flight_.pop_front();
    return out;
  }
  // Of the step that was chosen last.
  const std::vector<Chunk>& chunks() const { return chunks_; }

  // Steps until nothing is left to do: the answers.
  std::map<int64_t, std::vector<int32_t>> finish() {
    std::map<int64_t, std::vector<int32_t>> answers;
    for (int steps = 0; !scheduler.idle() && steps < 10000; ++steps)
      for (const GeneratedToken& t : step()) answers[t.request].push_back(t.id);
    EXPECT_TRUE(scheduler.idle());
    return answers;
  }

  Scheduler scheduler;

 private:
  struct Step {
    std::vector<Chunk> chunks;
    std::vector<GeneratedToken> drawn;
  };
  uint64_t& slot(const Sequence& s, int64_t position) {
    const int64_t page = s.pages[static_cast<size_t>(position / bounds_.page_size)];
    return slots_[static_cast<size_t>(page * bounds_.page_size + position % bounds_.page_size)];
  }
  void expect_written(const Chunk& c, const std::vector<int32_t>& tokens, int64_t at) {
    ASSERT_EQ(slot(*c.sequence, at), prefix_of({tokens.begin(), tokens.begin() + at + 1}))
        << "request " << c.sequence->id << " reads another token at " << at;
  }
  void execute(Step* step) {
    std::vector<std::vector<int32_t>> known;
    std::set<const uint64_t*> written;
    ASSERT_LE(std::ssize(step->chunks), bounds_.sequences);
    for (const Chunk& c : step->chunks) {
      auto& tokens = known.emplace_back(c.sequence->tokens);
      if (c.taken) tokens.push_back(last_drawn_.at(static_cast<size_t>(*c.taken)).id);
      ASSERT_GE(static_cast<int64_t>(tokens.size()), c.first + c.count);
    }
    // Attention may read what is older than a chunk before the step writes anything.
    for (size_t i = 0; i < step->chunks.size(); ++i)
      for (int64_t at = 0; at < step->chunks[i].first; ++at) expect_written(step->chunks[i], known[i], at);
    for (size_t i = 0; i < step->chunks.size(); ++i) {
      const Chunk& c = step->chunks[i];
      for (int64_t at = c.first; at < c.first + c.count; ++at) {
        uint64_t& to = slot(*c.sequence, at);
        ASSERT_TRUE(written.insert(&to).second) << "two chunks of a step write one slot";
        to = prefix_of({known[i].begin(), known[i].begin() + at + 1});
      }
    }
    ASSERT_LE(std::ssize(written), bounds_.tokens);
    for (size_t i = 0; i < step->chunks.size(); ++i) {
      const Chunk& c = step->chunks[i];
      const auto& tokens = known[i];
      for (int64_t at = 0; at < c.first + c.count; ++at) expect_written(c, tokens, at);
      if (!c.drawn) continue;
      ASSERT_EQ(*c.drawn, static_cast<int64_t>(step->drawn.size()));
      step->drawn.push_back({.id = drawn_behind(tokens, c.sequence->sampling, c.number)});
    }
    last_drawn_ = step->drawn;
  }
  // After a fault nothing that stands in the cache may be read.
  void garble() { std::ranges::fill(slots_, 0); }
  void drop_ended() {
    const auto ended = [](const Chunk& c) { return c.sequence->ended; };
    while (!in_flight_.empty() && std::ranges::all_of(in_flight_.front().chunks, ended)) {
      (void)scheduler.accept(in_flight_.front().chunks, in_flight_.front().drawn);
      in_flight_.pop_front();
    }
  }

  StepBounds bounds_;
  size_t ahead_;
  std::vector<uint64_t> slots_;
  std::vector<GeneratedToken> last_drawn_;
  std::vector<Chunk> chunks_;
  std::deque<Step> in_flight_;
};

}  // namespace sluice::test
