#include "grammar/distinct.h"

#include <algorithm>

namespace sluice {

// Calls between the same two states are one choice of a value, so a way is not tried once for each of them.
std::vector<DistinctSearch::Step> DistinctSearch::steps_from(const Program& program,
                                                             const Program::State& state) {
  std::vector<Step> out;
  for (const int32_t to : state.empties) out.push_back({.to = to, .counted = false, .limited = false});
  for (const Program::Call& call : state.calls) {
    const bool leaf = call.distinct() && is_leaf(call.callee);
    const auto* values = leaf ? &program.values[static_cast<size_t>(leaf_index(call.callee))] : nullptr;
    const bool limited = values != nullptr && !values->empty();
    auto at = std::find_if(out.begin(), out.end(),
                           [&](const Step& s) { return s.to == call.to && s.counted == call.counted; });
    if (at == out.end()) at = out.insert(out.end(), {.to = call.to, .counted = call.counted});
    at->limited &= limited;
    if (limited) at->values.insert(at->values.end(), values->begin(), values->end());
  }
  return out;
}

// Gives the position a value, and moves other positions to other values where that is needed.
bool DistinctSearch::assign(size_t position, std::unordered_set<uint64_t>* seen) {
  const auto& values = positions_[position];
  const auto free =
      std::find_if(values.begin(), values.end(), [&](uint64_t v) { return !owner_.contains(v); });
  if (free != values.end()) {
    owner_[*free] = position;
    return work_->spend(8);
  }
  for (const uint64_t value : values) {
    if (!work_->spend(1)) return true;
    if (!seen->insert(value).second) continue;
    if (!assign(owner_.at(value), seen)) continue;
    owner_[value] = position;
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
  for (Step& step : steps_from(program_, state)) {
    const int64_t next = count + (step.counted ? 1 : 0);
    if (!step.limited) {
      if (can_end(step.to, next)) return true;
      continue;
    }
    (void)work_->spend(std::ssize(step.values) / 4 + std::ssize(owner_));
    std::erase_if(step.values, [&](uint64_t v) { return used_.contains(v); });
    const auto owner = owner_;
    positions_.push_back(std::move(step.values));
    std::unordered_set<uint64_t> seen;
    if (assign(positions_.size() - 1, &seen) && can_end(step.to, next)) return true;
    positions_.pop_back();
    owner_ = owner;
  }
  return false;
}

}  // namespace sluice
