#include "engine/ngram_index.h"

#include <algorithm>

namespace sluice {

size_t NgramIndex::slot_of(std::span<const int32_t> gram) const {
  uint64_t hash = 0;
  for (const int32_t id : gram) hash = (hash ^ static_cast<uint32_t>(id)) * 0x9E3779B97F4A7C15u;
  return static_cast<size_t>(hash >> 32) & (latest_.size() - 1);
}

// Enlarges the table. All positions must then be indexed again, because hashes map to other slots.
void NgramIndex::make_room(int64_t tokens) {
  size_t slots = std::max<size_t>(256, latest_.size());
  while (static_cast<int64_t>(slots) < 2 * tokens) slots *= 2;
  latest_.assign(slots, 0);
  before_.clear();
  indexed_ = 0;
}

bool NgramIndex::update(std::span<const int32_t> tokens, int64_t* budget) {
  const int64_t length = std::ssize(tokens);
  if (length > std::ssize(latest_)) make_room(length);
  const int64_t end = std::min(length, indexed_ + std::min(kTokensOfCall, *budget));
  *budget -= end - indexed_;
  before_.resize(static_cast<size_t>(end) + 1, 0);
  for (; indexed_ < end; ++indexed_) {
    const int64_t position = indexed_ + 1;  // position after the token
    if (position < min_match_) continue;
    int32_t& latest = latest_[slot_of(
        tokens.subspan(static_cast<size_t>(position - min_match_), static_cast<size_t>(min_match_)))];
    before_[static_cast<size_t>(position)] = latest;
    latest = static_cast<int32_t>(position);
  }
  return indexed_ == length;
}

NgramMatch NgramIndex::find(std::span<const int32_t> tokens, int64_t max_match) const {
  const int64_t length = std::ssize(tokens);
  NgramMatch best;
  if (length < min_match_ || indexed_ != length) return best;
  int64_t looks = kPlacesOfCall;
  for (int64_t at = before_[static_cast<size_t>(length)]; at > 0 && looks > 0 && best.length < max_match;
       at = before_[static_cast<size_t>(at)], --looks) {
    int64_t same = 0;
    while (same < std::min(max_match, at) &&
           tokens[static_cast<size_t>(at - 1 - same)] == tokens[static_cast<size_t>(length - 1 - same)])
      ++same;
    if (same >= min_match_ && same > best.length) best = {.end = at, .length = same};
  }
  return best;
}

}  // namespace sluice
