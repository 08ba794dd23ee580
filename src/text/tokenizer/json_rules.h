// Shared by the readers of tokenizer.json. An unknown member is an error, because it could change the ids.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/utf8.h"

namespace sluice {

inline Status not_supported(const JsonAt& value, std::string_view wanted) {
  return unsupported(value.wrong(wanted).message);
}

// Rejects unknown keys, because an ignored key could change the ids.
inline Status only_keys(const JsonAt& object, std::initializer_list<std::string_view> known) {
  SLUICE_TRY(object.need_object());
  for (const auto& [key, value] : object.value().items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      return unsupported(object.where() + ": unknown key '" + valid_utf8(key) + "'");
  return {};
}

// Rejects the member `key` unless it is missing, null or equal to `neutral`.
inline Status only_neutral(const JsonAt& object, const std::string& key, const Json& neutral) {
  if (!object.has(key)) return {};
  const auto member = object.at(key);
  if (!member.ok()) return member.status();
  if (member.value().value() == neutral) return {};
  return not_supported(member.value(), neutral.is_null() ? "null" : neutral.dump() + " or null");
}

inline Result<std::string> type_of(const JsonAt& object) { return object.string("type"); }

// Call it before only_keys(), because an object of another type has other keys.
inline Status only_type(const JsonAt& object, std::string_view wanted) {
  const auto type = type_of(object);
  if (!type.ok()) return type.status();
  if (type.value() == wanted) return {};
  return not_supported(object.at("type").value(), "\"" + std::string(wanted) + "\"");
}

}  // namespace sluice
