#include "grammar/parse.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr size_t kItemsMax = 20000;  // per set; only adversarial grammars need more

}  // namespace

void Parse::Slots::clear() {
  for (const size_t at : used_) table_[at].second = -1;
  used_.clear();
}
void Parse::Slots::grow() {
  std::vector<std::pair<uint64_t, int32_t>> old(table_.size() * 2, {0, -1});
  old.swap(table_);
  std::vector<size_t> was;
  was.swap(used_);
  for (const size_t from : was) {
    size_t at = old[from].first & (table_.size() - 1);
    while (table_[at].second >= 0) at = (at + 1) & (table_.size() - 1);
    table_[at] = old[from];
    used_.push_back(at);
  }
}
template <class IsSame>
int32_t* Parse::Slots::find(uint64_t hash, const IsSame& is_same) {
  if (2 * used_.size() >= table_.size()) grow();
  size_t at = hash & (table_.size() - 1);
  for (; table_[at].second >= 0; at = (at + 1) & (table_.size() - 1))
    if (table_[at].first == hash && is_same(table_[at].second)) return &table_[at].second;
  table_[at].first = hash;
  used_.push_back(at);
  return &table_[at].second;
}

Parse::Parse(const CompiledGrammar& grammar) : grammar_(grammar) {}

bool Parse::begin(Work* work) {
  work_ = work;
  begin_set(0);
  add_rule(grammar_.program.start(grammar_.program.root), 0, 0);
  const bool fits = close_set();
  dead_ = is_empty();
  return fits;
}

const Leaf& Parse::leaf(int32_t index) const {
  const auto& own = grammar_.program.leaves;
  const auto i = static_cast<size_t>(index);
  return i < own.size() ? *own[i] : *extra_[i - own.size()];
}

void Parse::begin_set(size_t text) {
  sets_.push_back({.rules = rules_.size(), .leaves = leaves_.size(), .text = text});
  rule_slots_.clear();
  leaf_slots_.clear();
  looked_at_text_ = false;
}

void Parse::pop_to(size_t sets) {
  if (sets_.size() <= sets) return;
  rules_.resize(sets_[sets].rules);
  leaves_.resize(sets_[sets].leaves);
  sets_.resize(sets);
  text_.resize(sets_.back().text);
}

void Parse::add_rule(int32_t to, int32_t origin, TraceId trace) {
  if (!can_end(to, trace)) return;
  const RuleItem item{to, origin, trace};
  const uint64_t hash =
      mix(mix(static_cast<uint32_t>(to), static_cast<uint32_t>(origin)), static_cast<uint32_t>(trace));
  int32_t* slot = rule_slots_.find(hash, [&](int32_t i) { return rules_[static_cast<size_t>(i)] == item; });
  if (*slot >= 0) return;
  *slot = static_cast<int32_t>(rules_.size());
  rules_.push_back(item);
}

void Parse::add_leaf(const LeafItem& item) {
  const uint64_t hash =
      mix(mix(static_cast<uint32_t>(item.leaf), static_cast<uint32_t>(item.origin)),
          mix(static_cast<uint32_t>(item.place.state), static_cast<uint64_t>(item.place.count)));
  int32_t* slot = leaf_slots_.find(hash, [&](int32_t i) { return leaves_[static_cast<size_t>(i)] == item; });
  if (*slot >= 0) return;
  *slot = static_cast<int32_t>(leaves_.size());
  leaves_.push_back(item);
  const auto& next = leaf(item.leaf).dfa.next_bytes(item.place.state);
  for (size_t w = 0; w < next.size(); ++w) sets_.back().next[w] |= next[w];
}

void Parse::advance(const RuleItem& item, const Program::Call& call, size_t since) {
  const TraceId trace = counted(item.trace, call, since);
  if (trace != kNoTrace) add_rule(call.to, item.origin, trace);
}

// Advances all rule items of the set `origin` that wait for `callee`.
void Parse::complete(Callee callee, int32_t origin) {
  const auto set = static_cast<size_t>(origin);
  if (set + 1 == sets_.size())
    return;  // the callee matched the empty text, which predict() has already handled
  const size_t since = sets_[set].text, end = rules_end(set);
  for (size_t i = sets_[set].rules; i < end; ++i) {
    const RuleItem item = rules_[i];
    const auto& calls = state(item.state).calls;
    (void)work_->spend(static_cast<int64_t>(calls.size()) / 8 + 1);
    for (const Program::Call& call : calls)
      if (call.callee == callee) advance(item, call, since);
  }
}

