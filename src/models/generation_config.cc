// Source  Hugging Face transformers, generation/configuration_utils.py (GenerationConfig: keys and defaults)
//         and generation/utils.py.
#include "models/generation_config.h"

#include <algorithm>
#include <string_view>

#include "models/read_config.h"

namespace sluice {
namespace {

// Keys of features that Sluice does not support, and the JSON value that means "off". null and a missing key
// also mean "off".
struct Neutral {
  std::string_view key, value;
};
constexpr Neutral kNotComputed[] = {
    {"assistant_ensemble_weight", "null"},
    {"bad_words_ids", "[]"},
    {"begin_suppress_tokens", "[]"},
    {"constraints", "[]"},
    {"dola_layers", "null"},
    {"encoder_no_repeat_ngram_size", "0"},
    {"encoder_repetition_penalty", "1"},
    {"epsilon_cutoff", "0"},
    {"eta_cutoff", "0"},
    {"exponential_decay_length_penalty", "null"},
    {"force_words_ids", "[]"},
    {"forced_bos_token_id", "null"},
    {"forced_eos_token_id", "null"},
    {"guidance_scale", "1"},
    {"max_time", "null"},
    {"min_length", "0"},
    {"min_new_tokens", "0"},
    {"no_repeat_ngram_size", "0"},
    {"num_beams", "1"},
    {"num_return_sequences", "1"},
    {"penalty_alpha", "0"},
    {"sequence_bias", "{}"},
    {"stop_strings", "[]"},
    {"suppress_tokens", "[]"},
    {"token_healing", "false"},
    {"top_h", "null"},
    {"typical_p", "1"},
    {"watermarking_config", "null"},
};

constexpr std::string_view kComputed[] = {
    "do_sample",        "eos_token_id",       "frequency_penalty", "max_length", "max_new_tokens", "min_p",
    "presence_penalty", "repetition_penalty", "temperature",       "top_k",      "top_p",
};

// Keys that do not change the tokens of an answer: caching, compilation, lookahead and extra outputs of
// generate(), ids of tokens that are not needed here, and settings of beam search.
constexpr std::string_view kNoSay[] = {
    "_commit_hash",
    "_from_model_config",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "decoder_start_token_id",
    "disable_compile",
    "diversity_penalty",
    "early_stopping",
    "is_assistant",
    "length_penalty",
    "low_memory",
    "max_cache_len",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_beam_groups",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "remove_invalid_values",
    "renormalize_logits",
    "return_dict_in_generate",
    "return_legacy_cache",
    "speculation_type",
    "target_lookbehind",
    "transformers_version",
    "use_cache",
    "use_mtp",
};

template <size_t N>
bool is_one_of(const std::string_view (&keys)[N], std::string_view key) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

Status unsupported_value(const JsonAt& value, const std::string& wanted) {
  Status status = value.wrong(wanted);
  status.code = Code::kUnsupported;
  return status;
}

Status check_not_computed(const JsonAt& config) {
  for (const Neutral& n : kNotComputed) {
    const std::string key(n.key);
    if (!config.has(key)) continue;
    const JsonAt member = config.at(key).value();
    if (member.value() == Json::parse(n.value)) continue;
    return unsupported_value(member, std::string(n.value) + ", because Sluice does not support it");
  }
  return {};
}

Status check_known(const JsonAt& config) {
  for (const auto& [key, value] : config.value().items()) {
    if (value.is_null() || is_one_of(kComputed, key) || is_one_of(kNoSay, key)) continue;
    const bool neutral =
        std::any_of(std::begin(kNotComputed), std::end(kNotComputed),
                    [&, &name = key](const Neutral& n) { return n.key == std::string_view(name); });
    if (neutral) continue;  // its value was checked above
    return unsupported_value(config.at(key).value(), "no such key, because Sluice does not know its meaning");
  }
  return {};
}

Status read_sampling(const JsonAt& config, GenerationDefaults* out) {
  const auto sample = config.boolean("do_sample", true);
  if (!sample.ok()) return sample.status();
  const auto top_k = config.integer("top_k", 0, INT32_MAX, out->top_k);
  if (!top_k.ok()) return top_k.status();
  out->top_k = top_k.value();
  for (const auto& [key, to] :
       {std::pair{"max_new_tokens", &out->max_new_tokens}, std::pair{"max_length", &out->max_length}}) {
    to->reset();
    const auto value = config.integer(key, 1, INT64_MAX, 0);
    if (!value.ok()) return value.status();
    if (value.value() > 0) *to = value.value();
  }
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

}  // namespace

Status read_stop_tokens(const JsonAt& config, ModelConfig* out) {
  if (!config.has("eos_token_id")) return {};
  const JsonAt member = config.at("eos_token_id").value();
  std::vector<JsonAt> ids{member};
  if (member.value().is_array()) ids = member.items().value();
  if (ids.empty()) return member.wrong("a token id or a non-empty array of token ids");
  out->stop_tokens.clear();
  for (const JsonAt& id : ids) {
    const auto token = id.integer(0, out->decoder.vocab - 1);
    if (!token.ok()) return token.status();
    const auto value = static_cast<int32_t>(token.value());
    auto& all = out->stop_tokens;
    if (std::find(all.begin(), all.end(), value) == all.end()) all.push_back(value);
  }
  return {};
}

Status read_generation_config(const JsonAt& generation, ModelConfig* out) {
  SLUICE_TRY(generation.need_object());
  SLUICE_TRY(check_not_computed(generation));
  SLUICE_TRY(check_known(generation));
  SLUICE_TRY(read_stop_tokens(generation, out));
  return read_sampling(generation, &out->generation);
}

Status read_generation_of_config(const JsonAt& config, ModelConfig* out) {
  SLUICE_TRY(check_not_computed(config));
  return read_sampling(config, &out->generation);
}

}  // namespace sluice
