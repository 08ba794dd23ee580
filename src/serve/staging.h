// What a step reads besides weights and caches: written on the host into one block, and sent by one copy.
#pragma once
#include <memory>
#include <vector>

#include "nn/decoder.h"
#include "serve/scheduler.h"

namespace sluice {

class StepStaging {
 public:
  static Result<std::unique_ptr<StepStaging>> make(Device& device, const StepBounds& bounds);
  ~StepStaging();
  StepStaging(const StepStaging&) = delete;
  StepStaging& operator=(const StepStaging&) = delete;

  // Enqueues the copy; the tensors are for this step alone. tables.rope is left to the caller.
  Result<StepIn> fill(Device& device, const std::vector<Chunk>& chunks);
  // Of the chunks that fill() got last and that end.
  Sample::Args sample_args(const Tensor& logits) const;
  // Fetches what was drawn; waits for the stream.
  Result<std::vector<GeneratedToken>> drawn(Device& device, int64_t rows);

 private:
  StepStaging(Device& device, const StepBounds& bounds);
  template <class T>
  T* host(size_t at) {
    return reinterpret_cast<T*>(host_.data() + at);
  }
  Tensor view(size_t at, DType dtype, std::initializer_list<int64_t> shape) const;

  Device& device_;
  StepBounds bounds_;
  std::vector<std::byte> host_;
  std::byte* block_ = nullptr;  // the same bytes on the device
  int64_t rows_ = 0;
  struct Offsets {
    size_t token_ids, positions, slot_of, q_begin, kv_len, page_table, logit_rows;
    size_t temperature, top_k, top_p, min_p, seed, step, token, logprob;
  } at_{};
};

}  // namespace sluice
