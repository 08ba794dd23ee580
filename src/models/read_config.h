// Helpers for reading config.json, which all families share.
#pragma once
#include <cmath>
#include <string>
#include <type_traits>

#include "base/json.h"
#include "base/printable.h"

namespace sluice {

constexpr int64_t kConfigBytesMax = 16 << 20;

// Checks a key for which Sluice supports a single value: the config must have that value or lack the key.
// kUnsupported names the key, the supported value and the value found; `models` is the models' name in the
// message.
template <class T>
Status must_be(const JsonAt& config, const std::string& key, const T& wanted, const std::string& models) {
  SLUICE_TRY(config.need_object());
  // For transformers null is false, even where a missing key means true.
  const bool null_is_false =
      std::is_same_v<T, bool> && Json(wanted) == Json(true) && config.value().contains(key);
  if (!config.has(key) && !null_is_false) return {};
  const auto member = config.at(key);
  if (!member.ok()) return member.status();
  const Json want(wanted);
  if (member.value().value() == want) return {};
  Status status = member.value().wrong(want.dump() + ", the only value that " + models + " models have");
  status.code = Code::kUnsupported;
  return status;
}

// The key of the rotary embedding's settings; none: the config has no settings. An empty rope_scaling counts as absent, as in
// transformers.
inline const char* rope_key(const JsonAt& config) {
  const auto has = [&](const char* key) { return config.has(key) && config.value()[key] != Json::object(); };
  return has("rope_scaling") ? "rope_scaling" : has("rope_parameters") ? "rope_parameters" : nullptr;
}

// YaRN's attention factor for one of its two settings, mscale and mscale_all_dim.
inline double yarn_stretch(double factor, double mscale) {
  return factor > 1 ? 0.1 * mscale * std::log(factor) + 1 : 1;
}

// Reads numbers into fields. After the first error, `status` keeps that error and further calls do nothing.
struct ConfigReader {
  const JsonAt& config;
  Status status = {};
  void integer(const std::string& key, int64_t minimum, int64_t maximum, int64_t* out) {
    if (!status.ok()) return;
    const auto value = config.integer(key, minimum, maximum);
    if (value.ok()) *out = value.value();
    status = value.status();
  }
  void number(const std::string& key, double minimum, double maximum, double otherwise, double* out) {
    if (!status.ok()) return;
    const auto value = config.number(key, otherwise);
    status = value.status();
    if (!value.ok()) return;
    *out = value.value();
    if (*out >= minimum && *out <= maximum) return;
    const auto member = config.at(key);
    const std::string wanted = "a number from " + number_text(minimum) + " to " + number_text(maximum);
    status = member.ok() ? member.value().wrong(wanted) : member.status();
  }
};

}  // namespace sluice
