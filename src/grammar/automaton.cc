#include "grammar/automaton.h"

#include <algorithm>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>

namespace sluice {
namespace {

// The UTF-8 byte sequences of a range of code points, as one byte range per position.
using Bytes = std::vector<std::pair<uint8_t, uint8_t>>;

int length_of(char32_t c) { return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4; }

std::array<uint8_t, 4> spell(char32_t c, int length) {
  constexpr uint8_t kLead[] = {0, 0x00, 0xc0, 0xe0, 0xf0};
  std::array<uint8_t, 4> out{};
  for (int i = length - 1; i > 0; --i, c >>= 6)
    out[static_cast<size_t>(i)] = static_cast<uint8_t>(0x80 | (c & 0x3f));
  out[0] = static_cast<uint8_t>(kLead[length] | c);
  return out;
}

void split(char32_t first, char32_t last, std::vector<Bytes>* out) {
  constexpr char32_t kEnds[] = {0x7f, 0x7ff, 0xffff};
  for (const char32_t end : kEnds)
    if (first <= end && end < last) {
      split(first, end, out);
      return split(end + 1, last, out);
    }
  const int length = length_of(first);
  for (int i = 1; i < length; ++i) {
    const char32_t low = (char32_t{1} << (6 * i)) - 1;
    if ((first & ~low) == (last & ~low)) continue;
    if ((first & low) != 0) {
      split(first, first | low, out);
      return split((first | low) + 1, last, out);
    }
    if ((last & low) != low) {
      split(first, (last & ~low) - 1, out);
      return split(last & ~low, last, out);
    }
  }
  const auto a = spell(first, length), b = spell(last, length);
  Bytes bytes;
  for (size_t i = 0; i < static_cast<size_t>(length); ++i) bytes.emplace_back(a[i], b[i]);
  out->push_back(std::move(bytes));
}

struct VectorHash {
  size_t operator()(const std::vector<int32_t>& v) const {
    uint64_t h = 0x9e3779b97f4a7c15;
    for (const int32_t x : v) h = (h ^ static_cast<uint32_t>(x)) * 0x100000001b3 + (h >> 29);
    return static_cast<size_t>(h);
  }
};

}  // namespace

int32_t Nfa::add_state() {
  states.emplace_back();
  return static_cast<int32_t>(states.size()) - 1;
}
void Nfa::add_edge(int32_t from, uint8_t first, uint8_t last, int32_t to) {
  states[static_cast<size_t>(from)].edges.push_back({first, last, to});
}
void Nfa::add_empty(int32_t from, int32_t to, When when) {
  states[static_cast<size_t>(from)].empties.push_back({when, to});
}

void Nfa::add_chars(int32_t from, const CharSet& chars, int32_t to) {
  std::vector<Bytes> all;
  for (const CharSet::Range& r : chars.ranges()) split(r.first, r.last, &all);
  std::map<std::pair<Bytes, int>, int32_t> shared;  // states by their outgoing bytes
  for (const Bytes& bytes : all) {
    // Builds from the last byte to the first, so that sequences with a common tail share its states.
    int32_t after = to;
    for (size_t i = bytes.size(); i-- > 1;) {
      const Bytes tail(bytes.begin() + static_cast<std::ptrdiff_t>(i), bytes.end());
      const auto [found, is_new] = shared.try_emplace({tail, 0}, 0);
      if (is_new) {
        found->second = add_state();
        add_edge(found->second, bytes[i].first, bytes[i].second, after);
      }
      after = found->second;
    }
    add_edge(from, bytes[0].first, bytes[0].second, after);
  }
}

void Nfa::add_text(int32_t from, std::string_view bytes, int32_t to) {
  if (bytes.empty()) return add_empty(from, to);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int32_t next = i + 1 == bytes.size() ? to : add_state();
    add_edge(from, static_cast<uint8_t>(bytes[i]), static_cast<uint8_t>(bytes[i]), next);
    from = next;
  }
}

int32_t DfaBuilder::add_state(bool accepts) {
  next_.emplace_back().fill(Dfa::kDead);
  accepts_.push_back(accepts);
  return states() - 1;
}
void DfaBuilder::set(int32_t from, uint8_t first, uint8_t last, int32_t to) {
  auto& row = next_[static_cast<size_t>(from)];
  std::fill(row.begin() + first, row.begin() + last + 1, to);
}
void DfaBuilder::set_next(int32_t from, const std::array<int32_t, 256>& next) {
  next_[static_cast<size_t>(from)] = next;
}

