// Which tokens the next step computes, and in which pages their keys and values lie. Host data only.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/status.h"
#include "nn/attention.h"
#include "serve/request.h"

namespace sluice {

struct Sequence {
  int64_t id = 0;
  std::vector<int32_t> tokens;  // prompt and what was generated
  int64_t prompt_tokens = 0;
  int64_t tokens_max = 0;  // prompt and generated
  int64_t computed = 0;    // tokens whose keys and values are in the cache
  std::vector<int32_t> pages;
  SamplingParams sampling;
  int64_t generated() const { return static_cast<int64_t>(tokens.size()) - prompt_tokens; }
};

// Tokens [first, first + count) of one sequence. The last of them gives logits when no later token is known.
struct Chunk {
  Sequence* sequence = nullptr;
  int64_t first = 0, count = 0;
  bool ends() const { return first + count == static_cast<int64_t>(sequence->tokens.size()); }
};

// Decodes first, then prompts in chunks, oldest first, up to bounds.tokens a step and bounds.sequences at once. When pages
// run out, the youngest sequence loses its pages and is recomputed later from its tokens. Its samples stay the same,
// since a sample depends on the seed and the number of the token alone.
class Scheduler {
 public:
  explicit Scheduler(const StepBounds& bounds);

  // kInvalidArgument: an empty prompt, or one that leaves no room for a token in bounds.positions or in the whole cache.
  Result<int64_t> add(Request request);
  void cancel(int64_t id);  // of a request that is finished or unknown: nothing
  bool idle() const { return waiting_.empty() && running_.empty(); }

  // The chunks of the next step; empty when idle. Pages for them are taken.
  std::vector<Chunk> next();
  // Takes what a step computed: `drawn` for each chunk that ends(), in order. Finished sequences leave.
  std::vector<GeneratedToken> accept(const std::vector<Chunk>& chunks,
                                     const std::vector<GeneratedToken>& drawn);

  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t preemptions() const { return preemptions_; }

 private:
  using Owned = std::unique_ptr<Sequence>;
  bool reserve(Sequence* sequence, int64_t tokens);
  void release_pages(Sequence* sequence);
  void preempt_youngest();

  StepBounds bounds_;
  std::vector<int32_t> free_;
  std::deque<Owned> waiting_;
  std::vector<Owned> running_;  // oldest first
  int64_t next_id_ = 0, preemptions_ = 0;
};

}  // namespace sluice
