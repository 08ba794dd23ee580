#include "base/refusal.h"

namespace sluice {

void Refusal::add(std::string_view what, std::string found) {
  reasons_.push_back("needs " + std::string(what) + "; " + std::move(found));
}

std::string Refusal::line() const {
  std::string out;
  for (const std::string& reason : reasons_) out += (out.empty() ? "" : "; and ") + reason;
  return out;
}

}  // namespace sluice
