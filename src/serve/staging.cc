#include "serve/staging.h"

#include <algorithm>

#include "base/arena.h"

namespace sluice {

StepStaging::StepStaging(Device& device, const StepBounds& bounds) : device_(device), bounds_(bounds) {
  size_t used = 0;
  const auto take = [&](DType dtype, int64_t elements) {
    const size_t at = used;
    used += Arena::footprint(static_cast<size_t>(bytes_of(dtype, elements)));
    return at;
  };
  const int64_t n = bounds.tokens, s = bounds.sequences;
  at_.token_ids = take(DType::kI32, n);
  at_.positions = take(DType::kI32, n);
  at_.slot_of = take(DType::kI32, n);
  at_.q_begin = take(DType::kI32, s + 1);
  at_.kv_len = take(DType::kI32, s);
  at_.page_table = take(DType::kI32, s * bounds.pages_per_seq());
  at_.logit_rows = take(DType::kI32, s);
  at_.temperature = take(DType::kF32, s);
  at_.top_k = take(DType::kI32, s);
  at_.top_p = take(DType::kF32, s);
  at_.min_p = take(DType::kF32, s);
  at_.seed = take(DType::kI64, s);
  at_.step = take(DType::kI64, s);
  at_.token = take(DType::kI32, s);
  at_.logprob = take(DType::kF32, s);
  host_.resize(used);
}

StepStaging::~StepStaging() {
  if (block_) device_.release(block_);
}

Result<std::unique_ptr<StepStaging>> StepStaging::make(Device& device, const StepBounds& bounds) {
  std::unique_ptr<StepStaging> out(new StepStaging(device, bounds));
  Result<void*> block = device.allocate(out->host_.size());
  if (!block.ok()) return block.status();
  out->block_ = static_cast<std::byte*>(block.value());
  return out;
}

Tensor StepStaging::view(size_t at, DType dtype, std::initializer_list<int64_t> shape) const {
  return make_tensor(block_ + at, dtype, shape, device_.info().backend);
}

Result<StepIn> StepStaging::fill(Device& device, const std::vector<Chunk>& chunks) {
  auto* const token_ids = host<int32_t>(at_.token_ids);
  auto* const positions = host<int32_t>(at_.positions);
  auto* const slot_of = host<int32_t>(at_.slot_of);
  auto* const q_begin = host<int32_t>(at_.q_begin);
  auto* const kv_len = host<int32_t>(at_.kv_len);
  auto* const logit_rows = host<int32_t>(at_.logit_rows);
  int64_t row = 0, sequence = 0;
  rows_ = 0;
  for (const Chunk& chunk : chunks) {
    const Sequence& s = *chunk.sequence;
    q_begin[sequence] = static_cast<int32_t>(row);
    kv_len[sequence] = static_cast<int32_t>(chunk.first + chunk.count);
    std::copy(s.pages.begin(), s.pages.end(),
              host<int32_t>(at_.page_table) + sequence * bounds_.pages_per_seq());
    for (int64_t i = 0; i < chunk.count; ++i, ++row) {
      const int64_t position = chunk.first + i;
      token_ids[row] = s.tokens[static_cast<size_t>(position)];
      positions[row] = static_cast<int32_t>(position);
      slot_of[row] = static_cast<int32_t>(s.pages[static_cast<size_t>(position / bounds_.page_size)] *
                                              bounds_.page_size +
                                          position % bounds_.page_size);
    }
    if (chunk.ends()) {
      const SamplingParams& p = s.sampling;
      logit_rows[rows_] = static_cast<int32_t>(row - 1);
      host<float>(at_.temperature)[rows_] = static_cast<float>(p.temperature);
      host<int32_t>(at_.top_k)[rows_] = static_cast<int32_t>(p.top_k);
      host<float>(at_.top_p)[rows_] = static_cast<float>(p.top_p);
      host<float>(at_.min_p)[rows_] = static_cast<float>(p.min_p);
      host<int64_t>(at_.seed)[rows_] = static_cast<int64_t>(p.seed);
      host<int64_t>(at_.step)[rows_] = s.generated();
      ++rows_;
    }
    ++sequence;
  }
  // Sequences that this step does not have own no rows.
  for (int64_t i = sequence; i < bounds_.sequences; ++i) kv_len[i] = 0;
  for (int64_t i = sequence; i <= bounds_.sequences; ++i) q_begin[i] = static_cast<int32_t>(row);
  SLUICE_TRY(device.copy(block_, host_.data(), at_.token, device.stream()));
  StepIn in;
  in.token_ids = view(at_.token_ids, DType::kI32, {row});
  in.tables.positions = view(at_.positions, DType::kI32, {row});
  in.tables.slot_of = view(at_.slot_of, DType::kI32, {row});
  in.tables.q_begin = view(at_.q_begin, DType::kI32, {bounds_.sequences + 1});
  in.tables.kv_len = view(at_.kv_len, DType::kI32, {bounds_.sequences});
  in.tables.page_table = view(at_.page_table, DType::kI32, {bounds_.sequences, bounds_.pages_per_seq()});
  in.logit_rows = view(at_.logit_rows, DType::kI32, {rows_});
  return in;
}

Sample::Args StepStaging::sample_args(const Tensor& logits) const {
  return {.logits = logits,
          .temperature = view(at_.temperature, DType::kF32, {rows_}),
          .top_k = view(at_.top_k, DType::kI32, {rows_}),
          .top_p = view(at_.top_p, DType::kF32, {rows_}),
          .min_p = view(at_.min_p, DType::kF32, {rows_}),
          .seed = view(at_.seed, DType::kI64, {rows_}),
          .step = view(at_.step, DType::kI64, {rows_}),
          .token = view(at_.token, DType::kI32, {rows_}),
          .logprob = view(at_.logprob, DType::kF32, {rows_})};
}

Result<std::vector<GeneratedToken>> StepStaging::drawn(Device& device, int64_t rows) {
  SLUICE_TRY(
      device.copy(host_.data() + at_.token, block_ + at_.token, host_.size() - at_.token, device.stream()));
  SLUICE_TRY(device.wait(device.stream()));
  std::vector<GeneratedToken> out(static_cast<size_t>(rows));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].id = host<int32_t>(at_.token)[i];
    out[i].logprob = host<float>(at_.logprob)[i];
  }
  return out;
}

}  // namespace sluice
