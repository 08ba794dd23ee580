// Compares values as JSON Schema does: 1 equals 1.0, and the order of members does not matter.
#pragma once
#include <span>
#include <string>
#include <unordered_set>

#include "base/json.h"
#include "grammar/work.h"

namespace sluice {

bool same_value(const Json& a, const Json& b);

// A hash set of JSON values.
class ValueSet {
 public:
  ValueSet() = default;
  // If the budget is spent, some values are missing.
  ValueSet(std::span<const Json> values, Work* work);
  bool contains(const Json& value) const;
  bool insert(const Json& value, Work* work);  // false: already present

 private:
  std::unordered_set<std::string> keys_;
};

}  // namespace sluice
