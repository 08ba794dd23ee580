// Operations on languages: intersection, difference, union and concatenation.
#include <algorithm>
#include <map>
#include <utility>

#include "grammar/automaton.h"

namespace sluice {

MaybeDfa combine(const Dfa& a, const Dfa& b, SetOp op, Work* work) {
  DfaBuilder builder;
  std::map<std::pair<int32_t, int32_t>, int32_t> number;
  std::vector<std::pair<int32_t, int32_t>> pairs;
  const auto accepts = [](const Dfa& dfa, int32_t s) { return s != Dfa::kDead && dfa.accepts(s); };
  // arguments and result of the previous call, because adjacent
  int32_t last_s = -2, last_t = -2, last = Dfa::kDead;
  // bytes usually lead to the same states
  const auto add = [&](int32_t s, int32_t t) {
    if (s == last_s && t == last_t) return last;
    last_s = s, last_t = t, last = Dfa::kDead;
    const bool lost = op == SetOp::kBoth        ? s == Dfa::kDead || t == Dfa::kDead
                      : op == SetOp::kFirstOnly ? s == Dfa::kDead
                                                : s == Dfa::kDead && t == Dfa::kDead;
    if (lost) return last;
    const auto [found, is_new] = number.try_emplace({s, t}, builder.states());
    if (is_new) {
      const bool in_a = accepts(a, s), in_b = accepts(b, t);
      builder.add_state(op == SetOp::kBoth        ? in_a && in_b
                        : op == SetOp::kFirstOnly ? in_a && !in_b
                                                  : in_a || in_b);
      pairs.emplace_back(s, t);
    }
    return last = found->second;
  };
  const auto step = [](const Dfa& dfa, int32_t s, int byte) {
    return s == Dfa::kDead ? Dfa::kDead : dfa.step(s, static_cast<uint8_t>(byte));
  };
  add(a.empty() ? Dfa::kDead : 0, b.empty() ? Dfa::kDead : 0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (builder.states() > kDfaStatesMax || !work->spend(64)) return {};
    std::array<int32_t, 256> row;
    for (int byte = 0; byte < 256; ++byte)
      row[static_cast<size_t>(byte)] = add(step(a, pairs[i].first, byte), step(b, pairs[i].second, byte));
    builder.set_next(static_cast<int32_t>(i), row);
  }
  return builder.done(work);
}

MaybeDfa complement(const Dfa& a, Work* work) { return combine(Dfa::any_text(), a, SetOp::kFirstOnly, work); }

MaybeDfa with_length(const Dfa& a, int64_t least, int64_t most, Work* work) {
  if (a.empty()) return Dfa();
  DfaBuilder builder;
  std::map<std::pair<int32_t, int64_t>, int32_t> number;
  std::vector<std::pair<int32_t, int64_t>> pairs;
  const bool bounded = most >= 0;
  const auto add = [&](int32_t s, int64_t count) {
    if (!bounded) count = std::min(count, least);  // larger counts are equivalent
    const auto [found, is_new] = number.try_emplace({s, count}, builder.states());
    if (is_new) {
      builder.add_state(a.accepts(s) && count >= least);
      pairs.emplace_back(s, count);
    }
    return found->second;
  };
  add(0, 0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (builder.states() > kDfaStatesMax || !work->spend(64)) return {};
    const auto [s, count] = pairs[i];
    std::array<int32_t, 256> row;
    for (int byte = 0; byte < 256; ++byte) {
      const int32_t t = a.step(s, static_cast<uint8_t>(byte));
      const bool begins = (byte & 0xc0) != 0x80;
      const bool fits = t != Dfa::kDead && (!begins || !bounded || count < most);
      row[static_cast<size_t>(byte)] = fits ? add(t, count + (begins ? 1 : 0)) : Dfa::kDead;
    }
    builder.set_next(static_cast<int32_t>(i), row);
  }
  return builder.done(work);
}

MaybeDfa concatenate(const Dfa& a, const Dfa& b, Work* work) {
  if (a.empty() || b.empty()) return Dfa();
  Nfa nfa;
  const auto copy = [&](const Dfa& dfa) {
    const auto base = static_cast<int32_t>(nfa.states.size());
    for (int32_t s = 0; s < dfa.states(); ++s) nfa.add_state();
    for (int32_t s = 0; s < dfa.states(); ++s)
      for (int from = 0; from < 256;) {
        const int32_t t = dfa.step(s, static_cast<uint8_t>(from));
        int to = from;
        while (to < 255 && dfa.step(s, static_cast<uint8_t>(to + 1)) == t) ++to;
        if (t != Dfa::kDead)
          nfa.add_edge(base + s, static_cast<uint8_t>(from), static_cast<uint8_t>(to), base + t);
        from = to + 1;
      }
    return base;
  };
  const int32_t first = copy(a), second = copy(b);
  nfa.begin = first;
  nfa.end = nfa.add_state();
  for (int32_t s = 0; s < a.states(); ++s)
    if (a.accepts(s)) nfa.add_empty(first + s, second);
  for (int32_t s = 0; s < b.states(); ++s)
    if (b.accepts(s)) nfa.add_empty(second + s, nfa.end);
  return determinize(nfa, work);
}

}  // namespace sluice