void Parse::complete_leaf(const LeafItem& item) {
  const auto own = static_cast<int32_t>(grammar_.program.leaves.size());
  const int32_t index = item.leaf < own ? item.leaf : extra_of_[static_cast<size_t>(item.leaf - own)].leaf;
  complete(-1 - index, item.origin);
}

void Parse::predict(const RuleItem& item, const Program::Call& call) {
  if (!can_end(call.to, item.trace, &call)) return;
  const auto here = static_cast<int32_t>(sets_.size()) - 1;
  if (is_leaf(call.callee)) {
    auto index = std::optional(leaf_index(call.callee));
    if (call.distinct()) index = leaf_without(call, item.trace);
    if (call.among == Among::kRepeated) index = leaf_of_repeated(*index, item.trace);
    if (index) add_leaf({*index, here, {0, 0}});
    return;
  }
  const Program::Rule& rule = grammar_.program.rules[static_cast<size_t>(call.callee)];
  add_rule(rule.start, here, 0);
  if (rule.nullable) advance(item, call, text_.size());
}

void Parse::end_rule(const RuleItem& item) {
  const int32_t index = state(item.state).rule;
  const Program::Rule& rule = grammar_.program.rules[static_cast<size_t>(index)];
  if (count_of(item.trace) < rule.least) return;
  if (rule.check != nullptr) {
    const std::string text = text_.substr(sets_[static_cast<size_t>(item.origin)].text);
    looked_at_text_ = true;
    (void)work_->spend(static_cast<int64_t>(text.size()) + 64);
    if (!rule.check->holds(text, work_)) return;
  }
  if (index == grammar_.program.root && item.origin == 0) sets_.back().complete = true;
  complete(index, item.origin);
}

bool Parse::close_set() {
  const size_t first = sets_.back().rules;
  for (size_t i = first; i < rules_.size(); ++i) {
    const RuleItem item = rules_[i];
    const Program::State& s = state(item.state);
    if (!work_->spend(static_cast<int64_t>(s.calls.size() + s.empties.size()) + 1)) return false;
    if (rules_.size() - first > kItemsMax || leaves_.size() - sets_.back().leaves > kItemsMax) return false;
    for (const int32_t to : s.empties) add_rule(to, item.origin, item.trace);
    for (const Program::Call& call : s.calls) predict(item, call);
    if (s.final) end_rule(item);
  }
  return !work_->over();
}

bool Parse::scan(uint8_t byte) {
  const size_t set = sets_.size() - 1, first = sets_[set].leaves, end = leaves_.size();
  text_.push_back(static_cast<char>(byte));
  begin_set(text_.size());
  if (!work_->spend(static_cast<int64_t>(end - first) + 4)) return false;
  for (size_t i = first; i < end; ++i) {
    LeafItem item = leaves_[i];
    const Leaf& l = leaf(item.leaf);
    item.place = l.step(item.place, byte);
    if (item.place.state == Dfa::kDead) continue;
    if (l.dfa.goes_on(item.place.state)) add_leaf(item);
    if (l.accepts(item.place)) complete_leaf(item);
  }
  return close_set();
}

// Drops the leaf items of the set before the last one if no rule waits in that set. So the text of a leaf keeps only its last set's items.
void Parse::drop_unneeded() {
  Set& last = sets_.back();
  const Set& before = sets_[sets_.size() - 2];
  if (before.rules != last.rules || before.leaves == last.leaves) return;
  leaves_.erase(leaves_.begin() + static_cast<std::ptrdiff_t>(before.leaves),
                leaves_.begin() + static_cast<std::ptrdiff_t>(last.leaves));
  last.leaves = before.leaves;
}

bool Parse::accept(std::string_view bytes, Work* work) {
  work_ = work;
  for (const char c : bytes) {
    if (!scan(static_cast<uint8_t>(c))) return false;
    if (is_empty()) {
      dead_ = true;
      return true;
    }
    drop_unneeded();
  }
  return true;
}

