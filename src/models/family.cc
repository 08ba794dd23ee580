#include "models/family.h"

#include <algorithm>
#include <filesystem>

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

// What Hugging Face's generation can do and Sluice cannot, and the value that does nothing.
struct Neutral {
  const char* key;
  double value;
};
constexpr Neutral kNotSampledWith[] = {
    {"encoder_repetition_penalty", 1},
    {"no_repeat_ngram_size", 0},
    {"typical_p", 1},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"penalty_alpha", 0},
    {"num_beams", 1},
};

Status read_generation(const JsonAt& config, GenerationDefaults* out) {
  SLUICE_TRY(config.need_object());
  for (const Neutral& n : kNotSampledWith) {
    const auto value = config.number(n.key, n.value);
    if (!value.ok()) return value.status();
    if (value.value() == n.value) continue;
    Status status =
        config.at(n.key).value().wrong(number_text(n.value) + ", because Sluice samples without it");
    status.code = Code::kUnsupported;
    return status;
  }
  const auto sample = config.boolean("do_sample", true);
  if (!sample.ok()) return sample.status();
  const auto top_k = config.integer("top_k", 0, INT32_MAX, out->top_k);
  if (!top_k.ok()) return top_k.status();
  out->top_k = top_k.value();
  ConfigReader r{config};
  r.number("temperature", 0, kTemperatureMax, out->temperature, &out->temperature);
  r.number("top_p", 0, 1, out->top_p, &out->top_p);
  r.number("min_p", 0, 1, out->min_p, &out->min_p);
  r.number("repetition_penalty", kRepetitionMin, kRepetitionMax, 1, &out->repetition_penalty);
  r.number("frequency_penalty", -kPenaltyMax, kPenaltyMax, 0, &out->frequency_penalty);
  r.number("presence_penalty", -kPenaltyMax, kPenaltyMax, 0, &out->presence_penalty);
  SLUICE_TRY(r.status);
  if (!sample.value()) out->temperature = 0;
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
  // No name is taken for a slip of the pen: another architecture is another model.
  std::string known;
  for (const Family* family : kFamilies) {
    if (family->architecture == name.value()) return family;
    known += (known.empty() ? "" : ", ") + std::string(family->architecture);
  }
  return unsupported(list.value().where() + ": wanted an architecture that Sluice runs (" + known +
                     "), found " + name.value());
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
  std::error_code error;
  if (!std::filesystem::exists(generation, error) && !error) return out;  // checkpoints need not have it
  const Result<Json> more = read_json(generation, kConfigBytesMax);
  if (!more.ok()) return more.status();
  const JsonAt root(more.value(), generation);
  SLUICE_TRY(add_stop_tokens(root, out.decoder.vocab, &out.stop_tokens));
  SLUICE_TRY(read_generation(root, &out.generation));
  return out;
}

}  // namespace sluice
