// JSON values as JSON Schema compares them: 1 and 1.0 are one value, and members have no order.
#pragma once
#include <span>
#include <string>
#include <unordered_set>

#include "base/json.h"
#include "grammar/work.h"

namespace sluice {

bool same_value(const Json& a, const Json& b);

// Finds a value in a time that does not depend on how many there are.
class ValueSet {
 public:
  ValueSet() = default;
  // Without work left some values are missing.
  ValueSet(std::span<const Json> values, Work* work);
  bool contains(const Json& value) const;
  bool insert(const Json& value, Work* work);  // false: it was there

 private:
  std::unordered_set<std::string> keys_;
};

}  // namespace sluice
