#include "nn/moe/offloaded.h"

#include <string>

namespace sluice {

Result<std::unique_ptr<OffloadedMoe>> OffloadedMoe::plan(Device& device, const MoeConfig& config,
                                                         int64_t tokens_max, const Policy& policy,
                                                         const MoeBackend& backend) {
  std::unique_ptr<OffloadedMoe> out(new OffloadedMoe(device));
  auto moe = Moe::plan(device, config, tokens_max, policy, backend);
  if (!moe.ok()) return moe.status();
  out->moe_ = std::move(moe).value();
  const auto lend = [&](OwnedTensor* to, const SlotSpec& spec) -> Status {
    auto made = OwnedTensor::make(device, spec, "offloaded moe: " + std::string(spec.name));
    if (!made.ok()) return made.status();
    return *to = std::move(made).value(), Status{};
  };
  MoeIo unused;
  for (const auto& [spec, tensor] : io_slots(config, tokens_max, &unused))
    if (OwnedTensor& to = out->io_.emplace_back(); spec.used) SLUICE_TRY(lend(&to, spec));
  const auto bytes = static_cast<int64_t>(out->moe_->workspace_bytes());
  SLUICE_TRY(lend(&out->scratch_, slot("workspace", Role::kIn, DType::kU8, {bytes})));
  return out;
}

Status OffloadedMoe::forward(const MoeIo& io, const MoeWeights& weights, KernelRuns* runs) {
  const Stream stream = device_.stream();
  const int64_t tokens = io.x.shape[0];
  if (tokens > moe_->tokens_max())
    return invalid("offloaded moe: wanted 0 to " + std::to_string(moe_->tokens_max()) +
                   " tokens (the plan's bound), found " + std::to_string(tokens));
  MoeIo here = io, there;
  const auto given = io_slots(moe_->config(), tokens, &here);
  const auto lent = io_slots(moe_->config(), tokens, &there);
  // Requires contiguous host tensors, as the device's are, so that each tensor is a single copy.
  for (auto [spec, tensor] : given) {
    spec.rows = Rows::kPacked, spec.row_align = 1;
    Status status = check_slot(spec, *tensor, Backend::kCpu, 1);
    if (!status.ok()) return status.message = "offloaded moe: " + status.message, status;
  }
  const auto bytes = [](const Tensor& t) { return static_cast<size_t>(bytes_of(t.dtype, elements_of(t))); };
  for (size_t i = 0; i < lent.size(); ++i) {
    const auto& [spec, to] = lent[i];
    if (!spec.used) continue;
    *to = io_[i].view();
    to->shape[0] = spec.shape[0];
    if (spec.role == Role::kIn) SLUICE_TRY(device_.copy(to->data, given[i].second->data, bytes(*to), stream));
  }
  SLUICE_TRY(moe_->forward(there, weights, {scratch_.view().as<std::byte>(), moe_->workspace_bytes()}, stream,
                           runs));
  for (size_t i = 0; i < lent.size(); ++i) {
    const auto& [spec, from] = lent[i];
    if (spec.used && spec.role == Role::kOut)
      SLUICE_TRY(device_.copy(given[i].second->data, from->data, bytes(*from), stream));
  }
  return device_.wait(stream);
}

}  // namespace sluice
