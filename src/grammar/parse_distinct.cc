// Arrays with unique elements: tracks earlier values, and finds tokens after which only a repeated value is possible.
#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

#include "base/json.h"
#include "grammar/distinct.h"
#include "grammar/parse.h"

namespace sluice {
namespace {

constexpr int64_t kLooksMax = 2048;           // leaf places examined per token
constexpr int64_t kLooksOfStepMax = 200'000;  // leaf places examined per step

// Writes equal numbers in the same form.
Json canonical(Json value) {
  if (value.is_number_float()) {
    const double d = value.get<double>();
    if (d == std::floor(d) && std::abs(d) < 1e15) return static_cast<int64_t>(d);
    return value;
  }
  if (value.is_structured())
    for (Json& inside : value) inside = canonical(std::move(inside));
  return value;
}

}  // namespace

uint64_t hash_of_value(std::string_view text) {
  const Json value = Json::parse(text, nullptr, false);
  const std::string plain = value.is_discarded()
                                ? std::string(text)
                                : canonical(value).dump(-1, ' ', false, Json::error_handler_t::replace);
  uint64_t h = plain.size();
  for (const char c : plain) h = mix(h, static_cast<uint8_t>(c));
  return h;
}

bool Parse::has_value(TraceId trace, uint64_t value) const {
  for (; trace > 0; trace = traces_[static_cast<size_t>(trace)].before) {
    const Trace& t = traces_[static_cast<size_t>(trace)];
    if (t.noted && t.value == value) return true;
  }
  return false;
}

std::unordered_set<uint64_t> Parse::values_of(TraceId trace) const {
  std::unordered_set<uint64_t> out;
  for (; trace > 0; trace = traces_[static_cast<size_t>(trace)].before)
    if (const Trace& t = traces_[static_cast<size_t>(trace)]; t.noted) out.insert(t.value);
  (void)work_->spend(8 * std::ssize(out));
  return out;
}

// Whether a rule can still end from this state, after the calls of the trace and the call `next`, if all calls that need new values get
// them.
bool Parse::can_end(int32_t to, TraceId trace, const Program::Call* next) {
  const Program& program = grammar_.program;
  const int32_t more = next != nullptr && next->counted ? 1 : 0;
  const int64_t count = int64_t{count_of(trace)} + more;
  if (!program.fits(to, count)) return false;
  const Program::Rule& rule = program.rules[static_cast<size_t>(state(to).rule)];
  // The state before the value of a member has passed this test already.
  if (rule.dependencies != nullptr && (next == nullptr || next->member < 0)) {
    const Trace& before = traces_[static_cast<size_t>(std::max(trace, 0))];
    if (!program.meets(to, before.present, before.wanted, count, work_)) return false;
  }
  if (!rule.distinct) return true;
  const auto [known, is_new] = ends_.try_emplace({to, trace, more}, true);
  if (is_new) known->second = DistinctSearch(program, work_, values_of(trace)).can_end(to, count);
  return known->second;
}

// The trace after a call. kNoTrace: the call needs a new value and repeats an earlier one, or must repeat a
// value and does not.
Parse::TraceId Parse::counted(TraceId trace, const Program::Call& call, size_t since) {
  const bool noted = call.among != Among::kAny;
  if (!call.counted && !noted) return trace;
  Trace next{.count = count_of(trace) + (call.counted ? 1 : 0),
             .before = trace,
             .noted = noted,
             .value = 0,
             .begin = since,
             .end = text_.size()};
  if (trace > 0) {
    next.present = traces_[static_cast<size_t>(trace)].present;
    next.wanted = traces_[static_cast<size_t>(trace)].wanted;
  }
  if (call.member >= 0) {
    const auto member = static_cast<size_t>(call.member);
    const Program::Rule& rule = grammar_.program.rules[static_cast<size_t>(state(call.to).rule)];
    next.present.set(member);
    next.wanted |= rule.dependencies->wanted[member];
  } else if (!noted && trace <= 0) {
    return -next.count;
  }
  if (noted) {
    looked_at_text_ = true;
    (void)work_->spend(static_cast<int64_t>(text_.size() - since) / 4 + 16);
    next.value = hash_of_value(std::string_view(text_).substr(since));
    if (call.among != Among::kNoted && has_value(trace, next.value) == call.distinct()) return kNoTrace;
  }
  for (size_t i = traces_.size(), tries = 0; i-- > 1 && tries < 16; ++tries)
    if (traces_[i].before == trace && traces_[i].value == next.value && traces_[i].count == next.count &&
        traces_[i].noted == next.noted && traces_[i].present == next.present)
      return static_cast<TraceId>(i);
  traces_.push_back(next);
  return static_cast<TraceId>(traces_.size()) - 1;
}

// Adds a leaf with `texts` that replaces `leaf` after the elements of `trace`. Callers first look for an
// existing entry of extra_.
int32_t Parse::add_extra(int32_t leaf, TraceId trace, int32_t to, const std::vector<std::string>& texts) {
  (void)work_->spend(static_cast<int64_t>(256 * texts.size()));
  extra_.push_back(std::make_shared<const Leaf>(texts_leaf(texts)));
  extra_of_.push_back({leaf, trace, to});
  return static_cast<int32_t>(grammar_.program.leaves.size() + extra_.size()) - 1;
}

// The leaf of a call that needs a new value, limited to values after which the rule can still end; none: no
// such value exists.
std::optional<int32_t> Parse::leaf_without(const Program::Call& call, TraceId trace) {
  const int32_t index = leaf_index(call.callee);
  const Leaf& whole = *grammar_.program.leaves[static_cast<size_t>(index)];
  if (whole.texts.empty()) {
    if (trace <= 0 || count_of(trace) < Leaf::kTextsMax) return index;
    std::string text;
    int64_t looks = kLooksMax;
    return has_other(whole, {0, 0}, trace, &text, &looks) ? std::optional(index) : std::nullopt;
  }
  const auto own = static_cast<int32_t>(grammar_.program.leaves.size());
  for (size_t i = extra_of_.size(); i-- > 0;)
    if (extra_of_[i] == ExtraOf{index, trace, call.to}) return own + static_cast<int32_t>(i);
  std::vector<std::string> left;
  const Program& program = grammar_.program;
  const auto& values = program.values[static_cast<size_t>(index)];
  auto used = values_of(trace);
  std::unordered_map<uint64_t, bool>
      leads_on;  // by kind (Program::kinds): whether the rule can end after a value of the kind
  for (size_t i = 0; i < values.size(); ++i) {
    if (!used.insert(values[i]).second) continue;
    const auto [known, is_new] = leads_on.try_emplace(program.kinds.at(values[i]), true);
    if (is_new)
      known->second = DistinctSearch(program, work_, used).can_end(call.to, int64_t{count_of(trace)} + 1);
    if (known->second) left.push_back(whole.texts[i]);
    used.erase(values[i]);
  }
  if (left.empty()) return {};
  if (left.size() == whole.texts.size()) return index;
  return add_extra(index, trace, call.to, left);
}

// The leaf of a call that must repeat an earlier value; none: there are no earlier values.
std::optional<int32_t> Parse::leaf_of_repeated(int32_t index, TraceId trace) {
  const auto own = static_cast<int32_t>(grammar_.program.leaves.size());
  for (size_t i = extra_of_.size(); i-- > 0;)
    if (extra_of_[i] == ExtraOf{index, trace, -1}) return own + static_cast<int32_t>(i);
  std::vector<std::string> texts;
  for (TraceId t = trace; t > 0 && texts.size() < Leaf::kTextsMax; t = traces_[static_cast<size_t>(t)].before)
    if (const Trace& one = traces_[static_cast<size_t>(t)]; one.noted)
      texts.push_back(text_.substr(one.begin, one.end - one.begin));
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  if (texts.empty()) return {};
  return add_extra(index, trace, -1, texts);
}

// The trace of the only rule that waits for this leaf, if its values must be unique. kNoTrace: no such rule, or no earlier values.
Parse::TraceId Parse::trace_of(const LeafItem& item) const {
  const auto own = static_cast<int32_t>(grammar_.program.leaves.size());
  if (item.leaf >= own || !leaf(item.leaf).texts.empty()) return kNoTrace;
  const auto set = static_cast<size_t>(item.origin);
  TraceId found = kNoTrace;
  for (size_t i = sets_[set].rules, end = rules_end(set); i < end; ++i)
    for (const Program::Call& call : state(rules_[i].state).calls) {
      if (call.callee != -1 - item.leaf) continue;
      if (!call.distinct() || (found != kNoTrace && found != rules_[i].trace)) return kNoTrace;
      found = rules_[i].trace;
    }
  return found > 0 ? found : kNoTrace;
}

// Whether the leaf can continue `text` from `at` to a value that did not occur before. Also true if the search takes too long.
bool Parse::has_other(const Leaf& l, Leaf::Place at, TraceId trace, std::string* text, int64_t* looks) {
  if (--*looks < 0 || !work_->spend(1)) return true;
  if (l.accepts(at)) {
    (void)work_->spend(16);
    if (!has_value(trace, hash_of_value(*text))) return true;
  }
  const auto try_byte = [&](uint8_t byte) {
    const Leaf::Place to = l.step(at, byte);
    if (to.state == Dfa::kDead) return false;
    text->push_back(static_cast<char>(byte));
    const bool has = has_other(l, to, trace, text, looks);
    text->pop_back();
    return has;
  };
  // Tries the closing quote first. Tries large bytes before small ones, because trailing zeros do not change a fraction.
  if (try_byte('"')) return true;
  for (int byte = 255; byte >= 0; --byte)
    if (byte != '"' && try_byte(static_cast<uint8_t>(byte))) return true;
  return false;
}

// Only tokens that continue an earlier text can make a repetition unavoidable.
bool Parse::take_out_repeated(const LeafItem& item, TraceId trace, std::span<uint32_t> bits) {
  const Leaf& l = leaf(item.leaf);
  const TokenTrie& trie = grammar_.vocabulary->all;
  const auto nodes = trie.nodes();
  std::string text = text_.substr(sets_[static_cast<size_t>(item.origin)].text);
  const size_t begun = text.size();
  std::set<int32_t> seen;
  int64_t left = kLooksOfStepMax;
  for (TraceId t = trace; t > 0; t = traces_[static_cast<size_t>(t)].before) {
    const Trace& one = traces_[static_cast<size_t>(t)];
    if (!one.noted) continue;
    const auto before = std::string_view(text_).substr(one.begin, one.end - one.begin);
    if (!work_->spend(8)) return false;
    if (!before.starts_with(text)) continue;
    Leaf::Place place = item.place;
    int32_t n = 0, end = static_cast<int32_t>(nodes.size());
    for (const char c : before.substr(begun)) {
      const auto byte = static_cast<uint8_t>(c);
      while (n < end && nodes[static_cast<size_t>(n)].byte < byte) n = nodes[static_cast<size_t>(n)].end;
      if (n >= end || nodes[static_cast<size_t>(n)].byte != byte) break;
      place = l.step(place, byte);
      if (place.state == Dfa::kDead) break;
      text.push_back(c);
      const TokenTrie::Node& node = nodes[static_cast<size_t>(n)];
      if (node.token >= 0 && !seen.contains(n)) {
        if (left <= 0) return !work_->over();  // a remaining dead end gives an error, never a wrong answer
        seen.insert(n);
        int64_t looks = kLooksMax;
        if (!has_other(l, place, trace, &text, &looks)) trie.clear_tokens(node, bits);
        left -= kLooksMax - looks;
      }
      end = node.end;
      ++n;
    }
    text.resize(begun);
  }
  return !work_->over();
}

}  // namespace sluice
