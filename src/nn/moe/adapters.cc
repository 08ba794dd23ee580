// LoRA adapters of a loaded layer: zeros at first, then one adapter at a time.
#include <algorithm>
#include <vector>

#include "nn/dense_load.h"
#include "nn/host_view.h"
#include "nn/moe/load.h"
#include "nn/moe/problems.h"
#include "weights/numbers.h"

namespace sluice {
namespace {

bool of_adapters(std::string_view name) { return name.find("lora_") != std::string_view::npos; }

// Converts one adapter's tensor to the slot's type, cut to this rank's experts, rows and columns.
class AdapterCut {
 public:
  AdapterCut(const MoeConfig& whole, const MoeConfig& local, const Slice& slice)
      : whole_(whole),
        local_(local),
        width_(part_of_width(whole.intermediate, slice, {whole.expert_w, whole.expert_scales})),
        experts_(part_of_experts(whole.experts, slice)) {}

  // The shape of the whole adapter's tensor. `experts`: how many experts the caller's tensor has.
  std::vector<int64_t> shape(const SlotSpec& spec, int64_t experts) const {
    std::vector<int64_t> out(spec.shape.begin() + 1, spec.shape.begin() + spec.rank);
    if (out.empty()) return {1};  // a scale
    if (!spec.name.starts_with("experts.")) return out;
    out[0] = experts;
    if (spec.name == "experts.up_lora_b") out[1] = out[1] / local_.intermediate * whole_.intermediate;
    if (spec.name == "experts.down_lora_a") out[2] = whole_.intermediate;
    return out;
  }
  // Whether a tensor may have this many experts: all of the layer, or only this rank's.
  bool may_have(int64_t experts) const { return experts == whole_.experts || experts == experts_.count; }

  std::vector<std::byte> cut(const SlotSpec& spec, const CheckpointTensor& t) const {
    int64_t elements = 1;
    for (int i = 1; i < spec.rank; ++i) elements *= spec.shape[static_cast<size_t>(i)];
    std::vector<std::byte> out(static_cast<size_t>(bytes_of(spec.dtype, elements)));
    if (!spec.name.starts_with("experts.") || spec.rank == 1) {
      convert_numbers(t.type, t.data, elements, spec.dtype, out.data());
      return out;
    }
    const int64_t rows = spec.shape[2], columns = spec.shape[3], from_columns = t.shape[2];
    const int64_t first_column = spec.name == "experts.down_lora_a" ? width_.begin : 0;
    const int64_t first_expert = t.shape[0] == whole_.experts ? experts_.begin : 0;
    for (int64_t e = 0; e < spec.shape[1]; ++e)
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t from_row =
            (first_expert + e) * t.shape[1] + (spec.name == "experts.up_lora_b" ? whole_row(row) : row);
        convert_numbers(t.type, t.data + number_bytes(t.type, from_row * from_columns + first_column),
                        columns, spec.dtype, out.data() + bytes_of(spec.dtype, (e * rows + row) * columns));
      }
    return out;
  }

 private:
  // The row in the whole W13 of this rank's row `row`.
  int64_t whole_row(int64_t row) const {
    if (!is_gated(local_.act)) return width_.begin + row;
    const bool interleaved = local_.gate_order == GateOrder::kInterleaved;
    const int64_t feature = interleaved ? row / 2 : row % width_.count;
    const bool up = gated_row(local_.gate_order, width_.count, feature, true) == row;
    return gated_row(local_.gate_order, whole_.intermediate, width_.begin + feature, up);
  }

  const MoeConfig &whole_, &local_;
  Part width_, experts_;
};

}  // namespace

Status LoadedMoe::clear_adapters() {
  constexpr int64_t kPiece = int64_t{4} << 20;
  if (config_.expert_lora_rank == 0) return {};
  const std::vector<std::byte> zeros(kPiece);
  for (const auto& [spec, tensor] : weight_slots(config_, &weights_)) {
    if (!spec.used || !spec.name.starts_with("experts.") || !of_adapters(spec.name)) continue;
    const int64_t bytes = bytes_of_slot(spec);
    for (int64_t at = 0; at < bytes; at += kPiece)
      SLUICE_TRY(device_.copy(tensor->as<std::byte>() + at, zeros.data(),
                              static_cast<size_t>(std::min(kPiece, bytes - at)), device_.stream()));
  }
  return device_.wait(device_.stream());
}

Status LoadedMoe::replace_adapter(const Checkpoint& checkpoint, int64_t adapter) {
  const auto of_layer = [&](const Status& status) -> Status {
    return {status.code, "layer " + std::to_string(layer()) + ": " + status.message};
  };
  const auto refuse = [&](const std::string& what) { return of_layer(invalid(what)); };
  if (config_.lora_adapters == 0)
    return refuse("adapter: wanted a layer with adapters (lora_adapters above 0), found lora_adapters=0");
  if (adapter < 0 || adapter >= config_.lora_adapters)
    return refuse("adapter: wanted 0 to " + std::to_string(config_.lora_adapters - 1) + ", found " +
                  std::to_string(adapter));
  if (whole_.scope != ExpertScope::kAll)
    return refuse("scope: wanted all (a rank is made with a slice instead), found " +
                  std::string(word(whole_.scope)));
  SLUICE_TRY(check_readable(device_, checkpoint));
  const auto slots = weight_slots(config_, &weights_);
  // An adapter of parts that have no adapters here would lose these parts in silence.
  for (const CheckpointTensor& t : checkpoint.tensors()) {
    const bool known = std::any_of(slots.begin(), slots.end(), [&](const auto& slot) {
      return slot.first.used && of_adapters(slot.first.name) && slot.first.name == t.name;
    });
    if (!known)
      return refuse("wanted only tensors of adapters that the layer has (lora_rank=" +
                    std::to_string(config_.lora_rank) + ", expert_lora_rank=" +
                    std::to_string(config_.expert_lora_rank) + "), found " + place_of(t));
  }
  const AdapterCut cut(whole_, config_, options_.slice);
  std::vector<std::pair<Tensor, std::vector<std::byte>>>
      parts;  // the tensor of all adapters, and this adapter's bytes
  HostView host(device_);
  for (const auto& [spec, tensor] : slots) {
    if (!spec.used || !of_adapters(spec.name)) continue;
    const std::string name(spec.name);
    const CheckpointTensor* there = checkpoint.find_if_there(name);
    const bool of_this_rank = there && !there->shape.empty() && cut.may_have(there->shape[0]);
    const auto found = find_dense(
        checkpoint, name, cut.shape(spec, of_this_rank ? there->shape[0] : whole_.experts), spec.dtype);
    if (!found.ok()) return of_layer(found.status());
    const CheckpointTensor& t = *found.value();
    const auto near = host.tensor(t);
    if (!near.ok()) return near.status();
    if (const Status finite = check_numbers(near.value(), Numbers::kFinite); !finite.ok())
      return of_layer(finite);
    parts.emplace_back(*tensor, cut.cut(spec, near.value()));
  }
  // Everything is checked; now write.
  for (const auto& [all, bytes] : parts)
    SLUICE_TRY(device_.copy(all.as<std::byte>() + adapter * static_cast<int64_t>(bytes.size()), bytes.data(),
                            bytes.size(), device_.stream()));
  return device_.wait(device_.stream());
}

}  // namespace sluice
