// Values of a graph by name.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "graph/graph.h"

namespace sluice {

class NamedValues {
 public:
  void set(std::string_view name, const Bind& value) { values_.insert_or_assign(std::string(name), value); }
  // Returns no value if the name is unknown.
  Bind operator()(std::string_view name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? Bind() : found->second;
  }

 private:
  std::map<std::string, Bind, std::less<>> values_;
};

}  // namespace sluice
