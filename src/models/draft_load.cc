#include "models/draft_load.h"

#include <algorithm>

#include "nn/dense_load.h"
#include "nn/moe/canary.h"

namespace sluice {

Status DraftWeights::load(TensorSource* source, const std::vector<TensorSpec>& specs, const Mlp& mlp) {
  slots_ = draft_layer_weights(parts_.config);
  for (size_t begin = 0, end = 0; begin < specs.size(); begin = end) {
    while (end < specs.size() && specs[end].of_mlp == specs[begin].of_mlp &&
           (specs[begin].of_mlp || specs[end].weight == specs[begin].weight))
      ++end;
    SLUICE_TRY(load_weight(source, std::span(specs).subspan(begin, end - begin), mlp));
  }
  return {};
}

Status DraftWeights::check(const TensorSource& source, const std::vector<TensorSpec>& specs) const {
  int64_t here = 0, offloaded = 0;
  for (const TensorSpec& spec : specs) {
    (spec.of_mlp && parts_.experts ? offloaded : here) += *stored_bytes(spec.type, spec.shape);
    // load_moe() checks most tensors of the experts itself, because it accepts more types than `spec` says.
    if (!spec.of_mlp || parts_.config.mlp.dense || source.is_widened(spec)) SLUICE_TRY(source.check(spec));
  }
  const auto check_free = [&](const Device& device, int64_t wanted) -> Status {
    const int64_t free = device.free_bytes();
    if (wanted <= free) return {};
    return out_of_memory(source.place() + ": wanted " + std::to_string(wanted) +
                         " bytes of memory for the draft layer, found " + std::to_string(free) + " free");
  };
  SLUICE_TRY(check_free(device_, here));
  return parts_.experts ? check_free(*parts_.experts, offloaded) : Status{};
}

SlotSpec DraftWeights::slot_of(std::string_view name) const {
  const auto found = std::ranges::find(slots_, name, &HeldSlot::name);
  return found == slots_.end() ? SlotSpec{} : found->spec;
}

Status DraftWeights::keep(Result<OwnedTensor> made, const SlotSpec& slot) {
  if (!made.ok()) return made.status();
  parts_.weights.set(-1, slot.name, shaped_like(slot, made.value().view()));
  parts_.weight_bytes += made.value().bytes();
  parts_.dense.push_back(std::move(made).value());
  return {};
}

// Loads one weight from the tensors that form it, or loads the MLP.
Status DraftWeights::load_weight(TensorSource* source, std::span<const TensorSpec> specs, const Mlp& mlp) {
  const auto held = source->hold(specs);
  if (!held.ok()) return held.status();
  const Checkpoint& from = *held.value();
  const TensorSpec& first = specs.front();
  if (first.of_mlp) return load_mlp(from, mlp);
  SlotSpec slot = slot_of(first.weight);
  slot.name = first.weight;
  if (specs.size() == 1 && slot.dtype != DType::kU8)
    return keep(load_dense(device_, from, {first.name, first.shape}, host_threads(device_)), slot);
  std::vector<DensePart> rows;
  for (const TensorSpec& spec : specs) rows.push_back({spec.name, spec.shape[0]});
  if (first.shape.size() == 1) return keep(load_stacked(device_, from, rows, DType::kBF16), slot);
  return keep(pack_dense(device_, from, rows, first.shape[1], host_threads(device_)), slot);
}

Status DraftWeights::load_mlp(const Checkpoint& from, const Mlp& mlp) {
  Device& device = parts_.experts ? *parts_.experts : device_;
  const MoeConfig& config = parts_.config.mlp;
  auto loaded =
      load_moe(device, from, config,
               {.naming = mlp.naming, .layer = mlp.layer, .slice = {}, .threads = host_threads(device_)});
  if (!loaded.ok()) return loaded.status();
  SLUICE_TRY(canary(device, *loaded.value(), from));
  parts_.weight_bytes += loaded.value()->bytes();
  parts_.weights.set_moe(-1, config, loaded.value()->weights());
  parts_.mlp = std::move(loaded).value();
  return {};
}

LoadedDraft::LoadedDraft(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
LoadedDraft::~LoadedDraft() = default;
const DraftLayerConfig& LoadedDraft::config() const { return parts_->config; }
const NamedWeights& LoadedDraft::weights() const { return parts_->weights; }
int64_t LoadedDraft::weight_bytes() const { return parts_->weight_bytes; }
std::optional<int64_t> LoadedDraft::speculative_tokens() const { return parts_->speculative_tokens; }
Device* LoadedDraft::experts() const { return parts_->experts; }

}  // namespace sluice
