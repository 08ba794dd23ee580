#include "apps/inspect.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "dispatch/explain.h"
#include "models/family.h"
#include "weights/checkpoint.h"

namespace sluice::apps {
namespace {

std::string wanted_text(const TensorSpec& spec) {
  const auto type = stored_type(spec.dtype);
  return type ? stored_text(*type, spec.shape) : spec.dtype;
}

// The tensors of the naming that the checkpoint uses: the one of which it has more.
std::vector<TensorSpec> wanted_of(const Family& family, const ModelConfig& config,
                                  const Checkpoint& checkpoint) {
  std::vector<TensorSpec> best;
  int64_t most = -1;
  for (Naming naming : {Naming::kHuggingFace, Naming::kOriginal}) {
    std::vector<TensorSpec> specs = family.tensors(config, naming);
    const int64_t found = std::count_if(specs.begin(), specs.end(), [&](const TensorSpec& s) {
      return checkpoint.find_if_there(s.name) != nullptr;
    });
    if (found > most) best = std::move(specs), most = found;
  }
  return best;
}

void use_specs(const std::vector<TensorSpec>& specs, Inspection* out) {
  std::map<std::string, const TensorSpec*> by_name;
  for (const TensorSpec& s : specs) by_name[s.name] = &s;
  for (InspectedTensor& t : out->tensors) {
    const auto found = by_name.find(t.name);
    if (found == by_name.end()) continue;
    const TensorSpec& spec = *found->second;
    t.use = use_of(spec, WeightLayout::kPanels16);
    if (t.type != wanted_text(spec)) t.wrong = "wanted " + wanted_text(spec);
    by_name.erase(found);
  }
  for (const TensorSpec& s : specs)
    if (by_name.count(s.name)) out->missing.push_back(s.name + " " + wanted_text(s));
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
  const std::string directory =
      std::filesystem::is_directory(path) ? path : std::filesystem::path(path).parent_path().string();
  const Result<ModelConfig> config = read_model_config(directory);
  if (!config.ok()) {
    out.note = config.status().message;
    return out;
  }
  out.architecture = config.value().architecture;
  for (const Family* family : families())
    if (family->architecture == out.architecture) use_specs(wanted_of(*family, config.value(), c), &out);
  return out;
}

}  // namespace sluice::apps
