#include "engine/masks.h"

#include "graph/run_and_count.h"

#include <algorithm>

#include "engine/places.h"
#include "nn/plan_into.h"

namespace sluice {

Result<std::unique_ptr<LogitMasks>> LogitMasks::make(Device& device, const StepBounds& bounds, int64_t vocab,
                                                     const Policy& policy) {
  std::unique_ptr<LogitMasks> out(new LogitMasks(device, bounds, vocab));
  MaskLogits::Problem p{.masks = 0, .rows = bounds.logit_rows(), .vocab = vocab};
  SLUICE_TRY(plan_into<MaskLogits>(&out->apply_, device, p, bounds.logit_rows(), policy));
  p.way = MaskWay::kRestore;
  SLUICE_TRY(plan_into<MaskLogits>(&out->restore_, device, p, bounds.logit_rows(), policy));
  return out;
}

size_t LogitMasks::workspace_bytes() const {
  return std::max(apply_->workspace_bytes(), restore_->workspace_bytes());
}

LogitMasks::Layout LogitMasks::layout(int64_t masks) const {
  Places places;
  Layout at{};
  at.row = places.take(DType::kI32, masks);
  at.allowed = places.take(DType::kI32, masks * words());
  at.raw = places.take(DType::kF32, masks * vocab_);
  at.end = places.used;
  return at;
}

Status LogitMasks::reserve(int64_t masks) {
  if (masks <= masks_max_) return {};
  const int64_t wanted = std::min(std::max(masks, 2 * masks_max_), bounds_.logit_rows());
  const Layout l = layout(wanted);
  masks_max_ = 0;
  SLUICE_TRY(memory_.replace(l.raw, l.end));
  masks_max_ = wanted;
  return {};
}

Status LogitMasks::fill(const std::vector<Chunk>& chunks) {
  masks_ = 0;
  for (const Chunk& chunk : chunks) masks_ += chunk.masked_rows();
  SLUICE_TRY(reserve(masks_));
  const Layout l = layout(masks_);
  auto* row = at<int32_t>(memory_.host(), l.row);
  auto* bits = at<uint32_t>(memory_.host(), l.allowed);
  for (const Chunk& chunk : chunks) {
    for (int64_t i = 0; i < chunk.masked_rows(); ++i) {
      *row++ = static_cast<int32_t>(*chunk.sampled + i);
      bits = std::ranges::copy(chunk.sequence->mask->of_row(i), bits).out;
    }
  }
  return memory_.send(l.raw);
}

Status LogitMasks::run(const PlanTable<MaskLogits>& plans, const Tensor& logits, Workspace workspace,
                       Stream stream, KernelRuns* runs) const {
  const Layout l = layout(masks_);
  const auto view = [&](size_t offset, DType type, std::initializer_list<int64_t> shape) {
    return make_tensor(memory_.block() + offset, type, shape, stream.where);
  };
  MaskLogits::Args args{.row = view(l.row, DType::kI32, {masks_}),
                        .allowed = {},
                        .raw = view(l.raw, DType::kF32, {masks_, vocab_}),
                        .logits = logits};
  if (&plans == &*apply_) args.allowed = view(l.allowed, DType::kI32, {masks_, words()});
  return run_and_count(plans, masks_, args, workspace, stream, runs);
}

Status LogitMasks::apply(const Tensor& logits, Workspace workspace, Stream stream, KernelRuns* runs) const {
  return run(*apply_, logits, workspace, stream, runs);
}

Status LogitMasks::restore(const Tensor& logits, Workspace workspace, Stream stream, KernelRuns* runs) const {
  return run(*restore_, logits, workspace, stream, runs);
}

}  // namespace sluice
