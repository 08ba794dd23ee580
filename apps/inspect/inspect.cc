#include "apps/inspect/inspect.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "dispatch/explain.h"
#include "models/draft.h"
#include "models/tensor_source.h"
#include "weights/checkpoint.h"
#include "weights/numbers.h"
#include "weights/stored_matrix.h"

namespace sluice::apps {
namespace {

// The tensors that the config requires, under the family's naming that matches most tensors in the files.
std::vector<TensorSpec> wanted_of(const Family& family, const ModelConfig& config,
                                  const Checkpoint& checkpoint) {
  std::vector<TensorSpec> best;
  int64_t largest = -1;
  for (MoeNaming naming : family.namings(config)) {
    std::vector<TensorSpec> specs = family.tensors(config, naming);
    const int64_t found = std::count_if(specs.begin(), specs.end(), [&](const TensorSpec& s) {
      return checkpoint.find_if_there(s.name) != nullptr;
    });
    if (found > largest) best = std::move(specs), largest = found;
  }
  // Some tools remove the draft layer from the files but not from the config.
  if (!has_mtp_layer(checkpoint, config)) return best;
  const std::vector<TensorSpec> draft =
      mtp_tensors(mtp_config(config).value(), std::ssize(config.decoder.layers));
  best.insert(best.end(), draft.begin(), draft.end());
  return best;
}

void use_copies(const ModelConfig& config, const Checkpoint& checkpoint, Inspection* out) {
  if (!has_mtp_layer(checkpoint, config)) return;
  const std::vector<std::string> copies = mtp_copies(std::ssize(config.decoder.layers));
  for (InspectedTensor& t : out->tensors)
    if (std::ranges::count(copies, t.name) > 0) t.use = "draft layer: not read, the model's own is used";
}

// Whether the matrix is stored as codes with scales. Sluice either widens such a matrix to bf16 or keeps its
// format.
bool has_parts(const Checkpoint& checkpoint, const TensorSpec& spec) {
  return spec.format.scaled() || is_widened(checkpoint, spec);
}

// The format in which the checkpoint stores the matrix; empty: unknown.
std::string format_of(const Checkpoint& checkpoint, const TensorSpec& spec) {
  const auto format = stored_format(checkpoint, spec.name, spec.shape[0],
                                    spec.format.scaled() ? spec.columns : spec.shape[1]);
  return format ? text(*format) : "";
}

// Records the use of all tensors of a matrix: its codes, its scales, and scales of activations.
void use_parts(const Checkpoint& checkpoint, const TensorSpec& spec,
               const std::map<std::string, InspectedTensor*>& by_name) {
  const auto parts = tensors_of_matrix(checkpoint, spec.name);
  for (const CheckpointTensor* part : parts) {
    InspectedTensor& t = *by_name.at(part->name);
    const bool of_activations =
        t.name.find(".input_") != std::string::npos || t.name.ends_with(".qscale_act");
    t.use = of_activations ? "scale of activations, which stay in bf16: not read"
                           : "scales of " + parts.front()->name;
  }
  InspectedTensor& codes = *by_name.at(parts.front()->name);
  codes.use = use_of(spec, WeightLayout::kPanels16) + ", " + format_of(checkpoint, spec);
  const Status status =
      spec.format.scaled()
          ? find_matrix(checkpoint, spec.name, spec.format,
                        {.rows = spec.shape[0], .width = spec.columns, .count = spec.shape[0]})
                .status()
          : check_widened(checkpoint, spec);
  if (!status.ok()) codes.wrong = status.message;
  if (!spec.format.scaled()) codes.use += ", rounded to bf16";
}

void use_specs(const std::vector<TensorSpec>& specs, const Checkpoint& checkpoint, Inspection* out) {
  std::map<std::string, InspectedTensor*> by_name;
  for (InspectedTensor& t : out->tensors) by_name[t.name] = &t;
  for (const TensorSpec& spec : specs) {
    if (spec.format.scaled() && !is_codes(spec)) continue;  // use_parts() records scales with their codes
    if (has_parts(checkpoint, spec) && !tensors_of_matrix(checkpoint, spec.name).empty()) {
      use_parts(checkpoint, spec, by_name);
      continue;
    }
    const auto at = by_name.find(spec.name);
    if (at == by_name.end()) {
      out->missing.push_back(spec.name + " " + stored_text(spec.type, spec.shape));
      continue;
    }
    InspectedTensor& t = *at->second;
    t.use = use_of(spec, WeightLayout::kPanels16);
    const CheckpointTensor& stored = *checkpoint.find(t.name).value();
    if (!checkpoint.holds(stored, spec.type) || stored.shape != spec.shape) {
      t.wrong = "wanted " + stored_text(spec.type, spec.shape);
    } else if (is_number(spec.type) && stored.type != spec.type) {
      t.use +=
          (spec.type == StoredType::kF32 ? ", widened to " : ", rounded to ") + std::string(text(spec.type));
    }
  }
}

// For models of unknown families: finds the MoE layers that nn/moe/load.h can load, by the names of their tensors.
void use_moe_names(const Checkpoint& checkpoint, MoeNaming naming, Inspection* out) {
  std::map<std::string, std::string> uses;
  const MoeNames& n = moe_names(naming);
  const std::string packed = ": packed as panels16 when its MoE layer is loaded";
  for (int64_t layer : moe_layers(checkpoint, naming)) {
    const std::string place = "layer " + std::to_string(layer) + " ";
    for (std::string_view p :
         {n.router, n.router_bias, n.correction_bias, n.hash_table, n.up_bias, n.down_bias})
      uses[tensor_name(p, layer)] = place + "MoE: copied when its MoE layer is loaded";
    const auto matrix = [&](std::string_view pattern, int64_t expert, const std::string& use) {
      const std::string name = tensor_name(pattern, layer, expert);
      uses[name] = use;
      for (const CheckpointTensor* part : tensors_of_matrix(checkpoint, name)) uses[part->name] = use;
    };
    for (std::string_view p : {n.shared_gate, n.shared_up, n.shared_down})
      matrix(p, 0, place + "shared expert" + packed);
    for (int64_t e = 0; e == 0 || !tensors_of_matrix(checkpoint, tensor_name(n.up, layer, e)).empty(); ++e) {
      for (std::string_view p : {n.gate, n.up, n.down, n.up_scale, n.down_scale})
        matrix(p, e,
               place + (n.storage == ExpertStorage::kOneByOne ? "expert " + std::to_string(e) : "experts") +
                   packed);
      if (n.storage != ExpertStorage::kOneByOne) break;
    }
  }
  for (InspectedTensor& t : out->tensors)
    if (const auto found = uses.find(t.name); found != uses.end()) t.use = found->second;
}

}  // namespace

int64_t Inspection::wrong() const {
  return std::count_if(tensors.begin(), tensors.end(),
                       [](const InspectedTensor& t) { return !t.wrong.empty(); });
}

Result<Inspection> inspect(const std::string& path) {
  auto checkpoint = Checkpoint::open(path);
  if (!checkpoint.ok()) return checkpoint.status();
  const Checkpoint& c = *checkpoint.value();
  Inspection out{
      .path = path, .architecture = {}, .note = {}, .tensors = {}, .missing = {}, .bytes = c.bytes()};
  for (const CheckpointTensor& t : c.tensors())
    out.tensors.push_back({t.name,
                           stored_text(t.type, t.shape),
                           std::filesystem::path(*t.file).filename().string(),
                           t.bytes,
                           "not used",
                           {}});
  std::error_code error;
  const std::string directory =
      std::filesystem::is_directory(path, error) ? path : std::filesystem::path(path).parent_path().string();
  Result<ModelConfig> config = read_model_config(directory);
  const Status fits = config.ok() ? fit_to_files(c, &config.value()) : config.status();
  if (!fits.ok()) {
    out.note = fits.message;
    if (const auto naming = detect(c); naming.ok()) use_moe_names(c, naming.value(), &out);
    return out;
  }
  out.architecture = config.value().architecture;
  for (const Family* family : families())
    if (family->architecture == out.architecture) use_specs(wanted_of(*family, config.value(), c), c, &out);
  use_copies(config.value(), c, &out);
  return out;
}

}  // namespace sluice::apps
