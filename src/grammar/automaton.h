// Finite automata over bytes. Every text that they accept is valid UTF-8.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/char_set.h"
#include "grammar/work.h"

namespace sluice {

struct Nfa {
  struct Edge {
    uint8_t first, last;
    int32_t to;
  };
  // A transition that reads no byte: always, only before the first byte, or only after the last one.
  enum class When : uint8_t { kAlways, kAtBegin, kAtEnd };
  struct Empty {
    When when;
    int32_t to;
  };
  struct State {
    std::vector<Edge> edges = {};
    std::vector<Empty> empties = {};
  };
  std::vector<State> states;
  int32_t begin = 0, end = 0;
  int32_t sink = -1;  // a state from which every text is accepted; -1: none

  int32_t add_state();
  void add_edge(int32_t from, uint8_t first, uint8_t last, int32_t to);
  void add_empty(int32_t from, int32_t to, When when = When::kAlways);
  void add_chars(int32_t from, const CharSet& chars, int32_t to);  // encodes the characters in UTF-8
  void add_text(int32_t from, std::string_view bytes, int32_t to);
};

// A deterministic automaton. State 0 is the start. Every state is reachable and leads to acceptance, so an empty language has no states.
class Dfa {
 public:
  static constexpr int32_t kDead = -1;
  // Accepts exactly `texts`, with the minimum number of states.
  static Dfa of_texts(std::span<const std::string> texts);
  static const Dfa& any_text();

  int32_t states() const { return static_cast<int32_t>(accepts_.size()); }
  bool empty() const { return accepts_.empty(); }
  int32_t step(int32_t state, uint8_t byte) const {
    return next_[static_cast<size_t>(state) * classes_ + class_of_[byte]];
  }
  bool accepts(int32_t state) const { return accepts_[static_cast<size_t>(state)] != 0; }
  bool matches(std::string_view text) const;
  // Whether any byte has a transition from `state`.
  bool goes_on(int32_t state) const { return has_next_[static_cast<size_t>(state)] != 0; }
  // Bit byte % 64 of word byte / 64: whether the byte has a transition from `state`.
  const std::array<uint64_t, 4>& next_bytes(int32_t state) const {
    return next_bytes_[static_cast<size_t>(state)];
  }
  // All accepted texts, sorted; none if there are more than `most`.
  std::optional<std::vector<std::string>> texts(size_t most) const;
  size_t bytes() const;

 private:
  friend class DfaBuilder;
  size_t classes_ = 1;
  std::array<uint8_t, 256> class_of_ = {};
  std::vector<int32_t> next_;  // [states, classes]
  std::vector<uint8_t> accepts_, has_next_;
  std::vector<std::array<uint64_t, 4>> next_bytes_;
};

// Builds a Dfa state by state. done() removes unreachable states and states that never lead to acceptance, and merges equivalent states.
class DfaBuilder {
 public:
  int32_t add_state(bool accepts);
  void set_accepts(int32_t state, bool accepts) { accepts_[static_cast<size_t>(state)] = accepts; }
  void set(int32_t from, uint8_t first, uint8_t last, int32_t to);
  void set_next(int32_t from, const std::array<int32_t, 256>& next);
  int32_t next(int32_t from, uint8_t byte) const { return next_[static_cast<size_t>(from)][byte]; }
  int32_t states() const { return static_cast<int32_t>(accepts_.size()); }
  // States with different labels are not merged. `order`, if given, receives for each new state one of the old states merged into it.
  Dfa done(Work* work, const std::vector<uint8_t>* labels = nullptr,
           std::vector<int32_t>* order = nullptr) const;

 private:
  std::vector<std::array<int32_t, 256>> next_;
  std::vector<uint8_t> accepts_;
};

// Maximum number of states of a Dfa. The functions below return nullopt if the result would be larger or if the work budget is spent.
constexpr int32_t kDfaStatesMax = 20000;
using MaybeDfa = std::optional<Dfa>;

MaybeDfa determinize(const Nfa& nfa, Work* work);
enum class SetOp : uint8_t { kBoth, kFirstOnly, kEither };
MaybeDfa combine(const Dfa& a, const Dfa& b, SetOp op, Work* work);
// Accepts all texts that `a` rejects.
MaybeDfa complement(const Dfa& a, Work* work);
// Accepts the texts of `a` with `least` to `most` characters.
MaybeDfa with_length(const Dfa& a, int64_t least, int64_t most, Work* work);
MaybeDfa concatenate(const Dfa& a, const Dfa& b, Work* work);

}  // namespace sluice
