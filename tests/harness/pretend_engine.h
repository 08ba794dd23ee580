// A scheduler with a simulated device that only stores which prefix each cache slot holds, to check what a step reads.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "engine/scheduler.h"

namespace sluice::test {

using Tokens = std::vector<int32_t>;

inline StepBounds bounds_of(int64_t pages = 32) {
  return {.tokens = 64, .sequences = 4, .positions = 64, .page_size = 4, .pages = pages};
}

inline Request request(Tokens prompt, int64_t max_tokens = 1, uint64_t seed = 0) {
  Request r{.prompt = std::move(prompt)};
  r.sampling.max_tokens = max_tokens;
  r.sampling.seed = seed;
  return r;
}

inline Tokens count_up(int32_t first, int32_t n) {
  Tokens out;
  for (int32_t i = 0; i < n; ++i) out.push_back(first + i);
  return out;
}

// Stands for the keys and values of a token, which depend on all tokens before it.
inline uint64_t prefix_of(const std::vector<int32_t>& tokens) {
  uint64_t h = 1469598103934665603u;
  for (const int32_t token : tokens) h = (h ^ static_cast<uint64_t>(token + 1)) * 1099511628211u;
  return h;
}

// The sample of a request after `tokens`: one of a few tokens, so that answers are often equal.
inline int32_t sample_behind(const std::vector<int32_t>& tokens, const SamplingParams& p, int64_t number) {
  return static_cast<int32_t>(
      (prefix_of(tokens) >> 32 ^ p.seed.value_or(0) * 31 ^ static_cast<uint64_t>(number)) % 3);
}

inline std::vector<int32_t> answer_alone(const Request& request, int64_t positions) {
  std::vector<int32_t> tokens = request.prompt, answer;
  const SamplingParams& p = request.sampling;
  while (static_cast<int64_t>(tokens.size()) < positions) {
    answer.push_back(sample_behind(tokens, p, static_cast<int64_t>(answer.size())));
    tokens.push_back(answer.back());
    if (static_cast<int64_t>(answer.size()) == p.max_tokens) break;
    if (std::count(p.stop_token_ids.begin(), p.stop_token_ids.end(), answer.back())) break;
  }
  return answer;
}

// Runs steps like Engine, some of them ahead.
class PretendEngine {
 public:
  PretendEngine(const StepBounds& bounds, const SchedulerOptions& options, size_t ahead)
      : scheduler(bounds, options),
        bounds_(bounds),
        windows_(options.windows),
        ahead_(ahead),
        slots_(static_cast<size_t>(bounds.pages * bounds.page_size)) {}

  enum class Fault : uint8_t { kNone, kWhenBegun, kWhenAwaited };
  // Returns the tokens that the oldest step sampled; none after a fault.
  std::vector<GeneratedToken> step(Fault fault = Fault::kNone) {
    drop_ended();
    while (in_flight_.size() <= ahead_) {
      if (!in_flight_.empty() && scheduler.needs_all_tokens()) break;
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
      for (Chunk& c : step.chunks) c.dropped = c.masked() && is_late && is_late();
      in_flight_.push_back(std::move(step));
    }
    if (in_flight_.empty()) return {};
    if (fault == Fault::kWhenAwaited) {
      garble();
      for (; !in_flight_.empty(); in_flight_.pop_back()) scheduler.take_back(in_flight_.back().chunks);
      return {};
    }
    const auto out = scheduler.accept(in_flight_.front().chunks, in_flight_.front().sampled);
    in_flight_.pop_front();
    return out;
  }
  // The chunks of the step chosen last.
  const std::vector<Chunk>& chunks() const { return chunks_; }

  // Runs steps until the scheduler is idle, and returns the answers.
  std::map<int64_t, std::vector<int32_t>> finish() {
    std::map<int64_t, std::vector<int32_t>> answers;
    for (int steps = 0; !scheduler.idle() && steps < 10000; ++steps)
      for (const GeneratedToken& t : step()) answers[t.request].push_back(t.id);
    EXPECT_TRUE(scheduler.idle());
    return answers;
  }

  Scheduler scheduler;
  std::function<bool()> is_late;  // whether a mask that a step needs is late; empty: never

