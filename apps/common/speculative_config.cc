#include "apps/common/speculative_config.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/json.h"

namespace sluice::apps {
namespace {

constexpr const char* kSpeculativeFlag = "--speculative-config";
constexpr int64_t kSglangNgramTokens = 12;              // SGLang's default
constexpr int64_t kSuffixDepth = 24, kNgramLookup = 5;  // vLLM's defaults
constexpr std::array<std::string_view, 5> kNgramKeys = {"method", "num_speculative_tokens",
                                                        "prompt_lookup_min", "prompt_lookup_max",
                                                        "enable_adaptive_verification"};
constexpr int64_t kLayerDrafts = 3;  // default for a draft layer
constexpr std::array<std::string_view, 4> kEagle3Keys = {"method", "model", "num_speculative_tokens",
                                                         "enable_adaptive_verification"};
constexpr std::array<std::string_view, 5> kMtpKeys = {"method", "num_speculative_tokens", "moe_backend",
                                                      "router_dtype", "enable_adaptive_verification"};
constexpr std::array<std::string_view, 5> kSuffixKeys = {
    "method", "num_speculative_tokens", "suffix_decoding_max_tree_depth", "suffix_decoding_max_spec_factor",
    "enable_adaptive_verification"};

Status check_keys(const Json& object, std::span<const std::string_view> known, const std::string& method) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || std::ranges::find(known, key) != known.end()) continue;
    std::string names;
    for (const std::string_view name : known) names.append(names.empty() ? "" : ", ").append(name);
    return invalid(std::string(kSpeculativeFlag) + ": wanted the keys " + names + " with the method " +
                   method + ", found \"" + key + "\"");
  }
  return {};
}

template <class T>
Status take(Result<T> read, T* to) {
  if (!read.ok()) return invalid(read.status().message);
  *to = std::move(read).value();
  return {};
}

Status read_ngram(const JsonAt& at, SpeculationOptions* o) {
  SLUICE_TRY(take(at.integer("num_speculative_tokens", 1, kDraftsMax), &o->num_speculative_tokens));
  // If only one of the two is given, it also sets the other.
  const bool has_min = at.has("prompt_lookup_min"), has_max = at.has("prompt_lookup_max");
  int64_t minimum = kNgramLookup, maximum = kNgramLookup;
  if (has_max) SLUICE_TRY(take(at.integer("prompt_lookup_max", 1, kLookupMax), &maximum));
  if (!has_min && has_max) minimum = maximum;
  if (has_min) SLUICE_TRY(take(at.integer("prompt_lookup_min", 1, kLookupMax), &minimum));
  if (has_min && !has_max) maximum = minimum;
  o->prompt_lookup_min = minimum, o->prompt_lookup_max = maximum;
  return {};
}

Status read_suffix(const JsonAt& at, SpeculationOptions* o) {
  o->prompt_lookup_min = 1;
  SLUICE_TRY(
      take(at.integer("suffix_decoding_max_tree_depth", 1, kLookupMax, kSuffixDepth), &o->prompt_lookup_max));
  SLUICE_TRY(
      take(at.integer("num_speculative_tokens", 1, kDraftsMax, std::min(kDraftsMax, o->prompt_lookup_max)),
           &o->num_speculative_tokens));
  SLUICE_TRY(take(at.number("suffix_decoding_max_spec_factor", 1.0), &o->drafts_per_match));
  return {};
}

Status read_word(const JsonAt& at, const char* key, const std::string& otherwise,
                 std::initializer_list<std::string_view> words, std::string* to) {
  SLUICE_TRY(take(at.string(key, otherwise), to));
  if (*to == otherwise || std::ranges::find(words, *to) != words.end()) return {};
  std::string wanted;
  for (const std::string_view word : words) wanted.append(wanted.empty() ? "" : " or ").append(word);
  return invalid(std::string(kSpeculativeFlag) + ": " + key + ": wanted " + wanted + ", found \"" + *to +
                 "\"");
}

Status read_mtp(const JsonAt& at, SpeculativeConfig* out) {
  SLUICE_TRY(take(at.integer("num_speculative_tokens", 1, kDraftsMax, kLayerDrafts),
                  &out->options.num_speculative_tokens));
  SLUICE_TRY(read_word(at, "moe_backend", "", {"cpu", "cuda"}, &out->moe_backend));
  return read_word(at, "router_dtype", "float32", {"float32", "bfloat16"}, &out->router_dtype);
}

}  // namespace

