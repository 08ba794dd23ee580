#include "grammar/value_set.h"

#include <algorithm>

#include "grammar/leaf.h"

namespace sluice {
namespace {

void append_part(const std::string& key, std::string* out) { *out += std::to_string(key.size()) + ':' + key; }

// Returns the same text for equal values, and different texts for different values.
std::string key_of(const Json& value) {
  if (value.is_string()) return '"' + value.get_ref<const std::string&>();
  if (value.is_number()) {
    const auto d = Decimal::of(value);
    return d ? (d->negative ? "-" : "+") + d->whole + "." + d->fraction : "?";
  }
  if (!value.is_structured()) return value.dump();
  std::string out = value.is_array() ? "[" : "{";
  for (const auto& [name, part] : value.items()) {
    if (value.is_object()) append_part(name, &out);
    append_part(key_of(part), &out);
  }
  return out;
}

}  // namespace

bool same_value(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) {
    const auto x = Decimal::of(a), y = Decimal::of(b);
    return x && y && compare(*x, *y) == 0;
  }
  if (a.type() != b.type() || a.size() != b.size()) return false;
  if (a.is_array()) return std::equal(a.begin(), a.end(), b.begin(), same_value);
  if (!a.is_object()) return a == b;
  return std::all_of(a.items().begin(), a.items().end(), [&](const auto& item) {
    const auto found = b.find(item.key());
    return found != b.end() && same_value(item.value(), *found);
  });
}

ValueSet::ValueSet(std::span<const Json> values, Work* work) {
  for (const Json& value : values)
    if (insert(value, work); work->over()) return;
}

bool ValueSet::contains(const Json& value) const { return keys_.contains(key_of(value)); }

bool ValueSet::insert(const Json& value, Work* work) {
  std::string key = key_of(value);
  (void)work->spend(8 + std::ssize(key));
  return keys_.insert(std::move(key)).second;
}

}  // namespace sluice
