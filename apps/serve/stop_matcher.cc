#include "apps/serve/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace sluice::apps {
namespace {

// Bytes at the end of `text` that a longer text could make `stop` of.
size_t begun(std::string_view text, std::string_view stop) {
  size_t bytes = std::min(text.size(), stop.size() - 1);
  while (bytes > 0 && text.substr(text.size() - bytes) != stop.substr(0, bytes)) --bytes;
  return bytes;
}

// The one of `stops` that begins first in `text`, and where.
std::pair<size_t, const std::string*> first_of(std::string_view text, const std::vector<std::string>& stops) {
  std::pair<size_t, const std::string*> first{text.size(), nullptr};
  for (const std::string& stop : stops) {
    const size_t at = text.find(stop);
    if (at == std::string::npos) continue;
    const bool shorter = first.second && at == first.first && stop.size() < first.second->size();
    if (at < first.first || shorter) first = {at, &stop};
  }
  return first;
}

}  // namespace

std::string StopMatcher::take(size_t bytes, const std::string* stop) {
  std::string out = held_.substr(0, bytes);
  held_.erase(0, stop ? held_.size() : bytes);
  if (stop) found_ = *stop;
  return out;
}

std::string StopMatcher::push(std::string_view text) {
  if (found_) return {};
  held_ += text;
  size_t kept = 0;
  for (const std::string& stop : stops_) kept = std::max(kept, begun(held_, stop));
  const auto [at, stop] = first_of(held_, stops_);
  const size_t open = held_.size() - kept;
  // One that has begun earlier may still become whole.
  return stop && at <= open ? take(at, stop) : take(std::min(at, open), nullptr);
}

std::string StopMatcher::flush() {
  const auto [at, stop] = first_of(held_, stops_);
  return take(at, stop);
}

}  // namespace sluice::apps
