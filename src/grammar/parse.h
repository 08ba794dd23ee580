// An Earley parser over bytes. It follows all derivations of the text so far at once.
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "grammar/leaf_masks.h"
#include "grammar/program.h"
#include "grammar/token_trie.h"
#include "grammar/work.h"

namespace sluice {

struct CompiledGrammar {
  Program program;
  std::vector<std::shared_ptr<LeafMasks>> masks;  // by leaf
  std::shared_ptr<const Vocabulary> vocabulary;
};

class Parse {
 public:
  // Starts at the empty text. `grammar` must outlive the parser.
  explicit Parse(const CompiledGrammar& grammar);
  bool begin(Work* work);  // call it first

  // The functions return false if the budget is spent or the parser exceeds its item limit; no other function may be called after that.
  // Reads the bytes of a token; dead() then tells whether the grammar rejects them.
  bool accept(std::string_view bytes, Work* work);
  // Searches for a text that the grammar accepts.
  enum class Found : uint8_t { kText, kNone, kUnknown };
  Found find_text(Work* work);
  // Sets the bits of tokens that may come; leaves the other bits alone.
  bool allowed(std::span<uint32_t> bits, Work* work);
  bool dead() const { return dead_; }
  bool complete() const { return sets_.back().complete; }  // the grammar accepts the text so far

 private:
  // The counted calls that one rule has made so far. A value <= 0 is their number, negated; a value > 0 is the index of a Trace.
  using TraceId = int32_t;
  static constexpr TraceId kNoTrace = std::numeric_limits<int32_t>::max();
  struct Trace {
    int32_t count;
    TraceId before;
    bool noted;         // whether the values of later calls are compared with the value of this call
    uint64_t value;     // hash of the call's JSON value
    size_t begin, end;  // where text_ has the value
    Dependencies::Members present = {}, wanted = {};  // of rules with dependencies
  };
  // A rule in one of its states; the rule began in the set `origin`.
  struct RuleItem {
    int32_t state, origin;
    TraceId trace;
    bool operator==(const RuleItem&) const = default;
  };
  struct LeafItem {
    int32_t leaf;  // an index into the program's leaves, continued by `extra_`
    int32_t origin;
    Leaf::Place place;
    bool operator==(const LeafItem& o) const {
      return leaf == o.leaf && origin == o.origin && place.state == o.place.state &&
             place.count == o.place.count;
    }
  };
  // The items at one position of the text. They follow the items of the previous set.
  struct Set {
    size_t rules, leaves;  // indices of the set's first items in rules_ and leaves_
    size_t text;           // length of the text before the set
    bool complete = false;
    std::array<uint64_t, 4> next = {};  // bytes that some leaf accepts
  };
  // A hash table of the last set's items.
  class Slots {
   public:
    void clear();
    // Returns the slot of the item with this hash for which is_same() is true, or a free slot.
    template <class IsSame>
    int32_t* find(uint64_t hash, const IsSame& is_same);

   private:
    void grow();
    std::vector<std::pair<uint64_t, int32_t>> table_ = std::vector<std::pair<uint64_t, int32_t>>(64, {0, -1});
    std::vector<size_t> used_;
  };

  const Program::State& state(int32_t s) const { return grammar_.program.states[static_cast<size_t>(s)]; }
  const Leaf& leaf(int32_t index) const;
  size_t rules_end(size_t set) const { return set + 1 < sets_.size() ? sets_[set + 1].rules : rules_.size(); }
  size_t leaves_end(size_t set) const {
    return set + 1 < sets_.size() ? sets_[set + 1].leaves : leaves_.size();
  }

  void begin_set(size_t text);
  bool close_set();
  bool scan(uint8_t byte);
  void pop_to(size_t sets);
  bool is_empty() const {
    return leaves_end(sets_.size() - 1) == sets_.back().leaves && !sets_.back().complete;
  }
  bool has_leaves() const { return leaves_.size() > sets_.back().leaves; }
  bool can_end(int32_t to, TraceId trace, const Program::Call* next = nullptr);
  void add_rule(int32_t to, int32_t origin, TraceId trace);
  void add_leaf(const LeafItem& item);
  void advance(const RuleItem& item, const Program::Call& call, size_t since);
  void complete(Callee callee, int32_t origin);
  void complete_leaf(const LeafItem& item);
  void predict(const RuleItem& item, const Program::Call& call);
  void end_rule(const RuleItem& item);
  int32_t count_of(TraceId trace) const {
    return trace <= 0 ? -trace : traces_[static_cast<size_t>(trace)].count;
  }
  bool has_value(TraceId trace, uint64_t value) const;
  std::unordered_set<uint64_t> values_of(TraceId trace) const;
  TraceId counted(TraceId trace, const Program::Call& call, size_t since);
  std::optional<int32_t> leaf_without(const Program::Call& call, TraceId trace);
  std::optional<int32_t> leaf_of_repeated(int32_t leaf, TraceId trace);
  int32_t add_extra(int32_t leaf, TraceId trace, int32_t to, const std::vector<std::string>& texts);
  TraceId trace_of(const LeafItem& item) const;
  bool has_other(const Leaf& l, Leaf::Place at, TraceId trace, std::string* text, int64_t* looks);
  bool take_out_repeated(const LeafItem& item, TraceId trace, std::span<uint32_t> bits);
  std::shared_ptr<const LeafMask> mask_of(const LeafItem& item);
  bool exits(const LeafMask& mask, const LeafItem& item, std::span<uint32_t> bits);
  bool walk(const TokenTrie& trie, int32_t from, std::span<uint32_t> bits);
  void drop_unneeded();

  // An open value whose end may be rejected: by a check (trace == kNoTrace), or because it equals a value of `trace`. When the value ends,
  // a rule that began in the set `origin` is in the state `to`.
  struct Risk {
    int32_t set;  // where the value begins
    int32_t to, origin;
    TraceId trace;
    bool operator==(const Risk&) const = default;
  };
  std::vector<Risk> risks() const;
  bool has_passed(const Risk& risk) const;
  bool can_pass(const Risk& risk, bool in_string, int64_t* looks);
  bool leads_on(std::string_view bytes, const std::vector<Risk>& at_risk, int64_t* left);
  std::vector<int32_t> along_earlier(const Risk& risk) const;
  bool take_out_dead_ends(std::span<uint32_t> bits);
  void look_ahead(std::span<uint32_t> bits);

  const CompiledGrammar& grammar_;
  Work* work_ = nullptr;
  std::vector<RuleItem> rules_;
  std::vector<LeafItem> leaves_;
  std::vector<Set> sets_;
  std::vector<Trace> traces_{{0, 0, false, 0, 0, 0}};
  std::string text_;
  bool dead_ = false;
  bool looked_at_text_ = false;  // whether closing the last set depended on the text
  // What an entry of extra_ replaces: the program's leaf, after the elements of `trace`, where the rule continues in the state `to`.
  struct ExtraOf {
    int32_t leaf;
    TraceId trace;
    int32_t to;
    bool operator==(const ExtraOf&) const = default;
  };
  std::vector<LeafPointer> extra_;
  std::vector<ExtraOf> extra_of_;
  std::map<std::tuple<int32_t, TraceId, int32_t>, bool> ends_;  // answers of can_end()
  Slots rule_slots_, leaf_slots_;
};

}  // namespace sluice
