#include "grammar/few_values.h"

#include <algorithm>
#include <utility>

namespace sluice {

std::optional<std::vector<std::string>> FewValues::texts_of(Callee callee) {
  Texts out;
  for (const bool spaced : {true, false}) {
    spaced_ = spaced;
    const auto texts = spelled(callee, 0);
    if (!texts) return {};
    out.insert(out.end(), texts->begin(), texts->end());
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::optional<int64_t> FewValues::count_of(Callee callee) {
  spaced_ = false;
  const auto texts = spelled(callee, 0);
  if (!texts) return {};
  return std::ssize(*texts);
}

std::optional<FewValues::Texts> FewValues::spelled(Callee callee, int depth) {
  if (is_leaf(callee)) return of_leaf(*program_.leaves[static_cast<size_t>(leaf_index(callee))]);
  return depth < kDepthMax ? of_rule(callee, depth + 1) : std::nullopt;
}

std::optional<FewValues::Texts> FewValues::of_leaf(const Leaf& leaf) {
  if (!leaf.compact.empty()) return Texts{spaced_ ? leaf.spaced : leaf.compact};
  if (leaf.dfa.empty()) return Texts{};
  if (leaf.counted() || !work_->spend(max_)) return {};
  return leaf.dfa.texts(max_);
}

std::optional<FewValues::Texts> FewValues::of_rule(int32_t index, int depth) {
  const Program::Rule& rule = program_.rules[static_cast<size_t>(index)];
  Texts out;
  std::unordered_set<uint64_t> seen;
  std::vector<Way> todo{{.state = rule.start}};
  while (!todo.empty()) {
    const Way way = std::move(todo.back());
    todo.pop_back();
    if (--steps_ < 0 || !work_->spend(32 + std::ssize(way.text))) return {};
    const Program::State& state = program_.states[static_cast<size_t>(way.state)];
    if (way.count > rule.most) continue;
    if (state.final && way.count >= rule.least && (way.wanted & ~way.present).none() &&
        (rule.check == nullptr || rule.check->holds(way.text, work_)) &&
        seen.insert(hash_of_value(way.text)).second) {
      if (std::ssize(out) == max_) return {};
      out.push_back(way.text);
    }
    const bool after_colon = spaced_ && way.text.ends_with(':');
    const auto takes_blanks = [&](const Program::Call& call) {
      return is_leaf(call.callee) && program_.leaves[static_cast<size_t>(leaf_index(call.callee))]->is_blanks;
    };
    // Blank leaves are optional and are skipped, except in the spelling with blanks, which has one blank after a member's colon.
    const auto blank = std::find_if(state.calls.begin(), state.calls.end(), takes_blanks);
    if (after_colon && blank != state.calls.end()) {
      todo.push_back(way);
      todo.back().state = blank->to;
      todo.back().text += ' ';
      continue;
    }
    for (const int32_t to : state.empties) {
      todo.push_back(way);
      todo.back().state = to;
    }
    for (const Program::Call& call : state.calls) {
      // The values of a call beyond the maximum may be many, so they are not listed.
      if (takes_blanks(call) || (call.counted && way.count >= rule.most)) continue;
      if (call.among == Among::kNoted || call.among == Among::kRepeated) return {};
      const auto texts = spelled(call.callee, depth);
      if (!texts) return {};
      for (const std::string& text : *texts) {
        const uint64_t value = call.distinct() ? hash_of_value(text) : 0;
        if (call.distinct() && way.noted.contains(value)) continue;
        Way next = way;
        next.state = call.to;
        next.count += call.counted ? 1 : 0;
        next.text += text;
        if (call.member >= 0) {
          next.present.set(static_cast<size_t>(call.member));
          next.wanted |= rule.dependencies->wanted[static_cast<size_t>(call.member)];
        }
        if (call.distinct()) next.noted.insert(value);
        todo.push_back(std::move(next));
      }
    }
  }
  return out;
}

}  // namespace sluice
