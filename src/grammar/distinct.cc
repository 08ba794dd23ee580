#include "grammar/distinct.h"

#include <algorithm>
#include <iterator>

namespace sluice {

// Merges all calls between the same two states into one step, so that the search does not repeat a path for
// each call.
const std::vector<DistinctSearch::Step>& DistinctSearch::steps_from(int32_t index) {
  const auto [known, is_new] = steps_.try_emplace(index);
  std::vector<Step>& out = known->second;
  if (!is_new) return out;
  const Program::State& state = program_.states[static_cast<size_t>(index)];
  for (const int32_t to : state.empties) out.push_back({.to = to, .counted = false, .limited = false});
  for (const Program::Call& call : state.calls) {
    const bool leaf = call.distinct() && is_leaf(call.callee);
    const auto* values = leaf ? &program_.values[static_cast<size_t>(leaf_index(call.callee))] : nullptr;
    const bool limited = values != nullptr && !values->empty();
    auto at = std::find_if(out.begin(), out.end(),
                           [&](const Step& s) { return s.to == call.to && s.counted == call.counted; });
    if (at == out.end()) at = out.insert(out.end(), {.to = call.to, .counted = call.counted});
    at->limited &= limited;
    if (!limited) continue;
    (void)work_->spend(std::ssize(*values) / 4);
    std::ranges::copy_if(*values, std::back_inserter(at->values),
                         [&](uint64_t value) { return !used_.contains(value); });
  }
  return out;
}

void DistinctSearch::give(uint64_t value, size_t position) {
  size_t& owner = owner_.try_emplace(value, kNobody).first->second;
  changes_.push_back({value, owner});
  owner = position;
}

// Undoes all changes after the first `changes`.
void DistinctSearch::take_back(size_t changes) {
  for (; changes_.size() > changes; changes_.pop_back())
    owner_[changes_.back().value] = changes_.back().before;
}

// Assigns a free value to the position; if none is free, reassigns other positions.
bool DistinctSearch::assign(size_t position, std::unordered_set<uint64_t>* seen) {
  const auto& values = *positions_[position];
  const auto is_free = [&](uint64_t value) {
    const auto at = owner_.find(value);
    return at == owner_.end() || at->second == kNobody;
  };
  // The calls of a loop have equal lists of values, and earlier positions own the first values, so the search begins at index `position`.
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(std::min(position, values.size()));
  auto free = std::find_if(middle, values.end(), is_free);
  if (free == values.end()) {
    free = std::find_if(values.begin(), middle, is_free);
    if (free == middle) free = values.end();
  }
  if (free != values.end()) {
    give(*free, position);
    return work_->spend(8);
  }
  for (const uint64_t value : values) {
    if (!work_->spend(1)) return true;
    if (!seen->insert(value).second) continue;
    if (!assign(owner_.at(value), seen)) continue;
    give(value, position);
    return true;
  }
  return false;
}

bool DistinctSearch::can_end(int32_t index, int64_t count) {
  if (--looks_ < 0 || !work_->spend(4)) return true;
  if (!program_.fits(index, count)) return false;
  const Program::State& state = program_.states[static_cast<size_t>(index)];
  const Program::Rule& rule = program_.rules[static_cast<size_t>(state.rule)];
  if (state.final && count >= rule.least) return true;
  for (const Step& step : steps_from(index)) {
    const int64_t next = count + (step.counted ? 1 : 0);
    if (!step.limited) {
      if (can_end(step.to, next)) return true;
      continue;
    }
    const size_t changes = changes_.size();
    positions_.push_back(&step.values);
    std::unordered_set<uint64_t> seen;
    if (assign(positions_.size() - 1, &seen) && can_end(step.to, next)) return true;
    positions_.pop_back();
    take_back(changes);
  }
  return false;
}

}  // namespace sluice
