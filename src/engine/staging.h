// The inputs of a step besides weights and caches: the host writes them into one block and sends it with
// one copy. The step's results come back with a second copy.
#pragma once
#include <memory>
#include <vector>

#include "engine/scheduler.h"
#include "nn/decoder.h"

namespace sluice {

// The tensors of one step, in device memory. Steps with equal numbers of tokens and sampled rows use the same addresses.
struct StepTensors {
  StepIn in;              // tables.rope is set by the caller; token_ids: written by `take` or by the host
  TakeTokens::Args take;  // if the step takes tokens of the previous step
  Sample::Args sample;    // logits are set by the caller
  TopLogprobs::Args top;  // for the rows that request log probabilities; logits are set by the caller
  // A slice of the tokens whose logits score the next token (Chunk::scores): at most as many tokens as there are
  // rows of logits. Holds their rows in the step, and the arguments of TopLogprobs, whose logits the caller sets.
  struct Scores {
    Tensor logit_rows;
    TopLogprobs::Args top;
  };
  std::vector<Scores> scores;
};

// Where a step's token ids come from.
enum class TakeIds : uint8_t {
  kFromHost,     // all are known
  kFromSampled,  // some are sampled by the previous step: TakeTokens inserts them
};

class StepStaging {
 public:
  // `blocks`: how many steps may be in flight at once; each has a block of page-locked memory.
  // groups: groups of layers, see CacheLayout.
  static Result<std::unique_ptr<StepStaging>> make(Device& device, const StepBounds& bounds, size_t groups,
                                                   size_t blocks);
  ~StepStaging();
  StepStaging(const StepStaging&) = delete;
  StepStaging& operator=(const StepStaging&) = delete;

  // Writes block `block` and enqueues its copy. The last step of that block must have finished.
  Result<StepTensors> fill(size_t block, const std::vector<Chunk>& chunks, TakeIds ids);
  // Enqueues the copy of the step's results to the host.
  Status fetch(size_t block, const std::vector<Chunk>& chunks);
  // Waits for the step, and for nothing behind it. Chunk::rows() tokens of each chunk, in order.
  Result<std::vector<GeneratedToken>> sampled(size_t block, const std::vector<Chunk>& chunks);
  // For a step whose tokens sampled() has returned: Chunk::scores scores of each chunk, in order.
  std::vector<TokenScore> scores(size_t block, const std::vector<Chunk>& chunks) const;

 private:
  // Offsets in a block: as dense as this step's counts allow, which keeps the copy short.
  struct Layout {
    size_t token_ids, positions, q_begin, kv_len, logit_rows;
    size_t temperature, top_k, top_p, min_p, seed, step, requested_row;
    size_t score_row, scored_token, scored_row, end;
    std::vector<size_t> slot_of, page_table;  // of each group
  };
  // Offsets of the results at the front of the block, equally dense.
  struct Answers {
    size_t token, logprob, requested_logprob, rank, top_id, top_logprob;
    size_t score, score_rank, score_top_id, score_top_logprob, end;
  };
  struct Counts {
    int64_t tokens, sequences;  // of a step
    int64_t rows, requested;    // sampled rows, and those that request log probabilities
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
  // On the device, `bytes_` long; the host's blocks have the same layout up to the ids: results, inputs of
  // the step, then the token ids after TakeTokens.
  std::byte* block_ = nullptr;
  size_t in_at_ = 0, ids_at_ = 0, bytes_ = 0;
  std::vector<Block> blocks_;
};

}  // namespace sluice
