#include "chat/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace sluice {

StopStrings::StopStrings(std::vector<std::string> strings) {
  if (strings.empty()) return;
  Shared out{.strings = std::move(strings), .shorter = {}};
  for (const std::string& text : out.strings) {
    std::vector<uint32_t>& shorter = out.shorter.emplace_back(text.size());
    uint32_t matched = 0;
    for (size_t i = 1; i < text.size(); ++i) {
      while (matched > 0 && text[i] != text[matched]) matched = shorter[matched - 1];
      matched += text[i] == text[matched];
      shorter[i] = matched;
    }
  }
  shared_ = std::make_shared<const Shared>(std::move(out));
}

uint32_t StopStrings::next(size_t i, uint32_t matched, char byte) const {
  const std::string& text = shared_->strings[i];
  const std::vector<uint32_t>& shorter = shared_->shorter[i];
  while (matched > 0 && (matched == text.size() || text[matched] != byte)) matched = shorter[matched - 1];
  return matched + (text[matched] == byte);
}

StopMatcher::StopMatcher(StopStrings stops) : stops_(std::move(stops)), matched_(stops_.size()) {}

void StopMatcher::look_at(char byte) {
  ++bytes_;
  for (size_t i = 0; i < matched_.size(); ++i) {
    matched_[i] = stops_.next(i, matched_[i], byte);
    const size_t whole = stops_[i].size();
    if (matched_[i] < whole) continue;
    const uint64_t begin = bytes_ - whole;
    const bool shorter = first_ && begin == first_->begin && whole < stops_[first_->stop].size();
    if (!first_ || begin < first_->begin || shorter) first_ = Whole{begin, i};
  }
}

std::string StopMatcher::take(size_t bytes) {
  std::string out = held_.substr(0, bytes);
  held_.erase(0, bytes);
  held_from_ += bytes;
  return out;
}

std::string StopMatcher::end_at_first() {
  found_ = stops_[first_->stop];
  std::string out = take(static_cast<size_t>(first_->begin - held_from_));
  held_.clear();
  return out;
}

std::string StopMatcher::push(std::string_view text) {
  if (found_) return {};
  if (stops_.empty()) return std::string(text);
  held_ += text;
  for (const char byte : text) look_at(byte);
  uint64_t open = bytes_;  // start of the earliest partial match, which later text may complete
  for (size_t i = 0; i < matched_.size(); ++i)
    if (matched_[i] < stops_[i].size()) open = std::min(open, bytes_ - matched_[i]);
  if (first_ && first_->begin <= open) return end_at_first();
  return take(static_cast<size_t>(std::min(open, first_ ? first_->begin : bytes_) - held_from_));
}

std::string StopMatcher::flush() {
  if (found_ || !first_) return take(held_.size());
  return end_at_first();
}

}  // namespace sluice
