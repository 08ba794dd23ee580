#include "grammar/program.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "grammar/distances.h"
#include "grammar/distinct.h"
#include "grammar/few_values.h"

namespace sluice {

int32_t Program::add_rule() {
  const auto rule = static_cast<int32_t>(rules.size());
  rules.push_back({.start = 0});
  const int32_t start = add_state(rule);
  rules.back().start = start;
  return rule;
}
int32_t Program::add_state(int32_t rule) {
  states.push_back({.rule = rule});
  return static_cast<int32_t>(states.size()) - 1;
}
Callee Program::add_leaf(LeafPointer leaf) {
  leaves.push_back(std::move(leaf));
  return -static_cast<Callee>(leaves.size());
}
void Program::add_call(int32_t from, Callee callee, int32_t to, bool counted, Among among) {
  states[static_cast<size_t>(from)].calls.push_back({callee, to, counted, among});
}
void Program::add_empty(int32_t from, int32_t to) { states[static_cast<size_t>(from)].empties.push_back(to); }

size_t Program::bytes() const {
  size_t out = states.size() * sizeof(State) + rules.size() * sizeof(Rule);
  for (const State& s : states) out += s.calls.size() * sizeof(Call) + s.empties.size() * sizeof(int32_t);
  for (const LeafPointer& leaf : leaves) out += leaf->dfa.bytes() + 5 * leaf->counts.size();
  return out;
}

namespace {

using Arrows = std::vector<std::vector<ArrowInto>>;

// The reversed edges. Calls have the weight that `weight` gives, other edges 0.
Arrows reversed(const std::vector<Program::State>& states, const auto& weight) {
  Arrows out(states.size());
  for (size_t s = 0; s < states.size(); ++s) {
    for (const Program::Call& call : states[s].calls)
      out[static_cast<size_t>(call.to)].push_back({static_cast<int32_t>(s), weight(call)});
    for (const int32_t to : states[s].empties)
      out[static_cast<size_t>(to)].push_back({static_cast<int32_t>(s), 0});
  }
  return out;
}

// The minimum number of counted calls from each state to a final state; kNoBound: unreachable.
std::vector<int32_t> fewest(const std::vector<Program::State>& states, const Arrows& into) {
  static_assert(kNoWay == Program::kNoBound);
  std::vector<int32_t> finals;
  for (size_t s = 0; s < states.size(); ++s)
    if (states[s].final) finals.push_back(static_cast<int32_t>(s));
  return min_weights(into, std::move(finals));
}

int32_t once(const Program::Call& call) { return call.counted ? 1 : 0; }
int32_t once_of_others(const Program::Call& call) { return call.counted && call.member < 0 ? 1 : 0; }

}  // namespace

// An edge that a text can take.
struct Program::Arrow {
  int32_t from, to, weight;
};

// Whether paths along these edges, by target state, can make `least` counted calls of the rule. finals: the rule's final states; size: the
// number of its states.
bool Program::offers_least(const Rule& rule, const std::vector<std::vector<Arrow>>& into,
                           const std::vector<int32_t>& finals, int32_t size, Work* work) const {
  // A path without loops has fewer counted calls than states, so one with `size` calls has a loop and can have any number.
  const int32_t enough = std::min(rule.least, size);
  std::unordered_map<int32_t, int32_t> offers;  // by state
  std::deque<int32_t> todo(finals.begin(), finals.end());
  for (const int32_t state : finals) offers[state] = 0;
  while (!todo.empty() && work->spend(4)) {
    const int32_t at = todo.front();
    todo.pop_front();
    for (const Arrow& a : into[static_cast<size_t>(at)]) {
      const int32_t value = std::min(enough, offers[at] + a.weight);
      const auto [known, is_new] = offers.try_emplace(a.from, value);
      if (!is_new && known->second >= value) continue;
      known->second = value;
      todo.push_back(a.from);
    }
  }
  const auto found = offers.find(rule.start);
  return found != offers.end() && found->second >= enough;
}

// A rule is productive if some path from its start to a final state calls only productive rules and leaves, with at least `least` and at
// most `most` counted calls. When a rule becomes productive, only the states that call it are updated, so long chains of rules need no
// repeated passes.
std::vector<uint8_t> Program::productive_rules(Work* work) const {
  std::vector<uint8_t> known(rules.size());
  std::vector<std::vector<Arrow>> into(states.size()),  // usable edges, by target state
      calls_of(rules.size());  // calls by callee; they become usable when the callee is found productive
  std::vector<int32_t> needs(states.size(), kNoBound);
  std::vector<int32_t> rule_at(states.size(), -1);  // by start state
  std::vector<int32_t> sizes(rules.size());         // the number of states by rule
  std::vector<std::vector<int32_t>> finals(rules.size());
  std::deque<int32_t> todo;
  for (size_t r = 0; r < rules.size(); ++r)
    rule_at[static_cast<size_t>(rules[r].start)] = static_cast<int32_t>(r);
  for (size_t s = 0; s < states.size(); ++s) {
    const auto from = static_cast<int32_t>(s);
    for (const int32_t to : states[s].empties) into[static_cast<size_t>(to)].push_back({from, to, 0});
    for (const Call& call : states[s].calls) {
      const Arrow arrow{from, call.to, call.counted ? 1 : 0};
      if (!is_leaf(call.callee))
        calls_of[static_cast<size_t>(call.callee)].push_back(arrow);
      else if (!leaves[static_cast<size_t>(leaf_index(call.callee))]->dfa.empty())
        into[static_cast<size_t>(call.to)].push_back(arrow);
    }
    ++sizes[static_cast<size_t>(states[s].rule)];
    if (!states[s].final) continue;
    needs[s] = 0, todo.push_back(from);
    finals[static_cast<size_t>(states[s].rule)].push_back(from);
  }
  const auto relax = [&](const Arrow& a) {
    const int32_t behind = needs[static_cast<size_t>(a.to)];
    int32_t& own = needs[static_cast<size_t>(a.from)];
    if (behind == kNoBound || behind + a.weight >= own) return;
    own = behind + a.weight;
    if (a.weight == 0)
      todo.push_front(a.from);
    else
      todo.push_back(a.from);
  };
  std::set<int32_t> pending;  // rules with a minimum, to be examined once nothing else is left to do
  const auto found = [&](int32_t r) {
    known[static_cast<size_t>(r)] = 1;
    for (const Arrow& a : calls_of[static_cast<size_t>(r)]) {
      into[static_cast<size_t>(a.to)].push_back(a);
      relax(a);
      const int32_t caller = states[static_cast<size_t>(a.from)].rule;
      if (rules[static_cast<size_t>(caller)].least > 0) pending.insert(caller);
    }
  };
  while (!todo.empty() || !pending.empty()) {
    if (todo.empty()) {
      for (const int32_t r : std::exchange(pending, {})) {
        const auto i = static_cast<size_t>(r);
        if (known[i] == 0 && needs[static_cast<size_t>(rules[i].start)] <= rules[i].most &&
            offers_least(rules[i], into, finals[i], sizes[i], work))
          found(r);
      }
      continue;
    }
    const auto at = static_cast<size_t>(todo.front());
    todo.pop_front();
    if (!work->spend(1 + std::ssize(into[at]))) break;
    for (const Arrow& a : into[at]) relax(a);
    const int32_t r = rule_at[at];
    if (r < 0 || known[static_cast<size_t>(r)] != 0 || needs[at] > rules[static_cast<size_t>(r)].most)
      continue;
    if (rules[static_cast<size_t>(r)].least > 0)
      pending.insert(r);
    else
      found(r);
  }
  return known;
}

void Program::set_nullable(Work* work) {
  for (bool more = true; more && work->spend(std::ssize(states));) {
    more = false;
    std::vector<uint8_t> reached(states.size());
    for (size_t r = 0; r < rules.size(); ++r) {
      if (rules[r].nullable || rules[r].least > 0) continue;
      std::vector<int32_t> todo{rules[r].start};
      while (!todo.empty() && !rules[r].nullable) {
        const State& s = states[static_cast<size_t>(todo.back())];
        todo.pop_back();
        if (s.final) rules[r].nullable = more = true;
        const auto go = [&](int32_t to) {
          if (!std::exchange(reached[static_cast<size_t>(to)], uint8_t{1})) todo.push_back(to);
        };
        for (const int32_t to : s.empties) go(to);
        for (const Call& c : s.calls)
          if (!is_leaf(c.callee) && rules[static_cast<size_t>(c.callee)].nullable) go(c.to);
      }
    }
  }
}

// Sets `needs` of all states, `offers` of the states of counting rules, and the same without the members of dependencies. If a loop contains a counted call, there is no maximum.
void Program::set_counts(Work* work) {
  const auto needs = fewest(states, reversed(states, once));
  for (size_t s = 0; s < states.size(); ++s) states[s].needs = needs[s];
  if (std::ranges::any_of(rules, [](const Rule& rule) { return rule.dependencies != nullptr; })) {
    const auto others = fewest(states, reversed(states, once_of_others));
    for (size_t s = 0; s < states.size(); ++s) states[s].others_needed = others[s];
  }
  std::vector<std::vector<int32_t>> states_of(rules.size());
  for (size_t s = 0; s < states.size(); ++s)
    states_of[static_cast<size_t>(states[s].rule)].push_back(static_cast<int32_t>(s));
  // A path without loops has at most as many counted calls as states, so a larger maximum means that the path has a loop.
  for (size_t r = 0; r < rules.size(); ++r) {
    const std::vector<int32_t>& own = states_of[r];
    const auto relax = [&](int32_t State::*offered, const auto& weight) {
      const auto cap = static_cast<int32_t>(own.size());
      bool more = false;
      for (auto it = own.rbegin(); it != own.rend(); ++it) {
        State& s = states[static_cast<size_t>(*it)];
        const auto raise = [&](int32_t to, int32_t more_calls) {
          const int32_t behind = states[static_cast<size_t>(to)].*offered;
          const int32_t value = behind == kNoBound ? kNoBound : behind + more_calls;
          if (value > s.*offered) s.*offered = value > cap ? kNoBound : value, more = true;
        };
        for (const int32_t to : s.empties) raise(to, 0);
        for (const Call& c : s.calls) raise(c.to, weight(c));
      }
      return more;
    };
    const auto set = [&](int32_t State::*offered, const auto& weight) {
      while (relax(offered, weight) && work->spend(1 + std::ssize(own) / 4)) {
      }
    };
    if (rules[r].counted()) set(&State::offers, once);
    if (rules[r].dependencies != nullptr) set(&State::others_offered, once_of_others);
  }
}

// If a call must produce a new array or object and has few possible values, it calls a leaf of these values instead, so that used values can
// be left out.
void Program::list_few(Work* work) {
  constexpr int64_t kCountedMax = 1024;
  // Values that cost much to list are not listed.
  const auto with_part = [&](const auto& list) {
    Work part = work->part(16);
    const int64_t before = part.left();
    auto out = list(&part);
    (void)work->spend(before - part.left());
    return part.over() ? std::nullopt : std::move(out);
  };
  std::unordered_map<Callee, Callee> listed;
  std::unordered_map<Callee, int64_t> counts;
  for (size_t s = 0; s < states.size(); ++s)
    for (size_t c = 0; c < states[s].calls.size(); ++c) {
      const Callee callee = states[s].calls[c].callee;
      if (!states[s].calls[c].distinct() || is_leaf(callee)) continue;
      const auto [known, is_new] = listed.try_emplace(callee, callee);
      if (is_new)
        if (const auto texts = with_part([&](Work* part) { return FewValues(*this, part).texts_of(callee); }))
          known->second = add_leaf(std::make_shared<const Leaf>(texts_leaf(*texts)));
      states[s].calls[c].callee = known->second;
      if (is_leaf(known->second)) continue;
      refuses = true;
      if (!is_new) continue;
      if (const auto count =
              with_part([&](Work* part) { return FewValues(*this, part, kCountedMax).count_of(callee); }))
        counts[callee] = *count;
    }
  for (const Rule& rule : rules) checks |= rule.check != nullptr;
  refuses |= checks;
  limit_by_values(counts);
}

// If all counted calls of a rule start in one state and need new values, the rule makes at most as many calls as there are values.
void Program::limit_by_values(const std::unordered_map<Callee, int64_t>& counts) {
  struct Supply {
    int32_t state = -1;
    int64_t values = 0;
    bool known = true;
  };
  std::unordered_map<int32_t, Supply> supplies;  // by rule
  for (size_t s = 0; s < states.size(); ++s)
    for (const Call& call : states[s].calls) {
      if (!call.counted) continue;
      Supply& supply = supplies[states[s].rule];
      supply.known &= call.distinct() && (supply.state < 0 || supply.state == static_cast<int32_t>(s));
      supply.state = static_cast<int32_t>(s);
      if (!supply.known) continue;
      const auto count = counts.find(call.callee);
      if (count != counts.end())
        supply.values += count->second;
      else if (is_leaf(call.callee) && !leaves[static_cast<size_t>(leaf_index(call.callee))]->texts.empty())
        supply.values += std::ssize(leaves[static_cast<size_t>(leaf_index(call.callee))]->texts);
      else
        supply.known = false;
    }
  for (const auto& [rule, supply] : supplies)
    if (supply.known)
      rules[static_cast<size_t>(rule)].most =
          static_cast<int32_t>(std::min<int64_t>(rules[static_cast<size_t>(rule)].most, supply.values));
}

void Program::set_values(Work* work) {
  values.assign(leaves.size(), {});
  for (const State& s : states)
    for (const Call& call : s.calls) {
      if (!call.distinct() || !is_leaf(call.callee)) continue;
      const auto index = static_cast<size_t>(leaf_index(call.callee));
      if (leaves[index]->texts.empty()) continue;
      rules[static_cast<size_t>(s.rule)].distinct = true;
      if (!values[index].empty()) continue;
      for (const std::string& text : leaves[index]->texts) {
        (void)work->spend(16 + std::ssize(text) / 4);
        values[index].push_back(hash_of_value(text));
        uint64_t& kind = kinds[values[index].back()];
        kind = mix(kind, index);
      }
    }
}

bool Program::meets(int32_t index, const Dependencies::Members& present, const Dependencies::Members& wanted,
                    int64_t count, Work* work) const {
  using Members = Dependencies::Members;
  const State& state = states[static_cast<size_t>(index)];
  const Rule& rule = rules[static_cast<size_t>(state.rule)];
  const Dependencies& of = *rule.dependencies;
  Members all = wanted | of.required, gone = ~present;
  if (state.open >= 0)
    all |= of.wanted[static_cast<size_t>(state.open)], gone.reset(static_cast<size_t>(state.open));
  if (state.passed < static_cast<int32_t>(Dependencies::kMax))
    gone &= ~(~Members() << static_cast<size_t>(state.passed));
  gone |= of.never;
  const auto may_add = [&](size_t member) {
    return !of.unasked[member] && (of.wanted[member] & gone).none();
  };
  if (state.open >= 0 && of.unasked[static_cast<size_t>(state.open)] &&
      !(wanted | of.required)[static_cast<size_t>(state.open)])
    return false;
  if (!work->spend(4)) return true;
  if ((all & gone).any()) return false;
  if (!state.must && !rule.counted()) return true;
  const auto size = [&](const Members& members) {
    return count + static_cast<int64_t>((members & ~present).count());
  };
  const auto each_more = [&](const Members& from, const auto& visit) {
    if (!work->spend(std::ssize(of.wanted))) return true;
    for (size_t i = static_cast<size_t>(state.passed); i < of.wanted.size(); ++i)
      if (!from[i] && may_add(i) && visit(from | of.wanted[i])) return true;
    return false;
  };
  const int64_t most = rule.most, others = state.others_needed;
  if (size(all) + others > most) return false;
  if (state.must && size(all) == count && others == 0 && (state.others_offered == 0 || count + 1 > most) &&
      !each_more(all, [&](const Members& more) { return size(more) <= most; }))
    return false;
  if (rule.least == 0 || state.others_offered == kNoBound) return true;
  Members largest = all;
  (void)each_more(all, [&](const Members& more) { return (largest |= more).none(); });
  if (size(largest) + state.others_offered < rule.least) return work->over();
  if (rule.most == kNoBound) return true;
  // Both bounds: adds the smallest groups first. Single members reach every number, and only rings of members may miss some.
  int64_t looks = 64;
  const auto reaches = [&](const auto& again, const Members& from) -> bool {
    if (size(from) + others > most) return false;
    if (size(from) + state.others_offered >= rule.least || --looks < 0) return true;
    std::vector<Members> next;
    if (each_more(from, [&](const Members& more) { return next.push_back(more), false; })) return true;
    std::ranges::stable_sort(next, {}, size);
    return std::ranges::any_of(next, [&](const Members& more) { return again(again, more); });
  };
  return reaches(reaches, all);
}

// Removes the members of dependencies that can never be present, because nothing matches their value or the value of a member that they want,
// and ends no object whose dependencies cannot be met. Returns whether anything changed.
bool Program::drop_unmet(Work* work) {
  bool changed = false;
  for (const State& s : states) {
    Dependencies* of = rules[static_cast<size_t>(s.rule)].dependencies.get();
    if (of == nullptr || s.open < 0 || s.needs != kNoBound || of->never[static_cast<size_t>(s.open)])
      continue;
    (void)work->spend(std::ssize(of->wanted));
    for (size_t i = 0; i < of->wanted.size(); ++i)
      if (of->wanted[i][static_cast<size_t>(s.open)]) of->never.set(i);
    changed = true;
  }
  for (State& s : states) {
    const Rule& rule = rules[static_cast<size_t>(s.rule)];
    if (rule.dependencies == nullptr) continue;
    changed |= std::erase_if(s.calls, [&](const Call& call) {
                 const int32_t open = states[static_cast<size_t>(call.to)].open;
                 return open >= 0 && rule.dependencies->never[static_cast<size_t>(open)];
               }) > 0;
    if (s.final && !meets(rule.start, {}, {}, 0, work)) s.final = false, changed = true;
  }
  return changed;
}

// Removes the calls that nothing matches. Returns whether some text matches the root.
bool Program::drop_unproductive(Work* work, bool* changed) {
  if (!work->spend(4 * std::ssize(states))) return false;
  const auto productive = productive_rules(work);
  for (State& s : states)
    *changed |= std::erase_if(s.calls, [&](const Call& c) {
                  return is_leaf(c.callee) ? leaves[static_cast<size_t>(leaf_index(c.callee))]->dfa.empty()
                                           : productive[static_cast<size_t>(c.callee)] == 0;
                }) > 0;
  return productive[static_cast<size_t>(root)] != 0;
}

bool Program::finish(Work* work) {
  bool changed = false;
  // Before values are listed, because a call that nothing matches would hide that there are few.
  if (!drop_unproductive(work, &changed)) return false;
  list_few(work);
  set_values(work);
  while (true) {
    changed = false;
    if (!drop_unproductive(work, &changed)) return false;
    const auto needs = fewest(states, reversed(states, once));
    const auto dead = [&](int32_t s) { return needs[static_cast<size_t>(s)] == kNoBound; };
    for (State& s : states) {
      changed |= std::erase_if(s.calls, [&](const Call& c) { return dead(c.to); }) > 0;
      changed |= std::erase_if(s.empties, dead) > 0;
    }
    set_counts(work);
    changed |= drop_unmet(work);
    // A rule whose minimum exceeds its maximum or its supply of new values matches nothing. Its final states are removed, and the analysis
    // repeats.
    for (const Rule& rule : rules)
      if ((rule.counted() &&
           (rule.most < rule.least || states[static_cast<size_t>(rule.start)].offers < rule.least)) ||
          (rule.distinct && !DistinctSearch(*this, work, {}).can_end(rule.start, 0))) {
        const auto r = static_cast<int32_t>(&rule - rules.data());
        for (State& s : states)
          if (s.rule == r && s.final) s.final = false, changed = true;
      }
    if (changed) {
      for (State& s : states) s.offers = s.others_offered = 0;
      continue;
    }
    set_nullable(work);
    return !work->over();
  }
}

}  // namespace sluice
