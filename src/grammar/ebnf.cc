#include "grammar/ebnf.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "grammar/ebnf_parser.h"

namespace sluice {
namespace {

using Node = Regex::Node;
using Kind = Node::Kind;
using Pointer = Node::Pointer;
constexpr int32_t kProgramStatesMax = 100000;
constexpr size_t kInlinedMax = 400;  // maximum tree nodes after inlining

Status too_slow() { return invalid("one that takes too long to compile"); }

class EbnfCompiler {
 public:
  explicit EbnfCompiler(Work* work) : work_(work) {}

  Result<Program> grammar(const EbnfRules& rules) {
    source_ = &rules;
    const int32_t root = rule_of("root");
    return finish(root);
  }
  Result<Program> expression(const Pointer& node) {
    const int32_t root = program_.add_rule();
    emit(node, program_.start(root), final_state(root));
    return finish(root);
  }

 private:
  Result<Program> finish(int32_t root) {
    // Compiles one rule at a time instead of recursively, so that nesting is limited only by memory.
    while (!todo_.empty() && status_.ok()) {
      const auto [name, rule] = std::move(todo_.back());
      todo_.pop_back();
      emit(source_->find(name)->second, program_.start(rule), final_state(rule));
    }
    if (!status_.ok()) return status_;
    if (work_->over()) return too_slow();
    program_.root = root;
    const bool matches = program_.finish(work_);
    if (work_->over()) return too_slow();
    if (!matches) return invalid("one that nothing matches");
    return std::move(program_);
  }
  int32_t final_state(int32_t rule) {
    const int32_t out = program_.add_state(rule);
    program_.states[static_cast<size_t>(out)].final = true;
    return out;
  }
  int32_t rule_of(const std::string& name) {
    const auto [found, is_new] = rules_.try_emplace(name, 0);
    if (is_new) {
      found->second = program_.add_rule();
      todo_.emplace_back(name, found->second);
    }
    return found->second;
  }

  // The tree of a small rule, with all references inlined; null: the rule is recursive or large.
  Pointer plain_rule(const std::string& name) {
    const auto [found, is_new] =
        plain_.try_emplace(name, nullptr);  // null during the search, which detects recursion
    if (!is_new) return found->second;
    size_t size = 0;
    Pointer out = without_names(source_->find(name)->second, &size);
    return plain_[name] = std::move(out);
  }
  Pointer without_names(const Pointer& node, size_t* size) {
    if (++*size > kInlinedMax || !work_->spend(1)) return nullptr;
    if (node->kind == Kind::kReference) {
      Pointer out = plain_rule(node->name);
      if (out != nullptr) *size += size_of(out);
      return *size > kInlinedMax ? nullptr : out;
    }
    if (node->parts.empty()) return node;
    Node copy = *node;
    for (Pointer& part : copy.parts)
      if ((part = without_names(part, size)) == nullptr) return nullptr;
    return std::make_shared<const Node>(std::move(copy));
  }
  static size_t size_of(const Pointer& node) {
    size_t out = 1;
    for (const Pointer& part : node->parts) out += size_of(part);
    return out;
  }

  // `node` with all references inlined; null if a referenced rule is recursive or the tree gets too large.
  Pointer plain(const Pointer& node) {
    size_t size = 0;
    if (!has_kind(node, Kind::kReference)) return node;
    return without_names(node, &size);
  }
  static bool has_kind(const Pointer& node, Kind kind) {
    return node->kind == kind || std::any_of(node->parts.begin(), node->parts.end(),
                                             [kind](const Pointer& p) { return has_kind(p, kind); });
  }

  // Adds transitions for `node` between two states of a rule.
  void emit(const Pointer& node, int32_t from, int32_t to) {
    if (!status_.ok() || !work_->spend(16) || std::ssize(program_.states) > kProgramStatesMax) {
      if (status_.ok()) status_ = too_slow();
      return;
    }
    if (const Pointer whole = plain(node); whole != nullptr && leaf(whole, from, to)) return;
    // `node` must be split into several leaves. In each of them '^' would match at the leaf's start instead of the text's.
    for (const Kind kind : {Kind::kBegin, Kind::kEnd, Kind::kLookAhead})
      if (status_.ok() && has_kind(node, kind)) status_ = too_slow();
    if (!status_.ok()) return;
    const int32_t rule = program_.states[static_cast<size_t>(from)].rule;
    switch (node->kind) {
      case Kind::kReference:
        return program_.add_call(from, rule_of(node->name), to);
      case Kind::kSequence:
        return sequence(*node, from, to);
      case Kind::kChoice:
        for (const Pointer& part : node->parts) emit(part, from, to);
        return;
      case Kind::kRepeat:
        return repeat(*node, rule, from, to);
      default:
        if (status_.ok()) status_ = too_slow();
    }
  }

