#include "models/family.h"

#include <algorithm>
#include <filesystem>

#include "models/read_config.h"

namespace sluice {

#define SLUICE_FAMILY(name) extern const Family name;
#include "models/families.def"
#undef SLUICE_FAMILY

namespace {

constexpr int64_t kConfigBytesMax = 16 << 20;

const Family* const kFamilies[] = {
#define SLUICE_FAMILY(name) &name,
#include "models/families.def"
#undef SLUICE_FAMILY
};

// eos_token_id is a number or a list of them.
Status add_stop_tokens(const JsonAt& config, int64_t vocab, std::vector<int32_t>* out) {
  if (!config.has("eos_token_id")) return {};
  const Result<JsonAt> member = config.at("eos_token_id");
  if (!member.ok()) return member.status();
  std::vector<JsonAt> ids{member.value()};
  if (member.value().value().is_array()) {
    auto items = member.value().items();
    if (!items.ok()) return items.status();
    ids = std::move(items).value();
  }
  for (const JsonAt& id : ids) {
    const auto token = id.integer(0, vocab - 1);
    if (!token.ok()) return token.status();
    const auto value = static_cast<int32_t>(token.value());
    if (std::find(out->begin(), out->end(), value) == out->end()) out->push_back(value);
  }
  return {};
}

Status read_generation(const JsonAt& config, GenerationDefaults* out) {
  const auto sample = config.boolean("do_sample", true);
  if (!sample.ok()) return sample.status();
  const auto temperature = config.number("temperature", out->temperature);
  if (!temperature.ok()) return temperature.status();
  const auto top_p = config.number("top_p", out->top_p);
  if (!top_p.ok()) return top_p.status();
  const auto top_k = config.integer("top_k", 0, INT32_MAX, out->top_k);
  if (!top_k.ok()) return top_k.status();
  *out = {sample.value() ? temperature.value() : 0, top_p.value(), top_k.value()};
  return {};
}

struct PartText {
  const char* stage;
  bool packed;
};

// Indexed by DecoderPart.
constexpr PartText kParts[] = {
    {"embedding", false},
    {"logits.norm", false},
    {"logits", true},
    {"attention.norm", false},
    {"attention.qkv", true},
    {"attention.qkv bias", false},
    {"attention.o", true},
    {"attention.o bias", false},
    {"attention sinks", false},
    {"moe.norm", false},
    {"router", false},
    {"router bias", false},
    {"correction bias", false},
    {"hash table", false},
    {"experts", true},
    {"experts scales", true},
    {"experts bias", false},
    {"shared expert", true},
    {"shared expert scales", true},
};

}  // namespace

std::string use_of(const TensorSpec& spec, WeightLayout layout) {
  const PartText& part = kParts[static_cast<size_t>(spec.part)];
  std::string out = spec.layer >= 0 ? "layer " + std::to_string(spec.layer) + " " : "";
  out += part.stage;
  if (spec.part == DecoderPart::kQkv || spec.part == DecoderPart::kQkvBias)
    out += " from row " + std::to_string(spec.first_row);
  return out + (part.packed ? ": packed as " +
                                  std::string(EnumWords<WeightLayout>::words[static_cast<size_t>(layout)])
                            : ": copied");
}

std::span<const Family* const> families() { return kFamilies; }

Result<const Family*> family_of(const JsonAt& config) {
  const auto list = config.at("architectures");
  if (!list.ok()) return list.status();
  const auto items = list.value().items();
  if (!items.ok()) return items.status();
  if (items.value().size() != 1) return list.value().wrong("one architecture");
  const auto name = items.value().front().string();
  if (!name.ok()) return name.status();
  std::vector<std::string> known;
  for (const Family* family : kFamilies) {
    if (family->architecture == name.value()) return family;
    known.emplace_back(family->architecture);
  }
  Status status = unknown_name("architecture", name.value(), known);
  status.code = Code::kUnsupported;
  status.message = list.value().where() + ": " + status.message;
  return status;
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
  SLUICE_TRY(add_stop_tokens(config, out.decoder.vocab, &out.stop_tokens));
  const std::string generation = directory + "/generation_config.json";
  const Result<Json> more = read_json(generation, kConfigBytesMax);
  if (!more.ok()) return more.status();
  const JsonAt root(more.value(), generation);
  SLUICE_TRY(add_stop_tokens(root, out.decoder.vocab, &out.stop_tokens));
  SLUICE_TRY(read_generation(root, &out.generation));
  return out;
}

}  // namespace sluice
  std::error_code error;
  if (!std::filesystem::exists(generation, error) && !error) return out;  // checkpoints need not have it
