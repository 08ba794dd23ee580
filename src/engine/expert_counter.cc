#include "engine/expert_counter.h"

#include "graph/run_and_count.h"

#include <unordered_set>

#include "base/arena.h"
#include "engine/places.h"
#include "nn/plan_into.h"

namespace sluice {

// Each layer's ids begin at an aligned address, so that routing can write them there directly
// (Moe::ids_stand_in).
ExpertCounter::ExpertCounter(Device& device, const CountExperts::Problem& largest,
                             std::vector<int32_t> layers)
    : device_(device),
      largest_(largest),
      layers_(std::move(layers)),
      layer_stride_(static_cast<int64_t>(
          Arena::footprint(static_cast<size_t>(bytes_of(DType::kI32, largest.tokens * largest.top_k))) /
          sizeof(int32_t))),
      memory_(device, "counts of experts' tokens") {}

Result<std::unique_ptr<ExpertCounter>> ExpertCounter::make(Device& device, const MoeConfig& moe,
                                                           std::vector<int32_t> layers, int64_t tokens,
                                                           const Policy& policy) {
  const CountExperts::Problem largest{
      .layers = std::ssize(layers), .tokens = tokens, .top_k = moe.top_k, .experts = moe.experts};
  std::unique_ptr<ExpertCounter> out(new ExpertCounter(device, largest, std::move(layers)));
  SLUICE_TRY(
      plan_into<CountExperts>(&out->plans_, device, CountExperts::at_tokens(largest, 0), tokens, policy));
  const auto ids = static_cast<size_t>(bytes_of(DType::kI32, largest.layers * out->layer_stride_));
  SLUICE_TRY(out->memory_.replace(out->count_bytes(), Arena::footprint(out->count_bytes()) + ids));
  SLUICE_TRY(out->memory_.send(out->count_bytes()));  // zeros
  SLUICE_TRY(device.wait(device.stream()));
  out->read();
  return out;
}

Tensor ExpertCounter::captured(int64_t tokens) const {
  Tensor out = make_tensor(memory_.block() + Arena::footprint(count_bytes()), DType::kI32,
                           {largest_.layers, tokens, largest_.top_k}, device_.info().backend);
  out.stride[0] = layer_stride_;
  return out;
}

int64_t ChosenExperts::distinct(int64_t layer) const {
  const auto begin = ids.begin() + layer * tokens * top_k;
  std::unordered_set<int32_t> there(begin, begin + tokens * top_k);
  there.erase(-1);  // -1: no expert
  return std::ssize(there);
}

Result<ChosenExperts> ExpertCounter::chosen(int64_t tokens) const {
  ChosenExperts out{.layers = largest_.layers, .tokens = tokens, .top_k = largest_.top_k};
  const int64_t of_layer = tokens * largest_.top_k;
  out.ids.resize(static_cast<size_t>(largest_.layers * of_layer));
  const Tensor from = captured(tokens);
  for (int64_t layer = 0; layer < largest_.layers; ++layer)
    SLUICE_TRY(device_.copy(out.ids.data() + layer * of_layer, from.row<int32_t>(layer),
                            static_cast<size_t>(bytes_of(DType::kI32, of_layer)), device_.stream()));
  SLUICE_TRY(device_.wait(device_.stream()));
  return out;
}

Status ExpertCounter::count(int64_t tokens, Workspace workspace, Stream stream, KernelRuns* runs) const {
  const Tensor counts =
      make_tensor(memory_.block(), DType::kI64, {largest_.layers, largest_.experts}, device_.info().backend);
  return run_and_count(*plans_, tokens, {.ids = captured(tokens), .counts = counts}, workspace, stream, runs);
}

Status ExpertCounter::enqueue_copy() const {
  return device_.copy(memory_.host(), memory_.block(), count_bytes(), device_.stream());
}

void ExpertCounter::read() {
  const auto* const from = at<const int64_t>(memory_.host(), 0);
  counts_ = std::make_shared<const ExpertCounts>(
      ExpertCounts{.layers = layers_,
                   .experts = largest_.experts,
                   .tokens = std::vector<int64_t>(from, from + largest_.layers * largest_.experts)});
}

Status ExpertCounter::fetch(int64_t step) {
  if (!copy_requested_ || under_way_) return {};
  SLUICE_TRY(enqueue_copy());
  under_way_ = step;
  copy_requested_ = false;
  return {};
}

void ExpertCounter::finish(int64_t step) {
  if (under_way_ != step) return;
  under_way_.reset();
  read();
}

void ExpertCounter::take_back() {
  copy_requested_ |= under_way_.has_value();
  under_way_.reset();
}

Status ExpertCounter::read_now() {
  SLUICE_TRY(enqueue_copy());
  SLUICE_TRY(device_.wait(device_.stream()));
  copy_requested_ = false;
  under_way_.reset();
  return read(), Status{};
}

}  // namespace sluice
