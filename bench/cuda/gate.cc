#include "cuda/gate.h"

namespace sluice::bench {

Status Gate::make(int64_t tokens_max) {
  const int64_t count = (cold_bytes_ + shape_.weight_bytes() - 1) / shape_.weight_bytes();
  SLUICE_TRY(memory_.random(shape_.w, {shape_.experts, shape_.hidden}, 0.02, count, &w_));
  SLUICE_TRY(memory_.random(DType::kBF16, {tokens_max, shape_.hidden}, 1, kTurns, &x_));
  SLUICE_TRY(memory_.several(shape_.logits(), {tokens_max, shape_.experts}, kTurns, &y_));
  SLUICE_TRY(to_host(memory_.device(), w_[0], &host_w_));
  if (!shape_.bias) return {};
  SLUICE_TRY(memory_.random(shape_.w, {shape_.experts}, 0.1, &bias_));
  return to_host(memory_.device(), bias_, &host_bias_);
}

RouterGemm::Args Gate::args(int64_t tokens, int64_t i) const {
  return {.x = first_rows(turn(x_, i), tokens),
          .w = turn(w_, i),
          .bias = bias_,
          .y = first_rows(turn(y_, i), tokens)};
}

Result<std::string> Gate::check(const Tensor& x, const Tensor& y, Who who) {
  for (const int64_t row : {int64_t{0}, y.shape[0] - 1}) {
    HostTensor from, got;
    SLUICE_TRY(to_host(memory_.device(), row_of(x, row), &from));
    SLUICE_TRY(to_host(memory_.device(), row_of(y, row), &got));
    const auto [known, fresh] = expected_.try_emplace(from.bytes);
    if (fresh) {
      const RouterGemm::Args args{
          .x = from.tensor, .w = host_w_.tensor, .bias = host_bias_.tensor, .y = got.tensor};
      known->second = std::move(reference(shape_.problem(1), args).front());
    }
    const Comparison c = compare(known->second, got.tensor);
    if (c.wrong > 0 && (who != Who::kPeer || c.worst_share > kPeerBounds))
      return "logits of row " + std::to_string(row) + ": " + c.text;
  }
  return std::string();
}

}  // namespace sluice::bench