namespace {

// Marks the states that are reachable and lead to acceptance.
std::vector<uint8_t> useful_states(const std::vector<std::array<int32_t, 256>>& next,
                                   const std::vector<uint8_t>& accepts) {
  const size_t n = accepts.size();
  std::vector<uint8_t> reached(n), useful(n);
  std::vector<std::vector<int32_t>> from(n);
  std::vector<int32_t> todo;
  if (n > 0) todo.push_back(0), reached[0] = 1;
  while (!todo.empty()) {
    const int32_t s = todo.back();
    todo.pop_back();
    int32_t last = Dfa::kDead;
    for (const int32_t t : next[static_cast<size_t>(s)]) {
      if (t == Dfa::kDead || t == last) continue;
      last = t;
      from[static_cast<size_t>(t)].push_back(s);
      if (!std::exchange(reached[static_cast<size_t>(t)], uint8_t{1})) todo.push_back(t);
    }
  }
  for (size_t s = 0; s < n; ++s)
    if (accepts[s] && reached[s]) useful[s] = 1, todo.push_back(static_cast<int32_t>(s));
  while (!todo.empty()) {
    const int32_t t = todo.back();
    todo.pop_back();
    for (const int32_t s : from[static_cast<size_t>(t)])
      if (!std::exchange(useful[static_cast<size_t>(s)], uint8_t{1})) todo.push_back(s);
  }
  return useful;
}

constexpr int64_t kMergeStepsMax = 4'000'000;

// Partitions the states by equivalence with Moore's algorithm. It may stop early and then leave some equivalent states separate.
std::vector<int32_t> equal_states(const std::vector<int32_t>& next, size_t classes,
                                  std::vector<int32_t> group, Work* work) {
  const size_t n = group.size();
  std::unordered_map<std::vector<int32_t>, int32_t, VectorHash> seen;
  size_t groups = 0;
  int64_t steps = 0;
  while (true) {
    seen.clear();
    std::vector<int32_t> refined(n), key(classes + 1);
    for (size_t s = 0; s < n; ++s) {
      key[0] = group[s];
      for (size_t c = 0; c < classes; ++c) {
        const int32_t t = next[s * classes + c];
        key[c + 1] = t == Dfa::kDead ? -1 : group[static_cast<size_t>(t)];
      }
      refined[s] = seen.try_emplace(key, static_cast<int32_t>(seen.size())).first->second;
    }
    // The result is correct without a full merge. A long chain of states needs as many rounds as it has states, and has no equivalent states.
    steps += static_cast<int64_t>(n * (classes + 1));
    (void)work->spend(static_cast<int64_t>(n * (classes + 1)) / 4);
    if (steps > kMergeStepsMax || work->over()) {
      for (size_t s = 0; s < n; ++s) refined[s] = static_cast<int32_t>(s);
      return refined;
    }
    if (seen.size() == groups) return refined;
    groups = seen.size();
    group = std::move(refined);
  }
}

}  // namespace