Result<SpeculativeConfig> read_speculative_config(const std::string& json) {
  if (json == "none") return SpeculativeConfig();
  const auto document = parse_json(json, kSpeculativeFlag);
  if (!document.ok()) return invalid(document.status().message);
  const JsonAt at(document.value(), kSpeculativeFlag);
  if (const Status status = at.need_object(); !status.ok()) return invalid(status.message);
  std::string method;
  SLUICE_TRY(take(at.string("method"), &method));
  SpeculativeConfig config;
  SpeculationOptions& out = config.options;
  if (method == "ngram") {
    out.method = DraftMethod::kNgram;
    SLUICE_TRY(check_keys(document.value(), kNgramKeys, method));
    SLUICE_TRY(read_ngram(at, &out));
  } else if (method == "suffix") {
    out.method = DraftMethod::kSuffix;
    SLUICE_TRY(check_keys(document.value(), kSuffixKeys, method));
    SLUICE_TRY(read_suffix(at, &out));
  } else if (method == "eagle3") {
    out.method = DraftMethod::kEagle3;
    SLUICE_TRY(check_keys(document.value(), kEagle3Keys, method));
    SLUICE_TRY(take(at.string("model", ""), &config.model));
    config.count_from_head = !at.has("num_speculative_tokens");
    SLUICE_TRY(
        take(at.integer("num_speculative_tokens", 1, kDraftsMax, kLayerDrafts), &out.num_speculative_tokens));
  } else if (method == "mtp" || method == "deepseek_mtp") {  // deepseek_mtp is vLLM's older name
    out.method = DraftMethod::kMtp;
    SLUICE_TRY(check_keys(document.value(), kMtpKeys, method));
    SLUICE_TRY(read_mtp(at, &config));
  } else {
    return invalid(std::string(kSpeculativeFlag) + ": method: wanted ngram, suffix, eagle3 or mtp, found \"" +
                   method + "\"");
  }
  SLUICE_TRY(take(at.boolean("enable_adaptive_verification", true), &out.by_cost));
  const Status status = check_speculation(out);
  if (!status.ok()) return invalid(std::string(kSpeculativeFlag) + ": " + status.message);
  return config;
}

Result<std::string> speculative_config_of(const SglangSpeculation& f) {
  constexpr std::pair<std::string_view, std::string_view> kMethods[] = {
      {"EAGLE3", "eagle3"}, {"NEXTN", "mtp"}, {"EAGLE", "mtp"}, {"NGRAM", "ngram"}};
  const auto known = std::ranges::find(kMethods, f.algorithm.value_or(""),
                                       &std::pair<std::string_view, std::string_view>::first);
  if (known == std::end(kMethods))
    return invalid("--speculative-algorithm: wanted EAGLE3, NEXTN, EAGLE or NGRAM, found " +
                   (f.algorithm ? "'" + *f.algorithm + "'" : std::string("none")));
  if (f.eagle_topk && *f.eagle_topk != 1)
    return invalid("--speculative-eagle-topk: wanted 1 (drafts are a chain), found " +
                   std::to_string(*f.eagle_topk));
  const std::string method(known->second);
  Json out{{"method", method}};
  // SGLang's num_draft_tokens is the number of tokens in a verification step, including the last sampled token.
  if (f.num_steps && f.num_draft_tokens && *f.num_draft_tokens != *f.num_steps + 1)
    return invalid("--speculative-num-draft-tokens: wanted --speculative-num-steps + 1 = " +
                   std::to_string(*f.num_steps + 1) + ", found " + std::to_string(*f.num_draft_tokens));
  if (f.num_steps || f.num_draft_tokens)
    out["num_speculative_tokens"] = f.num_steps ? *f.num_steps : *f.num_draft_tokens - 1;
  else if (method == "ngram")
    out["num_speculative_tokens"] = kSglangNgramTokens - 1;
  if (!f.draft_model_path.empty()) {
    if (method != "eagle3")
      return invalid("--speculative-draft-model-path: needs --speculative-algorithm EAGLE3, found " +
                     *f.algorithm);
    out["model"] = f.draft_model_path;
  }
  if (!f.moe_runner_backend.empty()) {
    if (method != "mtp")
      return invalid("--speculative-moe-runner-backend: needs --speculative-algorithm NEXTN, found " +
                     *f.algorithm);
    out["moe_backend"] = f.moe_runner_backend;
  }
  return out.dump();
}

}  // namespace sluice::apps
