#include "grammar/regex.h"

#include <algorithm>
#include <string>
#include <utility>

#include "grammar/regex_parser.h"

namespace sluice {
namespace {

using Node = Regex::Node;
using Kind = Node::Kind;
using Pointer = Node::Pointer;
using Parts = std::vector<Pointer>;
constexpr size_t kNfaStatesMax = 60000, kAlternativesMax = 64;

bool has_kind(const Pointer& node, Kind kind) {
  return node->kind == kind || std::any_of(node->parts.begin(), node->parts.end(),
                                           [kind](const Pointer& p) { return has_kind(p, kind); });
}
bool is_begin(const Pointer& node) {
  return node->kind == Kind::kBegin || (node->kind == Kind::kSequence && !node->parts.empty() &&
                                        std::all_of(node->parts.begin(), node->parts.end(), is_begin));
}
bool any_has(const Parts& parts, Kind kind) {
  return std::any_of(parts.begin(), parts.end(), [kind](const Pointer& p) { return has_kind(p, kind); });
}

Status too_large() {
  return {Regex::kTooLarge,
          "one that takes more than " + std::to_string(kDfaStatesMax) + " states, or too long to compile"};
}

class Builder {
 public:
  Builder(Bound bound, Work* work) : bound_(bound), work_(work) {}

  // `tail`: any text may follow; `lead`: any text may precede.
  Result<Dfa> texts(const Parts& parts, bool lead, bool tail) {
    std::vector<Parts> alternatives;
    SLUICE_TRY(flatten(parts, &alternatives));
    std::optional<Dfa> all;
    for (const Parts& alternative : alternatives) {
      auto one = sequence(alternative, lead, tail);
      if (!one.ok() || !all) {
        if (!one.ok()) return one.status();
        all = std::move(one).value();
        continue;
      }
      all = combine(*all, one.value(), SetOp::kEither, work_);
      if (!all) return too_large();
    }
    return std::move(*all);
  }

 private:
  // Expands groups that contain look-aheads, so that each look-ahead is a part of its own.
  Status flatten(const Parts& parts, std::vector<Parts>* out) const {
    std::vector<Parts> done{{}};
    for (const Pointer& part : parts) {
      if (part->kind == Kind::kLookAhead || !has_kind(part, Kind::kLookAhead)) {
        for (Parts& p : done) p.push_back(part);
        continue;
      }
      if (part->kind == Kind::kRepeat)
        return invalid("a look-ahead that is repeated, which is not supported");
      std::vector<Parts> inside;
      if (part->kind == Kind::kSequence) SLUICE_TRY(flatten(part->parts, &inside));
      if (part->kind == Kind::kChoice)
        for (const Pointer& choice : part->parts) SLUICE_TRY(flatten({choice}, &inside));
      std::vector<Parts> next;
      if (done.size() * inside.size() > kAlternativesMax) return too_large();
      for (const Parts& before : done)
        for (const Parts& after : inside) {
          next.push_back(before);
          next.back().insert(next.back().end(), after.begin(), after.end());
        }
      done = std::move(next);
    }
    out->insert(out->end(), done.begin(), done.end());
    return {};
  }

  // The texts of the parts before the first look-ahead, followed by texts that match both the look-ahead and the remaining parts.
  Result<Dfa> sequence(const Parts& parts, bool lead, bool tail) {
    const auto look = std::find_if(parts.begin(), parts.end(),
                                   [](const Pointer& p) { return p->kind == Kind::kLookAhead; });
    if (look == parts.end()) return plain(parts, lead, tail);
    Parts before(parts.begin(), look);
    const Parts after(look + 1, parts.end());
    bool at_end = false;  // a '$' directly precedes the look-ahead
    for (; !before.empty() && before.back()->kind == Kind::kEnd; before.pop_back()) at_end = true;
    // The remaining parts begin at the start of the text if only '^' precedes them.
    const bool anchored = !before.empty() && std::all_of(before.begin(), before.end(),
                                                         [](const Pointer& p) { return is_begin(p); });
    const bool first = anchored || (before.empty() && !lead);
    if (any_has(before, Kind::kEnd) ||
        (!first && (any_has(after, Kind::kBegin) || has_kind((*look)->parts[0], Kind::kBegin))))
      return invalid("a look-ahead after a group with '$', or before '^', which is not supported");
    auto rest = sequence(after, false, tail);
    if (!rest.ok()) return rest;
    Builder seen((*look)->negative ? opposite(bound_) : bound_, work_);
    auto looked = seen.texts((*look)->parts, false, true);
    if (!looked.ok()) return looked;
    auto kept =
        combine(rest.value(), looked.value(), (*look)->negative ? SetOp::kFirstOnly : SetOp::kBoth, work_);
    if (kept && at_end) {
      // What may follow '$'. In Python that is also a final line feed.
      std::vector<std::string> ends{""};
      if (bound_ == Bound::kOuter) ends.emplace_back("\n");
      kept = combine(*kept, Dfa::of_texts(ends), SetOp::kBoth, work_);
    }
    auto front = plain(before, lead, false);
    if (!front.ok()) return front;
    if (!kept) return too_large();
    auto out = concatenate(front.value(), *kept, work_);
    if (!out) return too_large();
    return std::move(*out);
  }