std::shared_ptr<const LeafMask> Parse::mask_of(const LeafItem& item) {
  const auto own = grammar_.program.leaves.size();
  const auto index = static_cast<size_t>(item.leaf);
  if (index < own) return grammar_.masks[index]->at(item.place, work_);
  LeafMasks once(extra_[index - own], grammar_.vocabulary, std::make_shared<std::atomic<int64_t>>(0));
  return once.at(item.place, work_);
}

bool Parse::allowed(std::span<uint32_t> bits, Work* work) {
  work_ = work;
  const std::vector<LeafItem> items(leaves_.begin() + static_cast<std::ptrdiff_t>(sets_.back().leaves),
                                    leaves_.end());
  const size_t traces = traces_.size(), extra = extra_.size();
  for (const LeafItem& item : items) {
    const auto mask = mask_of(item);
    if (mask == nullptr) return false;
    if (const TraceId trace = trace_of(item); trace == kNoTrace) {
      mask->add_to(bits);
    } else {
      TokenBits own(bits.size());
      mask->add_to(own);
      if (!take_out_repeated(item, trace, own)) return false;
      for (size_t w = 0; w < own.size(); ++w) bits[w] |= own[w];
    }
    if (!exits(*mask, item, bits)) return false;
    if (traces_.size() > traces) ends_.clear();  // the indices of these traces are reused
    traces_.resize(traces);
    extra_.resize(extra);
    extra_of_.resize(extra);
  }
  if (grammar_.program.refuses && !take_out_dead_ends(bits)) return false;
  return work_->spend(static_cast<int64_t>(items.size()) * 16);
}

// Sets the bits of tokens that extend beyond the end of a leaf. What may follow is the same after every end, unless it depends on the text.
bool Parse::exits(const LeafMask& mask, const LeafItem& item, std::span<uint32_t> bits) {
  const size_t sets = sets_.size(), text = text_.size();
  const Leaf& l = leaf(item.leaf);
  const auto nodes = mask.trie->nodes();
  bool ready = false;
  for (const auto* list : {&mask.ends, &mask.inner}) {
    const bool ends = list == &mask.ends;
    for (const LeafMask::Exit& exit : *list) {
      if (item.place.count + exit.chars < l.least) continue;
      const TokenTrie::Node& node = nodes[static_cast<size_t>(exit.node)];
      if (ready && looked_at_text_) {
        pop_to(sets);
        ready = false;
      }
      text_.resize(text);
      text_ += grammar_.vocabulary->tokenizer.piece(node.example).substr(0, node.depth);
      if (!ready) {
        begin_set(text_.size());
        complete_leaf(item);
        if (!close_set()) return false;
        ready = true;
      }
      sets_.back().text = text_.size();
      const bool looked = looked_at_text_;
      if (!is_empty() && ends) mask.trie->set_tokens(node, bits);
      if (!has_leaves() && !looked && (!ends || is_empty())) break;  // the other ends are dead ends, too
      if (has_leaves() && !walk(*mask.trie, exit.node, bits)) return false;
      looked_at_text_ = looked;
    }
  }
  pop_to(sets);
  text_.resize(text);
  return true;
}

// Sets the bits of the tokens below the node `from` whose remaining bytes the grammar accepts after the last set.
bool Parse::walk(const TokenTrie& trie, int32_t from, std::span<uint32_t> bits) {
  const auto nodes = trie.nodes();
  const TokenTrie::Node& root = nodes[static_cast<size_t>(from)];
  const size_t sets = sets_.size();
  for (int32_t n = from + 1; n < root.end;) {
    const TokenTrie::Node& node = nodes[static_cast<size_t>(n)];
    pop_to(sets + node.depth - root.depth - 1);
    const bool may = (sets_.back().next[node.byte / 64] >> (node.byte % 64) & 1) != 0;
    if (!work_->spend(1)) return false;
    if (may && !scan(node.byte)) return false;
    if (!may || is_empty()) {
      n = node.end;
      continue;
    }
    trie.set_tokens(node, bits);
    n = has_leaves() ? n + 1 : node.end;
  }
  pop_to(sets);
  return true;
}

}  // namespace sluice