  // Adjacent parts whose references can be inlined become one leaf.
  void sequence(const Node& node, int32_t from, int32_t to) {
    const int32_t rule = program_.states[static_cast<size_t>(from)].rule;
    std::vector<bool> joins;
    for (const Pointer& part : node.parts) joins.push_back(plain(part) != nullptr);
    // If all parts can be joined, emit() has already tried to make one leaf of the sequence, and that leaf was too large.
    if (std::find(joins.begin(), joins.end(), false) == joins.end()) joins.assign(joins.size(), false);
    for (size_t i = 0; i < node.parts.size();) {
      size_t end = i + 1;
      while (joins[i] && end < node.parts.size() && joins[end]) ++end;
      const int32_t next = end == node.parts.size() ? to : program_.add_state(rule);
      if (end == i + 1) {
        emit(node.parts[i], from, next);
      } else {
        Node run;
        run.parts.assign(node.parts.begin() + static_cast<std::ptrdiff_t>(i),
                         node.parts.begin() + static_cast<std::ptrdiff_t>(end));
        emit(std::make_shared<const Node>(std::move(run)), from, next);
      }
      from = next;
      i = end;
    }
    if (node.parts.empty()) program_.add_empty(from, to);
  }

  void repeat(const Node& node, int32_t rule, int32_t from, int32_t to) {
    const Pointer& part = node.parts[0];
    if (node.most == 0) return program_.add_empty(from, to);
    if (node.least <= 1 && (node.most < 0 || node.most == 1)) {
      const int32_t begin = program_.add_state(rule), end = program_.add_state(rule);
      program_.add_empty(from, begin);
      program_.add_empty(end, to);
      emit(part, begin, end);
      if (node.least == 0) program_.add_empty(begin, end);
      if (node.most < 0) program_.add_empty(end, begin);
      return;
    }
    // Other repetitions need two rules: `once` matches the part, and `counter` calls `once` and counts the calls.
    const int32_t once = program_.add_rule(), counter = program_.add_rule();
    emit(part, program_.start(once), final_state(once));
    Program::Rule& r = program_.rules[static_cast<size_t>(counter)];
    r.least = static_cast<int32_t>(node.least);
    if (node.most >= 0) r.most = static_cast<int32_t>(node.most);
    const int32_t loop = program_.start(counter);
    program_.add_call(loop, once, loop, true);
    program_.states[static_cast<size_t>(loop)].final = true;
    program_.add_call(from, counter, to);
  }

  // Compiles all of `node`, which has no references, to one leaf. False: the leaf would be too large.
  bool leaf(const Pointer& node, int32_t from, int32_t to) {
    constexpr int64_t kLeafSteps = 2'000'000;
    Work own(kLeafSteps);
    auto dfa = Regex(node).dfa(RegexMatch::kWhole, Bound::kInner, &own);
    (void)work_->spend(64);
    if (!dfa.ok()) {
      const bool can_be_split =
          node->kind == Kind::kSequence || node->kind == Kind::kChoice || node->kind == Kind::kRepeat;
      if (dfa.status().code != Regex::kTooLarge || !can_be_split) status_ = invalid(dfa.status().message);
      (void)work_->spend(kLeafSteps);
      return false;
    }
    Dfa& all = dfa.value();
    (void)work_->spend(all.states() * 16);
    if (all.empty()) return true;
    if (all.accepts(0)) {
      program_.add_empty(from, to);
      const std::vector<std::string> nothing{""};
      auto rest = combine(all, Dfa::of_texts(nothing), SetOp::kFirstOnly, work_);
      if (!rest) return false;
      all = std::move(*rest);
      if (all.empty()) return true;
    }
    program_.add_call(from, program_.add_leaf(std::make_shared<const Leaf>(Leaf{.dfa = std::move(all)})), to);
    return true;
  }

  Work* work_;
  const EbnfRules* source_ = nullptr;
  Program program_;
  Status status_;
  std::map<std::string, int32_t> rules_;
  std::map<std::string, Pointer> plain_;
  std::vector<std::pair<std::string, int32_t>> todo_;
};

}  // namespace

Result<Program> compile_ebnf(std::string_view text, Work* work) {
  const auto rules = parse_ebnf(text);
  if (!rules.ok()) return rules.status();
  return EbnfCompiler(work).grammar(rules.value());
}

Result<Program> compile_regex(std::string_view pattern, Work* work) {
  const auto regex = Regex::parse(pattern);
  if (!regex.ok()) return regex.status();
  // The pattern matches the whole text, so '^' and '$' at its ends are always true.
  Node whole = regex.value().root();
  if (whole.kind == Kind::kSequence) {
    while (!whole.parts.empty() && whole.parts.front()->kind == Kind::kBegin)
      whole.parts.erase(whole.parts.begin());
    while (!whole.parts.empty() && whole.parts.back()->kind == Kind::kEnd) whole.parts.pop_back();
  }
  return EbnfCompiler(work).expression(std::make_shared<const Node>(std::move(whole)));
}

Program compile_texts(const std::vector<std::string>& texts) {
  Program out;
  const int32_t rule = out.add_rule(), end = out.add_state(rule);
  out.states[static_cast<size_t>(end)].final = true;
  out.add_call(out.start(rule), out.add_leaf(std::make_shared<const Leaf>(texts_leaf(texts))), end);
  out.root = rule;
  Work plenty(int64_t{1} << 24);
  (void)out.finish(&plenty);
  return out;
}

}  // namespace sluice
