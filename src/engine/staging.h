// The inputs of a step besides weights and caches. The host writes them into one block and uploads it with
// one copy; a second copy downloads the step's results.
#pragma once
#include <memory>
#include <vector>

#include "engine/scheduler.h"
#include "nn/decoder.h"

namespace sluice {

// The tensors of one step, in device memory. Steps with equal numbers of tokens, sequences and sampled rows, and
// without requested log probabilities or scores, use the same addresses, so they can share a captured graph.
struct StepTensors {
  StepIn in;              // the caller sets tables.rope; token_ids is written by `take` or by the host
  TakeTokens::Args take;  // used if the step reads tokens that the previous step samples
  Sample::Args sample;    // the caller sets logits
  TopLogprobs::Args top;  // rows that request logprobs; the caller sets logits
  // Tokens whose logits score the next prompt token (Chunk::scores), in slices of at most bounds.logit_rows()
  // tokens. logit_rows: their rows in the step. The caller sets top.logits.
  struct Scores {
    Tensor logit_rows;
    TopLogprobs::Args top;
  };
  std::vector<Scores> scores;
};

// Where a step's token ids come from.
enum class TakeIds : uint8_t {
  kFromHost,     // the host knows all tokens
  kFromSampled,  // the previous step samples some tokens; TakeTokens inserts them on the device
};

class StepStaging {
 public:
  // blocks: number of steps that may be in flight; each has a block of page-locked memory. groups: number of
  // groups of layers (CacheLayout).
  static Result<std::unique_ptr<StepStaging>> make(Device& device, const StepBounds& bounds, size_t groups,
                                                   size_t blocks);
  ~StepStaging();
  StepStaging(const StepStaging&) = delete;
  StepStaging& operator=(const StepStaging&) = delete;

  // Writes block `block` and enqueues its upload. The last step that used the block must have finished.
  Result<StepTensors> fill(size_t block, const std::vector<Chunk>& chunks, TakeIds ids);
  // Enqueues the download of the step's results.
  Status fetch(size_t block, const std::vector<Chunk>& chunks);
  // Waits for the step, not for later steps. Returns Chunk::rows() tokens of each chunk, in order.
  Result<std::vector<GeneratedToken>> sampled(size_t block, const std::vector<Chunk>& chunks);
  // Returns Chunk::scores scores of each chunk, in order. Call it after sampled() of the same step.
  std::vector<TokenScore> scores(size_t block, const std::vector<Chunk>& chunks) const;

 private:
  // Byte offsets of a step's inputs in the block. Unused rows get no space, so that the copy is short.
  struct Layout {
    size_t token_ids, positions, q_begin, kv_len, logit_rows;
    size_t temperature, top_k, top_p, min_p, seed, step, requested_row;
    size_t score_row, scored_token, scored_row, end;
    std::vector<size_t> slot_of, page_table;  // one per group
  };
  // Byte offsets of a step's results at the beginning of the block.
  struct Answers {
    size_t token, logprob, requested_logprob, rank, top_id, top_logprob;
    size_t score, score_rank, score_top_id, score_top_logprob, end;
  };
  struct Counts {
    int64_t tokens, sequences;  // of the step
    int64_t rows, requested;    // sampled rows; rows that request logprobs
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
  // Device memory of bytes_ bytes: results, inputs of the step (from in_at_), and token ids after TakeTokens
  // (from ids_at_). The host's blocks have the same layout without those ids.
  std::byte* block_ = nullptr;
  size_t in_at_ = 0, ids_at_ = 0, bytes_ = 0;
  std::vector<Block> blocks_;
};

}  // namespace sluice
