// Which tokens the next step computes, and in which pages their keys and values lie. Host data only.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "nn/attention.h"
#include "serve/adjusted_tokens.h"
#include "serve/request.h"

namespace sluice {

struct Sequence {
  int64_t id = 0;
  std::vector<int32_t> tokens;  // prompt and what was generated, as far as the host knows it
  int64_t prompt_tokens = 0;
  int64_t tokens_max = 0;  // prompt and generated
  int64_t ahead = 0;       // tokens behind those, which steps in flight draw
  int64_t drawn_row = 0;   // of the last of them among the tokens of its step
  int64_t computed = 0;    // tokens whose keys and values are in the cache once the steps in flight are done
  bool ended = false;      // nobody waits for what steps in flight draw for it
  std::vector<int32_t> pages;
  SamplingParams sampling;
  AdjustedTokens adjusted;  // where sampling.adjusts()
  int64_t length() const { return static_cast<int64_t>(tokens.size()) + ahead; }
};

// Tokens [first, first + count) of one sequence in one step.
struct Chunk {
  std::shared_ptr<Sequence> sequence;
  int64_t first = 0, count = 0;
  // Where the host does not know its last token: the row of it among those that the step before draws.
  std::optional<int64_t> taken = {};
  // Its row among the tokens that this step draws; none where later tokens of the sequence are known.
  std::optional<int64_t> drawn = {};
  int64_t number = 0;  // of the drawn token in its answer, counted from 0

  // Whether penalties or biases change the logits that it draws from.
  bool adjusts() const { return drawn && sequence->sampling.adjusts(); }
  // Whether TopLogprobs looks at them: for the request; and where they change, since Sample then knows the changed ones alone.
  bool lists() const { return drawn && (sequence->sampling.logprobs >= 0 || adjusts()); }
};

// Decodes first, then prompts in chunks, oldest first, up to bounds.tokens a step and bounds.sequences at once. When pages
// run out, the youngest sequence loses its pages and is recomputed later from its tokens. Its samples stay the same,
// since a sample depends on the seed and the number of the token alone.
//
// A step may be chosen before the tokens of the step before are known, of one step and no more: a sequence goes on with the
// token that it will have drawn. If that token ends it, the row was computed for nothing, and what it draws is dropped. Steps run
// in the order in which they were chosen, so pages change hands as soon as a step is chosen.
class Scheduler {
 public:
  explicit Scheduler(const StepBounds& bounds);

  // kInvalidArgument: an empty prompt, or one that leaves no room for a token in bounds.positions or in the whole cache.
  Result<int64_t> add(Request request);
  void cancel(int64_t id);  // of a request that is finished or unknown: nothing
  bool idle() const { return waiting_.empty() && running_.empty(); }
  // Whether a request draws by all tokens before the drawn one: no step may be chosen before those are accepted.
  bool needs_all_tokens() const;

  // The chunks of the next step; empty when there is nothing to do, or nothing before the steps in flight are accepted. Pages
  // for them are taken.
  std::vector<Chunk> next();
  // Takes what the oldest step in flight computed: a token for each chunk that draws, in order. Finished sequences leave.
  std::vector<GeneratedToken> accept(const std::vector<Chunk>& chunks,
                                     const std::vector<GeneratedToken>& drawn);
  // The youngest step in flight has failed, or never began: its tokens are to be computed again.
  void take_back(const std::vector<Chunk>& chunks);

  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t preemptions() const { return preemptions_; }

 private:
  using Owned = std::shared_ptr<Sequence>;
  bool reserve(Sequence* sequence, int64_t tokens);
  void release_pages(Sequence* sequence);
  void preempt_youngest();
  void admit(int64_t budget, std::vector<Chunk>* chunks);
  static void start(std::vector<Chunk>* chunks);

  StepBounds bounds_;
  std::vector<int32_t> free_;
  std::deque<Owned> waiting_;
  std::vector<Owned> running_;  // oldest first
  int64_t next_id_ = 0, preemptions_ = 0;
};

}  // namespace sluice