  Result<Dfa> plain(const Parts& parts, bool lead, bool tail) {
    nfa_ = Nfa();
    nfa_.begin = nfa_.add_state();
    int32_t from = nfa_.begin;
    if (lead) anything(from);
    for (const Pointer& part : parts) from = add(part, from);
    if (tail) {
      // The loop has a state of its own, so that only a match of the last part can enter it.
      const int32_t loop = nfa_.add_state();
      nfa_.add_empty(from, loop);
      anything(from = loop);
      nfa_.sink = loop;
    }
    nfa_.end = from;
    if (nfa_.states.size() > kNfaStatesMax) return too_large();
    auto out = determinize(nfa_, work_);
    if (!out) return too_large();
    return std::move(*out);
  }

  void anything(int32_t at) { nfa_.add_chars(at, CharSet::all(), at); }

  // Adds `node` after the state `from` and returns its end.
  int32_t add(const Pointer& node, int32_t from) {
    if (nfa_.states.size() > kNfaStatesMax) return from;
    switch (node->kind) {
      case Kind::kChars: {
        const int32_t to = nfa_.add_state();
        nfa_.add_chars(from, node->chars[static_cast<size_t>(bound_)], to);
        return to;
      }
      case Kind::kSequence:
        for (const Pointer& part : node->parts) from = add(part, from);
        return from;
      case Kind::kChoice: {
        const int32_t to = nfa_.add_state();
        for (const Pointer& part : node->parts) {
          const int32_t start = nfa_.add_state();
          nfa_.add_empty(from, start);
          nfa_.add_empty(add(part, start), to);
        }
        return to;
      }
      case Kind::kRepeat:
        return repeat(*node, from);
      case Kind::kBegin: {
        const int32_t to = nfa_.add_state();
        nfa_.add_empty(from, to, Nfa::When::kAtBegin);
        return to;
      }
      case Kind::kEnd: {
        const int32_t to = nfa_.add_state();
        nfa_.add_empty(from, to, Nfa::When::kAtEnd);
        if (bound_ == Bound::kOuter) {  // Python's '$' also matches before a final line feed
          const int32_t behind = nfa_.add_state();
          nfa_.add_edge(from, '\n', '\n', behind);
          nfa_.add_empty(behind, to, Nfa::When::kAtEnd);
        }
        return to;
      }
      case Kind::kLookAhead:
      case Kind::kReference:
        break;  // flatten() removed these
    }
    return from;
  }

  int32_t repeat(const Node& node, int32_t from) {
    const Pointer& part = node.parts[0];
    for (int64_t i = 0; i < node.least && nfa_.states.size() <= kNfaStatesMax; ++i) from = add(part, from);
    if (node.most < 0) {
      const int32_t loop = nfa_.add_state();
      nfa_.add_empty(from, loop);
      nfa_.add_empty(add(part, loop), loop);
      const int32_t to = nfa_.add_state();
      nfa_.add_empty(loop, to);
      return to;
    }
    const int32_t to = nfa_.add_state();
    nfa_.add_empty(from, to);
    for (int64_t i = node.least; i < node.most && nfa_.states.size() <= kNfaStatesMax; ++i) {
      // Each repetition has a start state of its own. If the part begins with a loop, no other path can enter that loop.
      const int32_t start = nfa_.add_state();
      nfa_.add_empty(from, start);
      from = add(part, start);
      nfa_.add_empty(from, to);
    }
    return to;
  }

  Bound bound_;
  Work* work_;
  Nfa nfa_;
};

}  // namespace

Result<Regex> Regex::parse(std::string_view pattern) {
  auto root = parse_regex(pattern);
  if (!root.ok()) return root.status();
  return Regex(std::move(root).value());
}

Result<Dfa> Regex::dfa(RegexMatch match, Bound bound, Work* work) const {
  const bool search = match == RegexMatch::kSearch;
  auto out = Builder(bound, work).texts({root_}, search, search);
  if (out.ok() && work->over()) return too_large();
  return out;
}

std::optional<RepeatedClass> Regex::repeated_class(Bound bound) const {
  const auto& parts = root_->parts;
  if (root_->kind != Kind::kSequence || parts.size() != 3 || parts[0]->kind != Kind::kBegin ||
      parts[2]->kind != Kind::kEnd || parts[1]->kind != Kind::kRepeat)
    return {};
  Pointer inside = parts[1]->parts[0];
  while (inside->kind == Kind::kSequence && inside->parts.size() == 1) inside = inside->parts[0];
  if (inside->kind != Kind::kChars) return {};
  return RepeatedClass{inside->chars[static_cast<size_t>(bound)], parts[1]->least, parts[1]->most};
}

}  // namespace sluice
