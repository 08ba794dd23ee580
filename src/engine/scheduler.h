// Chooses the tokens that the next step computes, and the pages for their keys and values. Host data only.
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

// The pages of a sequence for one group of layers (CacheLayout), in token order.
struct GroupPages {
  std::vector<int32_t> page;  // kNoPage: released, because it has left the window
  int64_t first = 0;          // first page still held; all earlier pages are kNoPage
};

struct Sequence {
  int64_t id = 0;
  std::vector<int32_t> tokens;  // prompt and generated tokens that the host knows
  int64_t prompt_tokens = 0;
  int64_t tokens_max = 0;   // upper bound of prompt and generated tokens
  int64_t ahead = 0;        // tokens after `tokens` that steps in flight sample
  int64_t sampled_row = 0;  // row of the last of these tokens among the tokens that its step samples
  int64_t computed = 0;     // tokens whose keys and values are in the cache once steps in flight are done
  bool ended = false;       // finished or cancelled: samples of steps in flight are dropped
  std::vector<GroupPages> pages;  // by group; all of equal length
  int64_t published = 0;          // the first `published` pages are in the prefix cache
  int64_t prefix = kNoPrefix;     // the prefix of those pages, held in the PrefixTree
  int64_t known = 0;              // pages of the longest cached prefix when the sequence was last admitted
  std::optional<int64_t> cached_tokens = {};  // prompt tokens found in the prefix cache when first admitted
  SamplingParams sampling = complete({});
  AdjustedTokens adjusted;          // used if sampling.adjusts()
  std::shared_ptr<TokenMask> mask;  // set if the request has a filter
  bool sits_out = false;            // its mask was late: it is not decoded until the mask is finished
  // Speculative decoding: the drafts that the next step verifies, and the sequence length for which they were
  // made. At any other length they are stale.
  std::vector<int32_t> drafts;
  int64_t drafted_at = -1;
  bool has_features =
      false;  // the last accepted step wrote the hidden states that the draft layer needs for this sequence
  std::optional<NgramIndex> ngrams;
  Acceptance acceptance;
  // With sampling.prompt_logprobs, for the prompt tokens from the second on: the number of tokens that have a
  // score, and the scores, which are kept until a token is sampled.
  int64_t scored = 0;
  std::vector<TokenScore> scores;
  bool needs_all_tokens() const { return sampling.adjusts() || mask; }
  bool needs_scores() const { return sampling.prompt_logprobs && scored < prompt_tokens - 1; }
  int64_t length() const { return static_cast<int64_t>(tokens.size()) + ahead; }
  std::span<const int32_t> drafts_now() const {
    return drafted_at == std::ssize(tokens) ? std::span<const int32_t>(drafts) : std::span<const int32_t>();
  }
};

// Tokens [first, first + count) of one sequence in one step.
struct Chunk {
  std::shared_ptr<Sequence> sequence;
  int64_t first = 0, count = 0;
  // Set if the host does not know the last token of the chunk: the token's row among the tokens that the
  // previous step samples.
  std::optional<int64_t> taken = {};
  // The chunk's first row among the tokens that this step samples; empty if the sequence has known tokens
  // after the chunk.
  std::optional<int64_t> sampled = {};
  int64_t number = 0;  // index of the sampled token in the answer, from 0
  // The chunk's last tokens, if it verifies drafts. A token is also sampled after each draft, in the next
  // rows.
  std::vector<int32_t> drafts = {};
  int64_t scores = 0;  // number of tokens, from the first, whose logits score the next prompt token
  // The sample is discarded because the mask was late or its filter failed. The last token is recomputed
  // later.
  bool dropped = false;

  // Number of tokens that the chunk samples.
  int64_t rows() const { return sampled ? 1 + std::ssize(drafts) : 0; }
  // Token i of the chunk; -1 - taken if the host does not know it.
  int32_t token(int64_t i) const {
    const int64_t known = count - std::ssize(drafts);
    if (i >= known) return drafts[static_cast<size_t>(i - known)];
    if (taken && i == known - 1) return static_cast<int32_t>(-1 - *taken);
    return sequence->tokens[static_cast<size_t>(first + i)];
  }

  // Whether penalties or biases change the logits before sampling.
  bool adjusts() const { return sampled && sequence->sampling.adjusts(); }
  // Whether a filter removes tokens from the logits.
  bool masked() const { return sampled && !dropped && sequence->mask; }
  int64_t masked_rows() const { return masked() ? std::min(rows(), sequence->mask->rows()) : 0; }
  // Whether TopLogprobs runs on the logits: if the request asks for logprobs, or if the logits are changed
  // before sampling, because Sample then computes the logprob from the changed logits.
  bool needs_logprobs() const {
    return sampled && (sequence->sampling.logprobs || sequence->needs_all_tokens());
  }
};

struct SchedulerOptions {
  bool prefix_cache = true;
  // Upper bound of prompt tokens in a step that also decodes, because the decoding sequences wait for the
  // whole step. 0: only the bound of the step applies.
  int64_t mixed_prefill_tokens = 0;
  PageHash hash = page_hash;
  std::vector<int64_t> windows = {0};  // see CacheLayout
  SpeculationOptions speculation = {};
  StepCosts costs = {};  // used with speculation
};

// Lookups are counted when a request is first admitted, not when it resumes after a
// preemption.
struct PrefixCacheCounts {
  int64_t queries = 0, hits = 0;  // tokens looked up; tokens found
  int64_t evictions = 0;          // evicted pages
};

