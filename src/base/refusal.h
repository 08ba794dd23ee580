// Why something is rejected: every reason, each with the value that was found.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Empty means accepted. Reasons are formatted only if they apply, so accepting costs nothing.
class Refusal {
 public:
  // `what` states the condition, with its cause in parentheses; `found` is the value that violates it.
  Refusal& need(bool ok, std::string_view what, std::string_view found) {
    if (!ok) add(what, std::string(found));
    return *this;
  }
  Refusal& need(bool ok, std::string_view what, std::string_view name, int64_t value) {
    if (!ok) add(what, std::string(name) + "=" + std::to_string(value));
    return *this;
  }
  // Adds the reasons of `other` that are not in the list yet.
  Refusal& append(const Refusal& other);
  bool accepted() const { return reasons_.empty(); }
  const std::vector<std::string>& reasons() const { return reasons_; }
  // All reasons on one line, separated by "; and ".
  std::string line() const;

 private:
  void add(std::string_view what, std::string found);
  std::vector<std::string> reasons_;
};

}  // namespace sluice
