#include "nn/moe_apart.h"

#include <string>

namespace sluice {

Result<std::unique_ptr<MoeApart>> MoeApart::plan(Device& device, const MoeConfig& config, int64_t tokens_max,
                                                 const Policy& policy) {
  std::unique_ptr<MoeApart> out(new MoeApart(device));
  auto moe = Moe::plan(device, config, tokens_max, policy);
  if (!moe.ok()) return moe.status();
  out->moe_ = std::move(moe).value();
  const auto lend = [&](OwnedTensor* to, DType dtype, std::initializer_list<int64_t> shape) -> Status {
    auto made = OwnedTensor::make(device, slot("", Role::kIn, dtype, shape), "moe apart");
    if (!made.ok()) return made.status();
    return *to = std::move(made).value(), Status{};
  };
  SLUICE_TRY(lend(&out->x_, config.x, {tokens_max, config.hidden}));
  SLUICE_TRY(lend(&out->y_, config.x, {tokens_max, config.hidden}));
  if (config.residual) SLUICE_TRY(lend(&out->residual_, config.x, {tokens_max, config.hidden}));
  if (config.method == RoutingMethod::kHash) SLUICE_TRY(lend(&out->token_ids_, DType::kI32, {tokens_max}));
  SLUICE_TRY(lend(&out->scratch_, DType::kU8, {static_cast<int64_t>(out->moe_->workspace_bytes())}));
  return out;
}

Status MoeApart::forward(const MoeIo& io, const MoeWeights& weights) {
  const MoeConfig& c = moe_->config();
  const Stream stream = device_.stream();
  const int64_t tokens = io.x.shape[0], most = x_.view().shape[0];
  if (tokens > most)
    return invalid("moe apart: wanted 0 to " + std::to_string(most) + " tokens (the plan's bound), found " +
                   std::to_string(tokens));
  const auto place = [&](const OwnedTensor& t) {
    Tensor out = t.view();
    return out.shape[0] = tokens, out;
  };
  // The device's own tensors are contiguous, so a copy is one piece only if the host's is too.
  const auto check = [&](const char* name, const Tensor& t, const OwnedTensor& mine) -> Status {
    const SlotSpec spec = mine.bytes() == 0       ? slot(name, Role::kIn, c.x, {0}, false)
                          : mine.view().rank == 1 ? slot(name, Role::kIn, DType::kI32, {tokens})
                                                  : slot(name, Role::kIn, c.x, {tokens, c.hidden});
    Status status = check_slot(spec, t, Backend::kCpu, 1);
    if (!status.ok()) status.message = "moe apart: " + status.message;
    return status;
  };
  SLUICE_TRY(check("x", io.x, x_));
  SLUICE_TRY(check("residual", io.residual, residual_));
  SLUICE_TRY(check("token_ids", io.token_ids, token_ids_));
  SLUICE_TRY(check("y", io.y, y_));
  const auto send = [&](const Tensor& from, const OwnedTensor& to, Tensor* view) -> Status {
    if (to.bytes() == 0) return {};
    *view = place(to);
    return device_.copy(view->data, from.data, static_cast<size_t>(bytes_of(from.dtype, elements_of(from))),
                        stream);
  };
  MoeIo there{.x = {}, .residual = {}, .token_ids = {}, .y = place(y_)};
  SLUICE_TRY(send(io.x, x_, &there.x));
  SLUICE_TRY(send(io.residual, residual_, &there.residual));
  SLUICE_TRY(send(io.token_ids, token_ids_, &there.token_ids));
  SLUICE_TRY(
      moe_->forward(there, weights, {scratch_.view().as<std::byte>(), moe_->workspace_bytes()}, stream));
  SLUICE_TRY(device_.copy(io.y.data, there.y.data,
                          static_cast<size_t>(bytes_of(io.y.dtype, elements_of(io.y))), stream));
  return device_.wait(stream);
}

}  // namespace sluice
