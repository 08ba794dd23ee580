#include "engine/adjustments.h"

#include "graph/run_and_count.h"

#include <algorithm>
#include <string>

#include "engine/places.h"
#include "nn/plan_into.h"

namespace sluice {
namespace {

constexpr int64_t kEntriesOfLaunch = int64_t{1} << 20;  // longer lists need several launches

// The tokens that penalties and biases change in row `row` of a chunk, given the drafts before that row. If
// they differ from the sequence's own list, stores them in *changed.
const std::vector<AdjustedToken>& adjusted_row(const Chunk& chunk, int64_t row,
                                               std::vector<AdjustedToken>* changed) {
  const Sequence& s = *chunk.sequence;
  if (row == 0 || !s.sampling.penalises()) return s.adjusted.list();
  *changed = s.adjusted.list_after(std::span(chunk.drafts).first(static_cast<size_t>(row)));
  return *changed;
}

}  // namespace

Result<std::unique_ptr<LogitAdjustments>> LogitAdjustments::make(Device& device, const StepBounds& bounds,
                                                                 int64_t vocab, const Policy& policy) {
  std::unique_ptr<LogitAdjustments> out(new LogitAdjustments(device, bounds));
  AdjustLogits::Problem p{.entries = 0, .rows = bounds.logit_rows(), .vocab = vocab};
  SLUICE_TRY(plan_into<AdjustLogits>(&out->apply_, device, p, kEntriesOfLaunch, policy));
  p.way = AdjustWay::kRestore;
  SLUICE_TRY(plan_into<AdjustLogits>(&out->restore_, device, p, kEntriesOfLaunch, policy));
  return out;
}

size_t LogitAdjustments::workspace_bytes() const {
  return std::max(apply_->workspace_bytes(), restore_->workspace_bytes());
}

LogitAdjustments::Layout LogitAdjustments::layout(int64_t entries) const {
  Places places;
  Layout at{};
  at.repetition = places.take(DType::kF32, bounds_.logit_rows());
  at.frequency = places.take(DType::kF32, bounds_.logit_rows());
  at.presence = places.take(DType::kF32, bounds_.logit_rows());
  at.row = places.take(DType::kI32, entries);
  at.id = places.take(DType::kI32, entries);
  at.count = places.take(DType::kI32, entries);
  at.logit_bias = places.take(DType::kF32, entries);
  at.in_prompt = places.take(DType::kU8, entries);
  at.raw = places.take(DType::kF32, entries);
  at.end = places.used;
  return at;
}

Status LogitAdjustments::reserve(size_t bytes) {
  if (bytes <= bytes_) return {};
  const size_t wanted = std::max(bytes, 2 * bytes_);  // doubles, because the lists grow step by step
  bytes_ = 0;
  SLUICE_TRY(memory_.replace(wanted, wanted));
  bytes_ = wanted;
  return {};
}

void LogitAdjustments::write(const Layout& l, const std::vector<Chunk>& chunks) const {
  std::byte* const host = memory_.host();
  // Initializes all rows: kernels do not read rows without entries, but the copy to the device includes them.
  std::fill_n(at<float>(host, l.repetition), bounds_.logit_rows(), 1.f);
  std::fill_n(at<float>(host, l.frequency), bounds_.logit_rows(), 0.f);
  std::fill_n(at<float>(host, l.presence), bounds_.logit_rows(), 0.f);
  size_t entry = 0;
  std::vector<AdjustedToken> changed;
  for (const Chunk& chunk : chunks) {
    if (!chunk.adjusts()) continue;
    const Sequence& s = *chunk.sequence;
    for (int64_t i = 0; i < chunk.rows(); ++i) {
      const auto row = static_cast<size_t>(*chunk.sampled + i);
      at<float>(host, l.repetition)[row] = static_cast<float>(*s.sampling.repetition_penalty);
      at<float>(host, l.frequency)[row] = static_cast<float>(*s.sampling.frequency_penalty);
      at<float>(host, l.presence)[row] = static_cast<float>(*s.sampling.presence_penalty);
      for (const AdjustedToken& token : adjusted_row(chunk, i, &changed)) {
        at<int32_t>(host, l.row)[entry] = static_cast<int32_t>(row);
        at<int32_t>(host, l.id)[entry] = token.id;
        at<int32_t>(host, l.count)[entry] = token.count;
        at<float>(host, l.logit_bias)[entry] = token.bias;
        at<uint8_t>(host, l.in_prompt)[entry] = token.in_prompt ? 1 : 0;
        ++entry;
      }
    }
  }
}

Status LogitAdjustments::fill(const std::vector<Chunk>& chunks) {
  entries_ = 0;
  std::vector<AdjustedToken> changed;
  for (const Chunk& chunk : chunks) {
    if (!chunk.adjusts()) continue;
    Sequence& s = *chunk.sequence;
    s.adjusted.update(s.tokens, s.prompt_tokens, s.sampling);
    for (int64_t i = 0; i < chunk.rows(); ++i) entries_ += std::ssize(adjusted_row(chunk, i, &changed));
  }
  const Layout l = layout(entries_);
  SLUICE_TRY(reserve(l.end));
  write(l, chunks);
  return memory_.send(l.raw);
}

Status LogitAdjustments::run(const PlanTable<AdjustLogits>& plans, const Tensor& logits, Workspace workspace,
                             Stream stream, KernelRuns* runs) const {
  const Layout l = layout(entries_);
  const bool apply = &plans == &*apply_;
  for (int64_t first = 0; first < entries_; first += kEntriesOfLaunch) {
    const int64_t count = std::min(kEntriesOfLaunch, entries_ - first);
    const auto list = [&](size_t offset, DType type) {
      return make_tensor(memory_.block() + offset + bytes_of(type, first), type, {count}, stream.where);
    };
    const auto of_rows = [&](size_t offset) {
      return make_tensor(memory_.block() + offset, DType::kF32, {bounds_.logit_rows()}, stream.where);
    };
    AdjustLogits::Args args{.row = list(l.row, DType::kI32),
                            .id = list(l.id, DType::kI32),
                            .count = {},
                            .in_prompt = {},
                            .logit_bias = {},
                            .repetition = {},
                            .frequency = {},
                            .presence = {},
                            .raw = list(l.raw, DType::kF32),
                            .logits = logits};
    if (apply) {
      args.count = list(l.count, DType::kI32);
      args.in_prompt = list(l.in_prompt, DType::kU8);
      args.logit_bias = list(l.logit_bias, DType::kF32);
      args.repetition = of_rows(l.repetition);
      args.frequency = of_rows(l.frequency);
      args.presence = of_rows(l.presence);
    }
    SLUICE_TRY(run_and_count(plans, count, args, workspace, stream, runs));
  }
  return {};
}

Status LogitAdjustments::apply(const Tensor& logits, Workspace workspace, Stream stream,
                               KernelRuns* runs) const {
  return run(*apply_, logits, workspace, stream, runs);
}

Status LogitAdjustments::restore(const Tensor& logits, Workspace workspace, Stream stream,
                                 KernelRuns* runs) const {
  return run(*restore_, logits, workspace, stream, runs);
}

}  // namespace sluice
