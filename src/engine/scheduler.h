// Which tokens the next step computes, and in which pages their keys and values lie. Host data only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/adjusted_tokens.h"
#include "engine/mask_workers.h"
#include "engine/page_pool.h"
#include "engine/request.h"
#include "engine/speculation.h"
#include "nn/attention.h"
#include "nn/cache_layout.h"

namespace sluice {

// The pages of a sequence for one group of layers (CacheLayout), in the order of its tokens.
struct GroupPages {
  std::vector<int32_t> page;  // kNoPage: released, since no later token sees it
  int64_t first = 0;          // those before are kNoPage
};

struct Sequence {
  int64_t id = 0;
  std::vector<int32_t> tokens;  // prompt and what was generated, as far as the host knows it
  int64_t prompt_tokens = 0;
  int64_t tokens_max = 0;  // prompt and generated
  int64_t ahead = 0;       // tokens behind those, which steps in flight draw
  int64_t drawn_row = 0;   // of the last of them among the tokens of its step
  int64_t computed = 0;    // tokens whose keys and values are in the cache once the steps in flight are done
  bool ended = false;      // nobody waits for what steps in flight draw for it
  std::vector<GroupPages> pages;              // of each group; equally many
  int64_t published = 0;                      // the first so many of its pages are in the prefix cache,
  int64_t prefix = kNoPrefix;                 // and this is what stands in them; held
  int64_t known = 0;                          // pages of its longest prefix that was there when it began
  std::optional<int64_t> cached_tokens = {};  // of the prompt: found there when it first began
  SamplingParams sampling;
  AdjustedTokens adjusted;          // where sampling.adjusts()
  std::shared_ptr<TokenMask> mask;  // where the request has a filter
  bool sits_out = false;            // its mask was late: it decodes in no step before the mask is made
  // Speculative decoding: tokens that the next step verifies, and behind how many tokens they stand; only there are they of use.
  std::vector<int32_t> drafts;
  int64_t drafted_at = -1;
  std::optional<NgramIndex> ngrams;
  std::optional<Acceptance> acceptance;
  // With sampling.prompt_logprobs, of the prompt's tokens from the second on: so many have a score; the scores, until a token is drawn.
  int64_t scored = 0;
  std::vector<TokenScore> scores;
  bool needs_all_tokens() const { return sampling.adjusts() || mask; }
  bool needs_scores() const { return sampling.prompt_logprobs >= 0 && scored < prompt_tokens - 1; }
  int64_t length() const { return static_cast<int64_t>(tokens.size()) + ahead; }
  std::span<const int32_t> drafts_now() const {
    return drafted_at == std::ssize(tokens) ? std::span<const int32_t>(drafts) : std::span<const int32_t>();
  }
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
  // Its last tokens, which are guesses. It samples behind each of them, too, in the rows that follow `drawn`.
  std::vector<int32_t> drafts = {};
  int64_t scores = 0;  // of its first so many tokens the logits score the token of the prompt that comes next
  // What it draws is nobody's: the mask was late, or could not be made. Its last token is computed once more.
  bool dropped = false;

  // Tokens that it samples.
  int64_t rows() const { return drawn ? 1 + std::ssize(drafts) : 0; }
  // The i-th of its tokens; -1 - taken where the host does not know it.
  int32_t token(int64_t i) const {
    const int64_t known = count - std::ssize(drafts);
    if (i >= known) return drafts[static_cast<size_t>(i - known)];
    if (taken && i == known - 1) return static_cast<int32_t>(-1 - *taken);
    return sequence->tokens[static_cast<size_t>(first + i)];
  }

  // Whether penalties or biases change the logits that it draws from.
  bool adjusts() const { return drawn && sequence->sampling.adjusts(); }
  // Whether a filter takes tokens out of them.
  bool masked() const { return drawn && !dropped && sequence->mask; }
  int64_t masked_rows() const { return masked() ? std::min(rows(), sequence->mask->rows()) : 0; }
  // Whether TopLogprobs looks at them: for the request; and where they change, since Sample then knows the changed ones alone.
  bool lists() const { return drawn && (sequence->sampling.logprobs >= 0 || sequence->needs_all_tokens()); }
};

struct SchedulerOptions {
  bool prefix_cache = true;
  // Tokens of all prompts together in a step in which sequences decode, which last as long as the step. 0: no bound but the step's.
  int64_t mixed_prefill_tokens = 0;
  PageHash hash = page_hash;
  std::vector<int64_t> windows = {0};  // CacheLayout
  SpeculationOptions speculation = {};
  StepCosts costs = {};  // with speculation
};

// In tokens, of requests that begin; not of those that come back after they have lost their pages.
struct PrefixCacheCounts {
  int64_t queries = 0, hits = 0;  // looked for, and found
  int64_t evictions = 0;          // pages
};

// Decodes first, then prompts in chunks, oldest first, up to bounds.tokens a step and bounds.sequences at once. In a step that
// decodes, prompts may have a bound of their own (options.mixed_prefill_tokens). When pages run out, the youngest sequence loses
// its pages and is recomputed later from its tokens, as a prompt is. Its samples stay the same, since a sample depends on the
// seed and the number of the token alone.
//
// A step may be chosen before the tokens of the step before are known, of one step and no more: a sequence goes on with the
// token that it will have drawn. If that token ends it, the row was computed for nothing, and what it draws is dropped. Steps run
// in the order in which they were chosen, so pages change hands as soon as a step is chosen.
//
// Groups of layers with a window release the pages that it has passed before the next step is chosen; a chunk needs pages for
// the window before it and for all of itself. The page boundary before the chunk counts as its beginning, so that what a sequence
// leaves is enough to begin at its last full page.
//
// Prefix cache: a full page is published once a step that computes it is chosen and its tokens are known. A sequence begins behind
// the longest prefix of which all pages are published that the windows at its end see, but computes its last token in any case,
// because the logits are wanted; and all of its prompt, where scores of that are wanted. Pages are found from the next step on, since
// attention may read keys and values of earlier steps before this one has written its own (settled in ops/attention.h); so a sequence
// that could go on from pages that this step computes waits for the next one.
//
// A sequence whose mask is late goes back by the token that it would have drawn behind, sits out steps until its owner says that the
// mask is made (Sequence::sits_out), and computes that token's keys and values once more. So the page in which they lie is not
// published before a token behind them is known: others may read published pages at any time.
//
// Passed pages are evicted first, but for those of the windows at two places: the end of the prompt, since a chat goes on there
// when reasoning is left out of it; and the end of the longest prefix that was known, where sequences have begun to differ.
class Scheduler {
 public:
  explicit Scheduler(const StepBounds& bounds, const SchedulerOptions& options = {});

