#include "base/refusal.h"

#include <algorithm>

namespace sluice {

void Refusal::add(std::string_view what, std::string found) {
  reasons_.push_back("needs " + std::string(what) + "; " + std::move(found));
}

Refusal& Refusal::append(const Refusal& other) {
  for (const std::string& reason : other.reasons_)
    if (std::find(reasons_.begin(), reasons_.end(), reason) == reasons_.end()) reasons_.push_back(reason);
  return *this;
}

std::string Refusal::line() const {
  std::string out;
  for (const std::string& reason : reasons_) out += (out.empty() ? "" : "; and ") + reason;
  return out;
}

}  // namespace sluice