// Order: a step takes decodes first, then prompts in chunks, in both cases oldest first. It has at most
// bounds.tokens tokens and bounds.sequences running sequences. A step that decodes may have a lower limit for
// prompt tokens (options.mixed_prefill_tokens). When pages run out, the youngest sequence is preempted: it
// loses its pages and is later recomputed from its tokens, like a prompt. Its samples do not change, because
// a sample depends only on the seed, the token's index and the tokens before it.
//
// Steps ahead: one step may be scheduled before the tokens of the previous step are known. A sequence then
// continues with the token that the previous step samples. If that token ends the sequence, the row is wasted
// and its sample is dropped. Steps run in the order in which they are scheduled, so a page can go to another
// sequence as soon as the last step that uses it is scheduled.
//
// Windows: in groups of layers with a window, a sequence releases the pages that have left the window before
// each step. A chunk needs pages for all its tokens and for the window before them. The window is measured
// from the last page boundary at or before the chunk, so that the pages of a finished sequence suffice to
// continue after its last full page.
//
// Prefix cache: a full page is published (added to the cache) once the step that computes it is scheduled and
// its tokens are known. A sequence begins after the longest prefix for which all pages in the windows at the
// prefix's end are published. It always computes its last token, because it needs that token's logits, and
// its whole prompt if prompt scores are requested. Other sequences can use a page only in later steps than
// the one that computes it, because attention may read the cache before its own step has written keys and
// values ("settled" in ops/attention.h). So a sequence that could continue from pages that this step computes
// waits for the next step.
//
// Late masks: if the mask of a sequence is late, the step's sample is dropped, and the sequence sits out
// steps until the engine reports that the mask is finished (Sequence::sits_out). It then computes its last
// token again, and writes that token's keys and values again. So the page that holds them is published only
// when the next token is known, because other sequences may read published pages at any time.
//
// Eviction: pages that have left the window are evicted first, except pages in the windows at two positions:
// the end of the prompt, where the next turn of a chat continues if it omits the reasoning, and the end of
// the longest cached prefix (Sequence::known), where earlier sequences diverged from this one.
class Scheduler {
 public:
  explicit Scheduler(const StepBounds& bounds, const SchedulerOptions& options = {});

  // Returns the request's id. kInvalidArgument: the prompt is empty, or leaves no room for another token in
  // bounds.positions or in the whole cache.
  Result<int64_t> add(Request request);
  void cancel(int64_t id);  // does nothing if the request is finished or unknown
  bool idle() const { return waiting_.empty() && running_.empty(); }
  // Whether accept() must be called before the next step is scheduled. True if some request needs all
  // previous tokens before it samples, if some request has drafts to verify, or if there is a draft layer,
  // which reads the last tokens.
  bool needs_all_tokens() const;
  // The sequences that have a filter.
  std::vector<std::shared_ptr<Sequence>> filtered() const;

  // Returns the chunks of the next step and allocates pages for them. Empty if nothing can be computed before
  // the steps in flight are accepted, or nothing is left to compute.
  std::vector<Chunk> next();
  // Adds the results of the oldest step in flight to the sequences: Chunk::rows() tokens and Chunk::scores
  // scores per chunk, in order. Returns the accepted tokens: each chunk's tokens up to and including the
  // first that differs from its draft. Removes finished sequences.
  std::vector<GeneratedToken> accept(const std::vector<Chunk>& chunks,
                                     const std::vector<GeneratedToken>& sampled,
                                     std::vector<TokenScore> scores = {});
  // Call it if the youngest step in flight has failed or was never enqueued. The contents of its pages are
  // unknown, and other sequences may already use them, so all sequences are recomputed from their tokens and
  // the prefix cache is emptied.
  void take_back(const std::vector<Chunk>& chunks);

  // For a sequence that belongs to no request, while the scheduler is idle: allocates pages for `tokens`
  // tokens in total, at most bounds.tokens more than are computed. Requires tokens <= bounds.positions.
  void take_pages(Sequence* sequence, int64_t tokens);
  void release_pages(Sequence* sequence) { drop_pages(sequence); }

  // Pages that no sequence uses; the prefix cache may hold some of them.
  int64_t free_pages() const { return pool_.available(); }
  const PagePool& pool() const { return pool_; }
  int64_t preemptions() const { return preemptions_; }
  const SpeculationOptions& speculation() const { return options_.speculation; }
  DraftCounts draft_counts() const { return speculation_ ? speculation_->counts() : DraftCounts{}; }
  PrefixCacheCounts prefix_cache() const;

 private:
  using Owned = std::shared_ptr<Sequence>;
  // What a sequence does if a published page holds the same tokens as its own page.
  enum class Twin : uint8_t { kKeepsOwn, kTakesOther };
  // The tokens and sequences that still fit into a step, and the number of rows that the step samples so far.
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
  void add_drafts(Chunk* chunk, int64_t limit);
  void draft();
  static void start(Chunk* chunk, int64_t* rows);
  size_t take_tokens(const Chunk& chunk, std::span<const GeneratedToken> sampled,
                     std::vector<GeneratedToken>* out);
  static void take_scores(const Chunk& chunk, std::span<TokenScore> scores);
  void count_query(Sequence* sequence);

  StepBounds bounds_;
  SchedulerOptions options_;
  PagePool pool_;
  std::optional<Speculation> speculation_;
  bool has_drafts_ = false;  // some sequence has drafts after the last accepted tokens
  int64_t room_;             // tokens of the longest sequence that fits into the empty cache
  std::deque<Owned> waiting_;
  std::vector<Owned> running_;  // oldest first
  int64_t next_id_ = 0, preemptions_ = 0, queries_ = 0, hits_ = 0;
};

}  // namespace sluice