  // kInvalidArgument: an empty prompt, or one that leaves no room for a token in bounds.positions or in the whole cache.
  Result<int64_t> add(Request request);
  void cancel(int64_t id);  // of a request that is finished or unknown: nothing
  bool idle() const { return waiting_.empty() && running_.empty(); }
  // Whether a request draws by all tokens before the drawn one, or has drafts to verify: no step may be chosen before those are accepted.
  bool needs_all_tokens() const;
  // Those that have a filter.
  std::vector<std::shared_ptr<Sequence>> filtered() const;

  // The chunks of the next step; empty when there is nothing to do, or nothing before the steps in flight are accepted. Pages
  // for them are taken.
  std::vector<Chunk> next();
  // Takes what the oldest step in flight computed: Chunk::rows() tokens of each chunk, in order, and Chunk::scores of each. Returns the
  // tokens that count: those up to the first that is not the draft behind it. Finished sequences leave.
  std::vector<GeneratedToken> accept(const std::vector<Chunk>& chunks,
                                     const std::vector<GeneratedToken>& drawn,
                                     std::vector<TokenScore> scores = {});
  // The youngest step in flight has failed, or never began. What it has written is unknown, and others may have found pages of
  // it: every sequence is computed again from its tokens, and the prefix cache is empty.
  void take_back(const std::vector<Chunk>& chunks);

  // Pages for `tokens` tokens in all of a sequence of no request, at most bounds.tokens more than are computed, while the scheduler is
  // idle; tokens <= bounds.positions.
  void take_pages(Sequence* sequence, int64_t tokens);
  void release_pages(Sequence* sequence) { drop_pages(sequence); }

  // Used by no sequence; some of them may be in the prefix cache.
  int64_t free_pages() const { return pool_.available(); }
  const PagePool& pool() const { return pool_; }
  int64_t preemptions() const { return preemptions_; }
  const SpeculationOptions& speculation() const { return options_.speculation; }
  DraftCounts draft_counts() const { return speculation_ ? speculation_->counts() : DraftCounts{}; }
  PrefixCacheCounts prefix_cache() const;

 private:
  using Owned = std::shared_ptr<Sequence>;
  // What a sequence does where another page holds the same tokens as its own.
  enum class Twin : uint8_t { kKeepsOwn, kTakesOther };
  // What a step still takes; rows: tokens that it draws so far.
  struct Room {
    int64_t tokens = 0, sequences = 0, rows = 0;
  };
  std::span<const int32_t> page_tokens(const Sequence& sequence, int64_t page) const;
  int64_t longest_sequence() const;
  int64_t first_page(size_t group, int64_t first) const;
  Reuse reuse_of(const Sequence& sequence, size_t group, int64_t page) const;
  void release_passed(Sequence* sequence);
  int64_t pages_of(int64_t tokens) const { return (tokens + bounds_.page_size - 1) / bounds_.page_size; }
  bool reserve(Sequence* sequence, int64_t tokens);
  void take_prefix(Sequence* sequence);
  bool has_twin(const Sequence& sequence) const;
  void publish(Sequence* sequence, Twin twin);
  void drop_pages(Sequence* sequence);
  void stop_youngest();
  void admit(Room room, std::vector<Chunk>* chunks);
  bool computes_next_page(const std::vector<Chunk>& chunks, const Sequence& sequence) const;
  void add_drafts(Chunk* chunk, int64_t most);
  void draft();
  static void start(Chunk* chunk, int64_t* rows);
  size_t take_tokens(const Chunk& chunk, std::span<const GeneratedToken> drawn,
                     std::vector<GeneratedToken>* out);
  static void take_scores(const Chunk& chunk, std::span<TokenScore> scores);
  void count_query(Sequence* sequence);

  StepBounds bounds_;
  SchedulerOptions options_;
  PagePool pool_;
  std::optional<Speculation> speculation_;
  bool has_drafts_ = false;  // of some sequence, by the tokens that were accepted last
  int64_t room_;             // tokens of a sequence that fits into the cache alone
  std::deque<Owned> waiting_;
  std::vector<Owned> running_;  // oldest first
  int64_t next_id_ = 0, preemptions_ = 0, queries_ = 0, hits_ = 0;
};

}  // namespace sluice
