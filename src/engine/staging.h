// What a step reads besides weights and caches: written on the host into one block, and sent by one copy; what it draws comes
// back by another one.
#pragma once
#include <memory>
#include <vector>

#include "engine/scheduler.h"
#include "nn/decoder.h"

namespace sluice {

// The tensors of one step, in the device's memory. Steps of as many tokens and drawn rows have them at the same addresses.
struct StepTensors {
  StepIn in;  // tables.rope is left to the caller; token_ids: what `take` writes, or as the host wrote them
  TakeTokens::Args take;  // of a step that takes tokens of the one before it
  Sample::Args sample;    // logits are left to the caller
  TopLogprobs::Args top;  // of the rows that list them; likewise
  // Tokens that score the next one (Chunk::scores), as many at a time as there are rows of logits: rows of the step, and what
  // becomes of their logits, which are left to the caller.
  struct Scores {
    Tensor logit_rows;
    TopLogprobs::Args top;
  };
  std::vector<Scores> scores;
};

// How a step gets its token ids.
enum class TakeIds : uint8_t {
  kFromHost,   // all are known
  kFromDrawn,  // some may be those that the step before drew: TakeTokens puts them in
};

class StepStaging {
 public:
  // `blocks`: steps that may be in flight at once; each has a block of page-locked memory.
  // Groups of layers: CacheLayout.
  static Result<std::unique_ptr<StepStaging>> make(Device& device, const StepBounds& bounds, size_t groups,
                                                   size_t blocks);
  ~StepStaging();
  StepStaging(const StepStaging&) = delete;
  StepStaging& operator=(const StepStaging&) = delete;

  // Writes block `block`, whose last step is done, and enqueues its copy.
  Result<StepTensors> fill(size_t block, const std::vector<Chunk>& chunks, TakeIds ids);
  // Enqueues the way back of what the step of these chunks drew.
  Status fetch(size_t block, const std::vector<Chunk>& chunks);
  // Waits for the step, and for nothing behind it. Chunk::rows() tokens of each chunk, in order.
  Result<std::vector<GeneratedToken>> drawn(size_t block, const std::vector<Chunk>& chunks);
  // Of a step whose tokens drawn() has given: Chunk::scores of each chunk, in order.
  std::vector<TokenScore> scores(size_t block, const std::vector<Chunk>& chunks) const;

 private:
  // Where things lie in a block: as dense as this step's counts allow, so that the copy is short.
  struct Layout {
    size_t token_ids, positions, q_begin, kv_len, logit_rows;
    size_t temperature, top_k, top_p, min_p, seed, step, listed;
    size_t score_row, scored_token, scored_row, end;
    std::vector<size_t> slot_of, page_table;  // of each group
  };
  // What comes back, at the front of the block; likewise.
  struct Answers {
    size_t token, logprob, listed_logprob, rank, top_id, top_logprob;
    size_t score, score_rank, score_top_id, score_top_logprob, end;
  };
  struct Counts {
    int64_t tokens, sequences;  // of a step
    int64_t rows, listed;       // that it draws, and those of them that list logprobs
    int64_t scores;
  };
  struct Block {
    std::byte* host = nullptr;
    std::unique_ptr<Mark> done;
  };
  StepStaging(Device& device, const StepBounds& bounds, size_t groups);
  static Counts counts(const std::vector<Chunk>& chunks);
  Layout layout(const Counts& counts) const;
  Answers answers(const Counts& counts) const;
  void write_scores(std::byte* host, const Layout& at, const std::vector<Chunk>& chunks) const;
  std::vector<StepTensors::Scores> score_tensors(const Layout& at, const Counts& counts) const;
  void write(std::byte* host, const Layout& at, const std::vector<Chunk>& chunks) const;
  void write_pages(std::byte* host, const Layout& at, const std::vector<Chunk>& chunks) const;
  StepTensors tensors(const Layout& at, const Counts& counts, TakeIds ids) const;
  Tensor view(size_t at, DType dtype, std::initializer_list<int64_t> shape) const;

  Device& device_;
  StepBounds bounds_;
  size_t groups_;
  // On the device, `bytes_` long, and likewise on the host up to the ids: what comes back, what a step reads, ids with the taken ones
  // put in.
  std::byte* block_ = nullptr;
  size_t in_at_ = 0, ids_at_ = 0, bytes_ = 0;
  std::vector<Block> blocks_;
};

}  // namespace sluice
