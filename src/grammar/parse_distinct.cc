// Arrays with unique elements: tracks earlier values, and finds tokens after which only a repeated value is possible.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/json.h"
#include "grammar/parse.h"

namespace sluice {
namespace {

constexpr int64_t kLooksMax = 2048;           // leaf places examined per token
constexpr int64_t kLooksOfStepMax = 200'000;  // leaf places examined per step

// Equal numbers get the same form.
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

uint64_t hash_of_value(std::string_view text) {
  const Json value = Json::parse(text, nullptr, false);
  const std::string plain = value.is_discarded()
                                ? std::string(text)
                                : canonical(value).dump(-1, ' ', false, Json::error_handler_t::replace);
  uint64_t h = plain.size();
  for (const char c : plain) h = mix(h, static_cast<uint8_t>(c));
  return h;
}

}  // namespace

bool Parse::has_value(TraceId trace, uint64_t value) const {
  for (; trace > 0; trace = traces_[static_cast<size_t>(trace)].before) {
    const Trace& t = traces_[static_cast<size_t>(trace)];
    if (t.distinct && t.value == value) return true;
  }
  return false;
}

// The trace after a call; kNoTrace: its value repeats an earlier one.
Parse::TraceId Parse::counted(TraceId trace, const Program::Call& call, size_t since) {
  if (!call.counted && !call.distinct) return trace;
  Trace next{.count = count_of(trace) + (call.counted ? 1 : 0),
             .before = trace,
             .distinct = call.distinct,
             .value = 0,
             .begin = since,
             .end = text_.size()};
  if (!call.distinct && trace <= 0) return -next.count;
  if (call.distinct) {
    looked_at_text_ = true;
    (void)work_->spend(static_cast<int64_t>(text_.size() - since) / 4 + 16);
    next.value = hash_of_value(std::string_view(text_).substr(since));
    if (has_value(trace, next.value)) return kNoTrace;
  }
  for (size_t i = traces_.size(), tries = 0; i-- > 1 && tries < 16; ++tries)
    if (traces_[i].before == trace && traces_[i].value == next.value && traces_[i].count == next.count &&
        traces_[i].distinct == next.distinct)
      return static_cast<TraceId>(i);
  traces_.push_back(next);
  return static_cast<TraceId>(traces_.size()) - 1;
}

std::optional<int32_t> Parse::leaf_without(int32_t index, TraceId trace) {
  const Leaf& whole = *grammar_.program.leaves[static_cast<size_t>(index)];
  if (trace <= 0) return index;
  if (whole.texts.empty()) {
    if (count_of(trace) < Leaf::kTextsMax) return index;
    std::string text;
    int64_t looks = kLooksMax;
    return has_other(whole, {0, 0}, trace, &text, &looks) ? std::optional(index) : std::nullopt;
  }
  const auto own = static_cast<int32_t>(grammar_.program.leaves.size());
  for (size_t i = extra_of_.size(); i-- > 0;)
    if (extra_of_[i] == std::pair{index, trace}) return own + static_cast<int32_t>(i);
  std::vector<std::string> left;
  for (const std::string& text : whole.texts)
    if (!has_value(trace, hash_of_value(text))) left.push_back(text);
  if (left.empty()) return {};
  (void)work_->spend(static_cast<int64_t>(256 * left.size()));
  extra_.push_back(std::make_shared<const Leaf>(texts_leaf(left)));
  extra_of_.emplace_back(index, trace);
  return own + static_cast<int32_t>(extra_.size()) - 1;
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
      if (!call.distinct || (found != kNoTrace && found != rules_[i].trace)) return kNoTrace;
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
  // Tries the end of a string first, and large digits before zeros, which add nothing to a fraction.
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
    if (!one.distinct) continue;
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