Dfa DfaBuilder::done(Work* work, const std::vector<uint8_t>* labels, std::vector<int32_t>* order) const {
  Dfa out;
  if (order != nullptr) order->clear();
  (void)work->spend(16 * int64_t{states()});  // about 256 lookups per state
  const auto useful = useful_states(next_, accepts_);
  if (useful.empty() || !useful[0]) return out;
  // Numbers states breadth first, so that the start is 0.
  std::vector<int32_t> number(useful.size(), Dfa::kDead), old{0};
  number[0] = 0;
  for (size_t i = 0; i < old.size(); ++i)
    for (const int32_t t : next_[static_cast<size_t>(old[i])])
      if (t != Dfa::kDead && useful[static_cast<size_t>(t)] && number[static_cast<size_t>(t)] == Dfa::kDead) {
        number[static_cast<size_t>(t)] = static_cast<int32_t>(old.size());
        old.push_back(t);
      }
  // Bytes with the same target in every state form one class.
  const auto target = [&](int32_t s, size_t byte) {
    const int32_t t = next_[static_cast<size_t>(s)][byte];
    return t == Dfa::kDead ? Dfa::kDead : number[static_cast<size_t>(t)];
  };
  std::vector<int32_t> byte_class(256, 0);
  int32_t byte_classes = 1;
  struct Split {
    int32_t from, target, to;
  };
  for (const int32_t s : old) {
    // Bytes of one class with different targets are split: those with the first target keep the class's number, the others get new classes.
    constexpr int32_t kNone = -2;
    std::array<int32_t, 256> first;
    first.fill(kNone);
    std::vector<Split> splits;
    for (size_t b = 0; b < 256; ++b) {
      const int32_t from = byte_class[b], t = target(s, b);
      int32_t& kept = first[static_cast<size_t>(from)];
      if (kept == kNone) kept = t;
      if (kept == t) continue;
      auto split = std::find_if(splits.begin(), splits.end(),
                                [&](const Split& x) { return x.from == from && x.target == t; });
      if (split == splits.end()) split = splits.insert(splits.end(), {from, t, byte_classes++});
      byte_class[b] = split->to;
    }
    if (byte_classes == 256) break;
  }
  const auto classes = static_cast<size_t>(byte_classes);
  std::vector<uint8_t> byte_of(classes);
  for (size_t b = 256; b-- > 0;) byte_of[static_cast<size_t>(byte_class[b])] = static_cast<uint8_t>(b);
  std::vector<int32_t> next(old.size() * classes), group(old.size());
  for (size_t s = 0; s < old.size(); ++s) {
    for (size_t c = 0; c < classes; ++c) next[s * classes + c] = target(old[s], byte_of[c]);
    const auto from = static_cast<size_t>(old[s]);
    group[s] = (accepts_[from] ? 1 : 0) + (labels != nullptr ? 2 * (*labels)[from] : 0);
  }
  group = equal_states(next, classes, std::move(group), work);
  // Orders the groups by their first states.
  std::vector<int32_t> rank(old.size(), -1), first;
  for (size_t s = 0; s < old.size(); ++s)
    if (rank[static_cast<size_t>(group[s])] < 0) {
      rank[static_cast<size_t>(group[s])] = static_cast<int32_t>(first.size());
      first.push_back(static_cast<int32_t>(s));
    }
  out.classes_ = classes;
  for (size_t b = 0; b < 256; ++b) out.class_of_[b] = static_cast<uint8_t>(byte_class[b]);
  for (const int32_t s : first) {
    const auto from = static_cast<size_t>(s);
    std::array<uint64_t, 4> bits{};
    for (size_t c = 0; c < classes; ++c) {
      const int32_t t = next[from * classes + c];
      out.next_.push_back(t == Dfa::kDead ? Dfa::kDead
                                          : rank[static_cast<size_t>(group[static_cast<size_t>(t)])]);
    }
    for (size_t b = 0; b < 256; ++b)
      if (next[from * classes + static_cast<size_t>(byte_class[b])] != Dfa::kDead)
        bits[b / 64] |= uint64_t{1} << (b % 64);
    out.accepts_.push_back(accepts_[static_cast<size_t>(old[from])]);
    out.next_bytes_.push_back(bits);
    out.has_next_.push_back((bits[0] | bits[1] | bits[2] | bits[3]) != 0);
    if (order != nullptr) order->push_back(old[from]);
  }
  return out;
}

bool Dfa::matches(std::string_view text) const {
  if (empty()) return false;
  int32_t s = 0;
  for (const char c : text)
    if ((s = step(s, static_cast<uint8_t>(c))) == kDead) return false;
  return accepts(s);
}

size_t Dfa::bytes() const {
  return next_.size() * sizeof(int32_t) + accepts_.size() * (2 + sizeof(next_bytes_[0])) + sizeof(*this);
}

std::optional<std::vector<std::string>> Dfa::texts(size_t most) const {
  std::vector<std::string> out;
  if (empty()) return out;
  // Depth first, bytes in order. A text with more bytes than the automaton has states passes through a loop, so there are infinitely many texts.
  std::string text;
  const std::function<bool(int32_t)> walk = [&](int32_t s) {
    if (static_cast<int32_t>(text.size()) > states()) return false;
    if (accepts(s)) {
      if (out.size() == most) return false;
      out.push_back(text);
    }
    for (int b = 0; b < 256; ++b) {
      const int32_t t = step(s, static_cast<uint8_t>(b));
      if (t == kDead) continue;
      text.push_back(static_cast<char>(b));
      if (!walk(t)) return false;
      text.pop_back();
    }
    return true;
  };
  if (states() > 4000 || !walk(0)) return {};
  return out;
}

