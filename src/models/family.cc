#include "models/family.h"

#include <filesystem>

#include "models/generation_config.h"
#include "models/quantization.h"
#include "models/read_config.h"

namespace sluice {

#define SLUICE_FAMILY(name) extern const Family name;
#include "models/families.def"
#undef SLUICE_FAMILY

namespace {

const Family* const kFamilies[] = {
#define SLUICE_FAMILY(name) &name,
#include "models/families.def"
#undef SLUICE_FAMILY
};

// Matrices are packed, except matrices that kernels read row by row or in checkpoint form.
bool is_packed(const TensorSpec& spec) {
  if (spec.shape.size() < 2 || spec.weight.ends_with("_bias")) return false;
  for (const char* copied : {"embedding", "router", "hash_table", "attention.kv_b"})
    if (spec.weight == copied) return false;
  return true;
}

}  // namespace

std::string use_of(const TensorSpec& spec, WeightLayout layout) {
  std::string out = spec.layer >= 0 ? "layer " + std::to_string(spec.layer) + " " : "";
  out += spec.weight;
  if (spec.first_row > 0) out += " from row " + std::to_string(spec.first_row);
  return out + (is_packed(spec) ? ": packed as " + std::string(word(layout)) : ": copied");
}

std::span<const Family* const> families() { return kFamilies; }

Result<const Family*> family_of(const JsonAt& config) {
  SLUICE_TRY(config.need_object());
  // Some tools identify a model only by model_type and omit architectures.
  if (!config.has("architectures") && config.has("model_type")) {
    const auto type = config.string("model_type");
    if (!type.ok()) return type.status();
    for (const Family* family : kFamilies)
      if (family->model_type == type.value() ||
          (!family->other_type.empty() && family->other_type == type.value()))
        return family;
  }
  const auto list = config.at("architectures");
  if (!list.ok()) return list.status();
  const auto items = list.value().items();
  if (!items.ok()) return items.status();
  if (items.value().size() != 1) return list.value().wrong("one architecture");
  const auto name = items.value().front().string();
  if (!name.ok()) return name.status();
  // Suggests no similar name, because another architecture is another model.
  std::string known;
  for (const Family* family : kFamilies) {
    if (family->architecture == name.value()) {
      // Also checks model_type, because transformers selects the model by it.
      const auto type = config.has("model_type") ? config.string("model_type")
                                                 : Result<std::string>(std::string(family->model_type));
      if (!type.ok()) return type.status();
      if (type.value() != family->model_type &&
          (family->other_type.empty() || type.value() != family->other_type))
        return Status{Code::kCorrupt, config.at("model_type").value().where() + ": wanted " +
                                          std::string(family->model_type) + " for architecture " +
                                          name.value() + ", found " + type.value()};
      return family;
    }
    known += (known.empty() ? "" : ", ") + std::string(family->architecture);
  }
  return unsupported(list.value().where() + ": wanted an architecture that Sluice runs (" + known +
                     "), found " + name.value());
}

Status fit_to_files(const Checkpoint& files, ModelConfig* config) {
  for (const Family* family : kFamilies)
    if (family->architecture == config->architecture) return family->fit(files, config);
  return {};
}

Result<ModelConfig> read_model_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  const Result<Json> json = read_json(path, kConfigBytesMax);
  if (!json.ok()) return json.status();
  const JsonAt config(json.value(), path);
  const auto family = family_of(config);
  if (!family.ok()) return family.status();
  Result<ModelConfig> read = family.value()->read(config);
  if (!read.ok()) return read.status();
  ModelConfig out = std::move(read).value();
  SLUICE_TRY(check_transforms(config));
  if (family.value()->formats) {
    const auto format = read_quantization(config, directory);
    if (!format.ok()) return format.status();
    SLUICE_TRY(set_format_of_experts(config, format.value(), &out));
  }
  const std::string generation = directory + "/generation_config.json";
  std::error_code error;
  if (!std::filesystem::exists(generation, error) && !error) {  // the file is optional
    SLUICE_TRY(read_stop_tokens(config, &out));
    SLUICE_TRY(read_generation_of_config(config, &out));
    return out;
  }
  const Result<Json> more = read_json(generation, kConfigBytesMax);
  if (!more.ok()) return more.status();
  const JsonAt root(more.value(), generation);
  SLUICE_TRY(read_generation_config(root, &out));
  if (out.stop_tokens.empty()) SLUICE_TRY(read_stop_tokens(config, &out));
  return out;
}

}  // namespace sluice
