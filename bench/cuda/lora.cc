// LoRA on a gate: its contribution to the logits, for tokens of several adapters.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "backends/cuda/queue.h"
#include "cuda/ours.h"
#include "cuda/suites.h"
#include "ops/lora_delta.h"

namespace sluice::bench {
namespace {

struct LoraShape {
  int64_t hidden, features, rank, adapters;
  std::string model() const { return std::to_string(hidden) + "x" + std::to_string(features); }
  std::string note() const {
    return "rank " + std::to_string(rank) + " with " + std::to_string(adapters) +
           (adapters == 1 ? " adapter" : " adapters");
  }
  int64_t weight_bytes() const { return bytes_of(DType::kBF16, adapters * rank * (hidden + features)); }
  LoraDelta::Problem problem(int64_t tokens) const {
    return {.tokens = tokens, .features = features, .hidden = hidden, .rank = rank, .adapters = adapters};
  }
};
constexpr LoraShape kLoraShapes[] = {
    {2880, 128, 16, 1}, {2880, 128, 16, 4}, {2880, 128, 64, 4}, {7168, 256, 16, 4}};

// Tokens grouped by adapter, as in a batch of sequences; one token in sixteen has no adapter.
class Lora {
 public:
  Lora(Device& device, const LoraShape& shape, int64_t cold_bytes)
      : shape_(shape), cold_bytes_(cold_bytes), memory_(device) {}

  Status make(int64_t tokens) {
    const auto [hidden, features, rank, adapters] = shape_;
    const int64_t count = (cold_bytes_ + shape_.weight_bytes() - 1) / shape_.weight_bytes();
    SLUICE_TRY(memory_.random(DType::kBF16, {adapters, rank, hidden}, 0.02, count, &a_));
    SLUICE_TRY(memory_.random(DType::kBF16, {adapters, features, rank}, 0.1, count, &b_));
    SLUICE_TRY(memory_.random(DType::kF32, {adapters}, 1, &scale_));
    SLUICE_TRY(memory_.random(DType::kBF16, {tokens, hidden}, 1, kTurns, &x_));
    SLUICE_TRY(memory_.several(DType::kF32, {tokens, features}, kTurns, &y_));
    SLUICE_TRY(memory_.tensor(DType::kI32, {tokens}, &adapter_));
    adapter_of_.resize(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t)
      adapter_of_[static_cast<size_t>(t)] = static_cast<int32_t>(t % 16 == 15 ? -1 : t * adapters / tokens);
    return cuda::check(cudaMemcpy(adapter_.data, adapter_of_.data(), adapter_of_.size() * sizeof(int32_t),
                                  cudaMemcpyHostToDevice),
                       "adapters of tokens");
  }
  Memory& memory() { return memory_; }
  LoraDelta::Args args(int64_t i) const {
    return {.x = turn(x_, i),
            .a = turn(a_, i),
            .b = turn(b_, i),
            .scale = scale_,
            .adapter = adapter_,
            .y = turn(y_, i)};
  }
  // Sets y of run 0 to zero.
  Status clear() {
    const Tensor& y = y_[0];
    return cuda::check(cudaMemsetAsync(y.data, 0, static_cast<size_t>(bytes_of(y.dtype, elements_of(y))),
                                       cuda::queue_of(memory_.stream()).stream),
                       "zeros");
  }
  // Checks the first row of run 0 and the last two, because one of the last two may have no adapter.
  Result<std::string> check() {
    HostTensor a, b, scale;
    SLUICE_TRY(to_host(memory_.device(), a_[0], &a));
    SLUICE_TRY(to_host(memory_.device(), b_[0], &b));
    SLUICE_TRY(to_host(memory_.device(), scale_, &scale));
    const int64_t last = y_[0].shape[0] - 1;
    for (const int64_t row : {int64_t{0}, std::max<int64_t>(last - 1, 0), last}) {
      HostTensor x, got;
      SLUICE_TRY(to_host(memory_.device(), row_of(x_[0], row), &x));
      SLUICE_TRY(to_host(memory_.device(), row_of(y_[0], row), &got));
      std::vector<float> zeros(static_cast<size_t>(shape_.features));
      Tensor before = got.tensor,
             adapter = make_tensor(&adapter_of_[static_cast<size_t>(row)], DType::kI32, {1});
      before.data = zeros.data();
      const Expected wanted = std::move(
          reference(shape_.problem(1), {x.tensor, a.tensor, b.tensor, scale.tensor, adapter, before})
              .front());
      if (const Comparison c = compare(wanted, got.tensor); c.wrong > 0)
        return "row " + std::to_string(row) + ": " + c.text;
    }
    return std::string();
  }

 private:
  LoraShape shape_;
  int64_t cold_bytes_;
  Memory memory_;
  std::vector<Tensor> a_, b_, x_, y_;
  Tensor scale_ = {}, adapter_ = {};
  std::vector<int32_t> adapter_of_;
};

}  // namespace

Status Bench::lora() {
  auto left = static_cast<int64_t>(std::size(kLoraShapes));
  for (const LoraShape& shape : kLoraShapes) {
    share(left--);
    if (!wants(shape.model())) continue;
    for (const int64_t tokens : this->tokens()) {
      if (over(shape.model(), tokens)) continue;
      Lora lora(device_, shape, options_.cold_bytes);
      SLUICE_TRY(lora.make(tokens));
      const LoraDelta::Problem problem = shape.problem(tokens);
      for (const bool dependent : {false, true}) {
        Contest contest{.suite = "lora",
                        .op = dependent ? "lora_delta_pdl" : "lora_delta",
                        .model = shape.model(),
                        .note = shape.note(),
                        .tokens = tokens,
                        .bytes = LoraDelta::bytes(problem),
                        .flops = LoraDelta::flops(problem)};
        contest.launches = launches_for(shape.weight_bytes(), contest.bytes, contest.flops);
        contest.poison = [&] { return lora.clear(); };
        contest.verify = [&](Who) { return lora.check(); };
        std::vector<std::string> complaints;
        SLUICE_TRY(add_ours<LoraDelta>(
            lora.memory(), problem, [&lora](int64_t i) { return lora.args(i); }, dependent, &contest,
            &complaints));
        SLUICE_TRY(hold(contest, std::move(complaints)));
      }
    }
  }
  return {};
}

}  // namespace sluice::bench