 private:
  struct Step {
    std::vector<Chunk> chunks;
    std::vector<GeneratedToken> sampled;
  };
  // Groups of layers share the pages, but store different values.
  uint64_t& slot(const Sequence& s, size_t group, int64_t position) {
    const int64_t page = s.pages[group].page.at(static_cast<size_t>(position / bounds_.page_size));
    return slots_.at(static_cast<size_t>(page * bounds_.page_size + position % bounds_.page_size));
  }
  static uint64_t stored(const std::vector<int32_t>& tokens, size_t group, int64_t at) {
    return prefix_of({tokens.begin(), tokens.begin() + at + 1}) + group;
  }
  // Checks the positions below `end` that the rows of a chunk see.
  void expect_written(const Chunk& c, const std::vector<int32_t>& tokens, int64_t end) {
    for (size_t group = 0; group < windows_.size(); ++group) {
      const int64_t window = windows_[group];
      for (int64_t at = window > 0 ? std::max<int64_t>(0, c.first - window + 1) : 0; at < end; ++at)
        ASSERT_EQ(slot(*c.sequence, group, at), stored(tokens, group, at))
            << "request " << c.sequence->id << ", group " << group << " reads another token at " << at;
    }
  }
  void execute(Step* step) {
    std::vector<std::vector<int32_t>> known;
    std::set<const uint64_t*> written;
    ASSERT_LE(std::ssize(step->chunks), bounds_.sequences);
    for (const Chunk& c : step->chunks) {
      auto& tokens = known.emplace_back(c.sequence->tokens);
      if (c.taken) tokens.push_back(last_sampled_.at(static_cast<size_t>(*c.taken)).id);
      tokens.insert(tokens.end(), c.drafts.begin(), c.drafts.end());
      ASSERT_GE(static_cast<int64_t>(tokens.size()), c.first + c.count);
    }
    // Attention may read positions before a chunk before the step writes anything.
    for (size_t i = 0; i < step->chunks.size(); ++i)
      expect_written(step->chunks[i], known[i], step->chunks[i].first);
    for (size_t i = 0; i < step->chunks.size(); ++i) {
      const Chunk& c = step->chunks[i];
      for (size_t group = 0; group < windows_.size(); ++group) {
        for (int64_t at = c.first; at < c.first + c.count; ++at) {
          uint64_t& to = slot(*c.sequence, group, at);
          ASSERT_TRUE(written.insert(&to).second) << "two chunks or groups of a step write one slot";
          to = stored(known[i], group, at);
        }
      }
    }
    ASSERT_LE(std::ssize(written), bounds_.tokens * std::ssize(windows_));
    ASSERT_LE(rows_of(step->chunks), bounds_.logit_rows());
    for (size_t i = 0; i < step->chunks.size(); ++i) {
      const Chunk& c = step->chunks[i];
      const auto& tokens = known[i];
      expect_written(c, tokens, c.first + c.count);
      if (!c.sampled) continue;
      ASSERT_EQ(*c.sampled, static_cast<int64_t>(step->sampled.size()));
      for (int64_t row = 0; row < c.rows(); ++row) {
        const std::vector<int32_t> seen(tokens.begin(),
                                        tokens.begin() + c.first + c.count - c.rows() + 1 + row);
        step->sampled.push_back({.id = sample_behind(seen, c.sequence->sampling, c.number + row)});
      }
    }
    last_sampled_ = step->sampled;
  }
  static int64_t rows_of(const std::vector<Chunk>& chunks) {
    int64_t rows = 0;
    for (const Chunk& c : chunks) rows += c.rows();
    return rows;
  }
  // After a fault nothing that stands in the cache may be read.
  void garble() { std::ranges::fill(slots_, 0); }
  void drop_ended() {
    const auto ended = [](const Chunk& c) { return c.sequence->ended; };
    while (!in_flight_.empty() && std::ranges::all_of(in_flight_.front().chunks, ended)) {
      (void)scheduler.accept(in_flight_.front().chunks, in_flight_.front().sampled);
      in_flight_.pop_front();
    }
  }

  StepBounds bounds_;
  std::vector<int64_t> windows_;
  size_t ahead_;
  std::vector<uint64_t> slots_;
  std::vector<GeneratedToken> last_sampled_;
  std::vector<Chunk> chunks_;
  std::deque<Step> in_flight_;
};

}  // namespace sluice::test