const Dfa& Dfa::any_text() {
  static const Dfa any = [] {
    Nfa nfa;
    nfa.begin = nfa.end = nfa.add_state();
    nfa.add_chars(nfa.begin, CharSet::all(), nfa.begin);
    Work plenty(int64_t{1} << 24);
    return *determinize(nfa, &plenty);
  }();
  return any;
}

namespace {

// Computes the sorted set of states that empty transitions reach from `states`.
class Closure {
 public:
  explicit Closure(const Nfa& nfa) : nfa_(nfa), mark_(nfa.states.size()) {}
  std::vector<int32_t> operator()(std::vector<int32_t> states, bool at_begin, bool at_end, Work* work) {
    ++stamp_;
    std::vector<int32_t> out;
    for (const int32_t s : states) mark_[static_cast<size_t>(s)] = stamp_;
    while (!states.empty()) {
      const int32_t s = states.back();
      states.pop_back();
      out.push_back(s);
      for (const Nfa::Empty& e : nfa_.states[static_cast<size_t>(s)].empties) {
        const bool open = e.when == Nfa::When::kAlways || (e.when == Nfa::When::kAtBegin ? at_begin : at_end);
        if (!open || mark_[static_cast<size_t>(e.to)] == stamp_) continue;
        mark_[static_cast<size_t>(e.to)] = stamp_;
        states.push_back(e.to);
      }
    }
    (void)work->spend(static_cast<int64_t>(out.size()));
    std::sort(out.begin(), out.end());
    return out;
  }

 private:
  const Nfa& nfa_;
  std::vector<int64_t> mark_;
  int64_t stamp_ = 0;
};

}  // namespace

MaybeDfa determinize(const Nfa& nfa, Work* work) {
  Closure closure(nfa);
  DfaBuilder builder;
  std::unordered_map<std::vector<int32_t>, int32_t, VectorHash> number;
  std::vector<std::vector<int32_t>> sets;
  // The start gets a separate set even if another set has the same states, because '^' holds only at the
  // start.
  const auto add = [&](std::vector<int32_t> set, bool at_begin) {
    // The sink accepts everything, so the other states are irrelevant.
    if (nfa.sink >= 0 && std::binary_search(set.begin(), set.end(), nfa.sink))
      set = closure({nfa.sink}, false, false, work);
    if (!at_begin)
      if (const auto found = number.find(set); found != number.end()) return found->second;
    const auto behind = closure(set, at_begin, true, work);
    const int32_t id = builder.add_state(std::binary_search(behind.begin(), behind.end(), nfa.end));
    if (!at_begin) number.emplace(set, id);
    sets.push_back(std::move(set));
    return id;
  };
  add(closure({nfa.begin}, true, false, work), true);
  for (size_t i = 0; i < sets.size(); ++i) {
    if (builder.states() > kDfaStatesMax || work->over()) return {};
    // All bytes between two adjacent edge bounds lead to the same set.
    std::vector<Nfa::Edge> edges;
    std::vector<int32_t> bounds;
    for (const int32_t s : sets[i])
      for (const Nfa::Edge& e : nfa.states[static_cast<size_t>(s)].edges) {
        edges.push_back(e);
        bounds.push_back(e.first);
        bounds.push_back(e.last + 1);
      }
    std::sort(bounds.begin(), bounds.end());
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    for (size_t b = 0; b + 1 < bounds.size(); ++b) {
      std::vector<int32_t> to;
      for (const Nfa::Edge& e : edges)
        if (e.first <= bounds[b] && bounds[b] <= e.last) to.push_back(e.to);
      if (!work->spend(static_cast<int64_t>(edges.size()) + 8)) return {};
      if (to.empty()) continue;
      std::sort(to.begin(), to.end());
      to.erase(std::unique(to.begin(), to.end()), to.end());
      const int32_t id = add(closure(std::move(to), false, false, work), false);
      builder.set(static_cast<int32_t>(i), static_cast<uint8_t>(bounds[b]),
                  static_cast<uint8_t>(bounds[b + 1] - 1), id);
    }
  }
  if (work->over()) return {};
  return builder.done(work);
}

}  // namespace sluice
