// Finds tokens that lead to a dead end: after them, an open value could only fail its check, or an array or object only equal an earlier element.
#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <set>

#include "grammar/parse.h"

namespace sluice {
namespace {

constexpr int64_t kAheadOfTokenMax = 2000, kAheadOfStepMax = 4000;  // bytes read ahead
constexpr int64_t kShareOfAhead = 3;      // looking ahead takes at most a third of the steps of a mask
constexpr int64_t kCandidatesMax = 64;    // tokens examined per step
constexpr int64_t kLooksForText = 5'000;  // bytes read to find a text; also the maximum recursion depth

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Reads JSON text byte by byte and tracks whether the current position is inside a string.
struct Strings {
  bool inside = false, escaped = false;
  void read(char c) {
    if (escaped)
      escaped = false;
    else if (inside && c == '\\')
      escaped = true;
    else if (c == '"')
      inside = !inside;
  }
};

// JSON text without blanks between its parts.
std::string compact(std::string_view text, Strings* strings) {
  std::string out;
  for (const char c : text) {
    if (strings->inside || !is_blank(c)) out += c;
    strings->read(c);
  }
  return out;
}

}  // namespace

// The open values whose ends may be rejected, innermost first.
std::vector<Parse::Risk> Parse::risks() const {
  std::vector<Risk> out;
  struct Waiting {
    int32_t set;
    Callee callee;
    bool checked;
    auto operator<=>(const Waiting&) const = default;
  };
  std::set<Waiting> seen;
  std::vector<Waiting> todo;
  const auto wait = [&](int32_t set, Callee callee, bool checked) {
    if (seen.insert({set, callee, checked}).second) todo.push_back({set, callee, checked});
  };
  const auto own = static_cast<int32_t>(grammar_.program.leaves.size());
  for (size_t i = sets_.back().leaves; i < leaves_.size(); ++i) {
    const int32_t index = leaves_[i].leaf;
    wait(leaves_[i].origin, -1 - (index < own ? index : extra_of_[static_cast<size_t>(index - own)].leaf),
         false);
  }
  for (size_t at = 0; at < todo.size(); ++at) {
    const Waiting one = todo[at];
    const auto set = static_cast<size_t>(one.set);
    for (size_t i = sets_[set].rules, end = rules_end(set); i < end; ++i) {
      const RuleItem& item = rules_[i];
      for (const Program::Call& call : state(item.state).calls) {
        if (!work_->spend(1)) return out;
        if (call.callee != one.callee) continue;
        const bool renewed = call.distinct() && !is_leaf(call.callee) && item.trace > 0;
        if (one.checked || renewed)
          out.push_back({one.set, call.to, item.origin, renewed ? item.trace : kNoTrace});
        const int32_t rule = state(item.state).rule;
        wait(item.origin, rule, grammar_.program.rules[static_cast<size_t>(rule)].check != nullptr);
      }
    }
  }
  return out;
}

// Whether the value at risk ends with the last set.
bool Parse::has_passed(const Risk& risk) const {
  if (risk.to < 0) return sets_.back().complete;
  for (size_t i = sets_.back().rules; i < rules_.size(); ++i)
    if (rules_[i].state == risk.to && rules_[i].origin == risk.origin && rules_[i].trace != risk.trace)
      return true;
  return false;
}

// Whether some continuation of the text completes the value at risk. Also true if the search takes too long.
bool Parse::can_pass(const Risk& risk, bool in_string, int64_t* looks) {
  const size_t sets = sets_.size();
  if (has_passed(risk)) return true;
  if (--*looks < 0 || work_->over()) return true;
  const std::array<uint64_t, 4> next = sets_.back().next;
  const auto may = [&](int byte) { return (next[static_cast<size_t>(byte) / 64] >> (byte % 64) & 1) != 0; };
  const auto passes = [&](int byte) {
    if (!may(byte)) return false;
    if (!scan(static_cast<uint8_t>(byte))) return true;
    const bool found = !is_empty() && can_pass(risk, in_string != (byte == '"'), looks);
    pop_to(sets);
    return found;
  };
  // Tries closing bytes first. Skips blanks and backslashes, because every value written with them can also be written without. Only the
  // second half of an escaped surrogate pair needs a backslash, and there it is the only byte allowed.
  constexpr std::string_view kFirst = "\"}],";  // a quote ends a string, in which the others are content
  for (const char c : kFirst)
    if (passes(c)) return true;
  for (int byte = 255; byte >= 0; --byte) {
    const auto c = static_cast<char>(byte);
    if (kFirst.find(c) != kFirst.npos || c == '\\' || (!in_string && is_blank(c))) continue;
    if (passes(byte)) return true;
  }
  int64_t choices = 0;
  for (const uint64_t word : next) choices += std::popcount(word);
  return choices == 1 && passes('\\');
}

Parse::Found Parse::find_text(Work* work) {
  work_ = work;
  int64_t looks = kLooksForText;
  if (!can_pass({.set = 0, .to = -1, .origin = 0, .trace = kNoTrace}, false, &looks)) return Found::kNone;
  return looks < 0 || work->over() ? Found::kUnknown : Found::kText;
}

// Whether every value at risk can still end after these bytes.
bool Parse::leads_on(std::string_view bytes, const std::vector<Risk>& at_risk, int64_t* left) {
  const size_t sets = sets_.size();
  bool leads = true;
  for (const char c : bytes) {
    if (scan(static_cast<uint8_t>(c)) && !is_empty()) continue;
    pop_to(sets);
    return true;  // the budget is spent, or the masks do not allow this token
  }
  // A value that is not open any more ended with a text that was accepted: before these bytes (as a number does, at whose end nothing is
  // read) or by them.
  const auto open = risks();
  for (size_t i = 0; i < at_risk.size() && leads; ++i) {
    if (std::ranges::find(open, at_risk[i]) == open.end()) continue;
    const auto begin = sets_[static_cast<size_t>(at_risk[i].set)].text;
    Strings strings;
    for (const char c : std::string_view(text_).substr(begin)) strings.read(c);
    int64_t looks = std::min(kAheadOfTokenMax, *left);
    const int64_t had = looks;
    leads = can_pass(at_risk[i], strings.inside, &looks);
    *left -= had - std::max<int64_t>(looks, 0);
  }
  pop_to(sets);
  return leads;
}

// The trie nodes of tokens that continue the value at risk with the text of an earlier element. Other tokens make the value different from
// all earlier elements.
std::vector<int32_t> Parse::along_earlier(const Risk& risk) const {
  const auto nodes = grammar_.vocabulary->all.nodes();
  Strings strings;
  const std::string now =
      compact(std::string_view(text_).substr(sets_[static_cast<size_t>(risk.set)].text), &strings);
  std::set<int32_t> found;
  struct Place {
    int32_t from, end;
    size_t at;
    Strings strings;
  };
  for (TraceId t = risk.trace == kNoTrace ? 0 : risk.trace; t > 0;
       t = traces_[static_cast<size_t>(t)].before) {
    const Trace& one = traces_[static_cast<size_t>(t)];
    if (!one.noted || !work_->spend(static_cast<int64_t>(one.end - one.begin) / 4 + 8)) continue;
    Strings all;
    const std::string before = compact(std::string_view(text_).substr(one.begin, one.end - one.begin), &all);
    if (!before.starts_with(now)) continue;
    std::vector<Place> todo{{0, static_cast<int32_t>(nodes.size()), now.size(), strings}};
    while (!todo.empty()) {
      const Place p = todo.back();
      todo.pop_back();
      for (int32_t n = p.from; n < p.end; n = nodes[static_cast<size_t>(n)].end) {
        const TokenTrie::Node& node = nodes[static_cast<size_t>(n)];
        const auto c = static_cast<char>(node.byte);
        if (!work_->spend(1)) return {};
        const bool blank = !p.strings.inside && is_blank(c);
        if (!blank && (p.at >= before.size() || before[p.at] != c)) continue;
        Place next{n + 1, node.end, p.at + (blank ? 0 : 1), p.strings};
        next.strings.read(c);
        if (node.token >= 0) found.insert(n);
        todo.push_back(next);
      }
    }
  }
  return {found.begin(), found.end()};
}

// Looks ahead with a part of the budget. When the part is spent, the tokens that are not examined yet stay allowed, as after
// kAheadOfStepMax bytes: a value that is costly to check must not fail the request.
bool Parse::take_out_dead_ends(std::span<uint32_t> bits) {
  Work* const whole = work_;
  Work part = whole->part(kShareOfAhead);
  const int64_t steps = part.left();
  work_ = &part;
  look_ahead(bits);
  work_ = whole;
  if (part.over()) ends_.clear();  // the last answers may come from a search that was cut short
  return work_->spend(steps - part.left());
}

void Parse::look_ahead(std::span<uint32_t> bits) {
  const auto at_risk = risks();
  if (at_risk.empty()) return;
  const TokenTrie& trie = grammar_.vocabulary->all;
  int64_t count = 0, left = kAheadOfStepMax;
  for (const uint32_t word : bits) count += std::popcount(word);
  const size_t traces = traces_.size(), extra = extra_.size();
  const auto restore = [&] {
    if (traces_.size() > traces) ends_.clear();
    traces_.resize(traces);
    extra_.resize(extra);
    extra_of_.resize(extra);
  };
  const auto bytes_of = [&](int32_t token) { return grammar_.vocabulary->tokenizer.piece(token); };
  if (count <= kCandidatesMax) {
    std::vector<int32_t> ids;
    for (size_t w = 0; w < bits.size(); ++w)
      for (uint32_t word = bits[w]; word != 0; word &= word - 1)
        ids.push_back(static_cast<int32_t>(32 * w) + std::countr_zero(word));
    // Longer tokens first: they leave fewer continuations to try.
    std::stable_sort(ids.begin(), ids.end(),
                     [&](int32_t a, int32_t b) { return bytes_of(a).size() > bytes_of(b).size(); });
    for (const int32_t id : ids) {
      if (left <= 0) break;
      if (!leads_on(bytes_of(id), at_risk, &left)) bits[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
      restore();
      if (work_->over()) return;
    }
    return;
  }
  // Outside of strings few bytes are possible, so all tokens with a first byte that fails are removed at once.
  std::vector<Risk> checked;
  std::ranges::copy_if(at_risk, std::back_inserter(checked),
                       [](const Risk& r) { return r.trace == kNoTrace; });
  if (!checked.empty()) {
    Strings strings;
    for (const char c : std::string_view(text_).substr(sets_[static_cast<size_t>(checked[0].set)].text))
      strings.read(c);
    const auto nodes = trie.nodes();
    const std::array<uint64_t, 4> next = sets_.back().next;
    for (size_t n = 0; !strings.inside && left > 0 && n < nodes.size();
         n = static_cast<size_t>(nodes[n].end)) {
      const char byte = static_cast<char>(nodes[n].byte);
      if ((next[nodes[n].byte / 64] >> (nodes[n].byte % 64) & 1) == 0 || is_blank(byte)) continue;
      const bool leads = leads_on({&byte, 1}, checked, &left);
      restore();
      if (work_->over()) return;
      for (size_t i = n; !leads && i < static_cast<size_t>(nodes[n].end); ++i)
        trie.clear_tokens(nodes[i], bits);
    }
  }
  for (const Risk& risk : at_risk) {
    if (risk.trace == kNoTrace) continue;
    for (const int32_t n : along_earlier(risk)) {
      const TokenTrie::Node& node = trie.nodes()[static_cast<size_t>(n)];
      if (left <= 0) break;
      if ((bits[static_cast<size_t>(node.token) / 32] >> (node.token % 32) & 1u) == 0) continue;
      if (!leads_on(bytes_of(node.token), {risk}, &left)) trie.clear_tokens(node, bits);
      restore();
      if (work_->over()) return;
    }
  }
}

}  // namespace sluice
