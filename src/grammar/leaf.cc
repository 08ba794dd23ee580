#include "grammar/leaf.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "grammar/distances.h"

namespace sluice {
namespace {

constexpr int kBlanksMax = 40;
constexpr int64_t kLengthsMax = 1024, kLengthStatesMax = 2048;  // limits of Leaf::lengths
constexpr std::string_view kBlanks = " \t\n\r";

bool is_hex(int byte) {
  return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
}
int hex_value(int byte) { return byte <= '9' ? byte - '0' : (byte | 0x20) - 'a' + 10; }

struct ShortEscape {
  char letter, means;
};
constexpr ShortEscape kShort[] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'b', '\b'},
                                  {'f', '\f'}, {'n', '\n'},  {'r', '\r'}, {'t', '\t'}};

// Whether the state is between two characters.
bool between_chars(const Dfa& value, int32_t state) {
  for (int byte = 0x80; byte < 0xc0; ++byte)
    if (value.step(state, static_cast<uint8_t>(byte)) != Dfa::kDead) return false;
  return true;
}

// The transitions of an automaton between states, each once, with the number of characters that it counts.
std::vector<std::vector<ArrowInto>> arrows_of(const Dfa& dfa, const std::vector<uint8_t>& counts) {
  const auto n = static_cast<size_t>(dfa.states());
  std::vector<std::vector<ArrowInto>> into(n);
  for (size_t s = 0; s < n; ++s) {
    int32_t last = Dfa::kDead, last_weight = -1;
    for (int byte = 0; byte < 256; ++byte) {
      const int32_t t = dfa.step(static_cast<int32_t>(s), static_cast<uint8_t>(byte));
      const int32_t weight = counts[s] != 0 && byte != '"' ? 1 : 0;
      if (t == Dfa::kDead || (t == last && weight == last_weight)) continue;
      into[static_cast<size_t>(t)].push_back({static_cast<int32_t>(s), weight});
      last = t, last_weight = weight;
    }
  }
  return into;
}

// Whether some state cannot end after some number of characters between its minimum and its maximum.
bool has_gaps(const Leaf& leaf) {
  for (size_t s = 0; s < leaf.counts.size(); ++s) {
    const int64_t last = std::min<int64_t>(leaf.to_last_end[s], leaf.length_words * 64 - 1);
    int64_t found = 0;
    for (int64_t w = 0; w < leaf.length_words; ++w)
      found +=
          std::popcount(leaf.lengths[s * static_cast<size_t>(leaf.length_words) + static_cast<size_t>(w)]);
    if (leaf.to_end[s] <= last && found != last - leaf.to_end[s] + 1) return true;
  }
  return false;
}

void set_counts(Leaf* leaf, int64_t least, int64_t most, const std::vector<uint8_t>& labels,
                const std::vector<int32_t>& order) {
  leaf->least = std::max<int64_t>(least, 0);
  leaf->most = most < 0 ? Leaf::kNoBound : std::min(most, Leaf::kNoBound);
  if ((leaf->least == 0 && leaf->most == Leaf::kNoBound) || leaf->dfa.empty()) return;
  std::vector<uint8_t> counts;
  for (const int32_t old : order) counts.push_back(labels[static_cast<size_t>(old)]);
  const auto into = arrows_of(leaf->dfa, counts);
  std::vector<int32_t> ends;
  for (int32_t state = 0; state < leaf->dfa.states(); ++state)
    if (leaf->dfa.accepts(state)) ends.push_back(state);
  leaf->to_end = min_weights(into, ends);
  leaf->to_last_end = max_weights(into, ends);
  // Bounds that all texts keep are no bounds.
  if (leaf->to_end[0] >= leaf->least) leaf->least = 0;
  if (leaf->to_last_end[0] <= leaf->most) leaf->most = Leaf::kNoBound;
  if (leaf->least == 0 && leaf->most == Leaf::kNoBound) return void(leaf->to_end.clear());
  leaf->counts = std::move(counts);
  const bool can_have_gaps =
      leaf->least > 0 && leaf->most < kLengthsMax && leaf->dfa.states() <= kLengthStatesMax;
  if (can_have_gaps) {
    leaf->length_words = leaf->most / 64 + 1;
    leaf->lengths = all_weights(into, ends, leaf->length_words);
    if (!has_gaps(*leaf)) leaf->lengths.clear();
  }
  // Where a text may end, parsing checks `least` itself.
  bool is_bounded = !leaf->lengths.empty();
  for (int32_t state = 0; state < leaf->dfa.states(); ++state)
    is_bounded |=
        !leaf->dfa.accepts(state) && leaf->to_last_end[static_cast<size_t>(state)] != Leaf::kNoBound;
  leaf->least_steers = leaf->least > 0 && is_bounded;
  if (!leaf->can_end({0, 0})) leaf->dfa = Dfa();
}

Leaf with_blanks(DfaBuilder* builder, int32_t from, bool may_be_none) {
  // states[i] has read i blanks; the last state accepts no further blank.
  std::vector<int32_t> states{from};
  for (int i = 0; i < kBlanksMax; ++i) states.push_back(builder->add_state(true));
  for (size_t i = 0; i + 1 < states.size(); ++i)
    for (const char c : kBlanks)
      builder->set(states[i], static_cast<uint8_t>(c), static_cast<uint8_t>(c), states[i + 1]);
  builder->set_accepts(from, may_be_none);
  Work plenty(int64_t{1} << 24);
  return {.dfa = builder->done(&plenty)};
}

}  // namespace

bool Leaf::can_end(Place at) const {
  const auto state = static_cast<size_t>(at.state);
  const int64_t from = std::max<int64_t>(least - at.count, 0), to = most - at.count;
  if (to_end[state] > to || to_last_end[state] < from) return false;
  if (to_end[state] >= from || lengths.empty()) return true;
  const uint64_t* bits = lengths.data() + static_cast<int64_t>(state) * length_words;
  for (int64_t n = from; n <= to; n = (n / 64 + 1) * 64) {
    const int64_t last = std::min(to, n / 64 * 64 + 63) % 64;
    const uint64_t wanted = (~uint64_t{0} << (n % 64)) & (~uint64_t{0} >> (63 - last));
    if (bits[n / 64] & wanted) return true;
  }
  return false;
}

std::optional<Leaf> json_strings(const Dfa& value, int64_t least, int64_t most, Work* work) {
  if (value.empty()) return Leaf{};
  DfaBuilder builder;
  const int32_t open = builder.add_state(false), closed = builder.add_state(true);
  std::vector<uint8_t> labels{0, 0};
  const auto add = [&](uint8_t label) {
    labels.push_back(label);
    return builder.add_state(false);
  };
  std::vector<int32_t> inside;
  for (int32_t s = 0; s < value.states(); ++s) inside.push_back(add(between_chars(value, s) ? 1 : 0));
  builder.set(open, '"', '"', inside[0]);
  for (int32_t s = 0; s < value.states(); ++s) {
    if (!work->spend(256)) return {};
    const int32_t from = inside[static_cast<size_t>(s)];
    const auto to = [&](int byte) {
      const int32_t t = value.step(s, static_cast<uint8_t>(byte));
      return t == Dfa::kDead ? Dfa::kDead : inside[static_cast<size_t>(t)];
    };
    std::array<int32_t, 256> row;
    for (int byte = 0; byte < 256; ++byte)
      row[static_cast<size_t>(byte)] = byte < 0x20 || byte == '"' || byte == '\\' ? Dfa::kDead : to(byte);
    if (value.accepts(s)) row['"'] = closed;
    int32_t escape = Dfa::kDead;
    const auto escaped = [&] { return escape == Dfa::kDead ? escape = add(0) : escape; };
    for (const ShortEscape& e : kShort)
      if (to(e.means) != Dfa::kDead)
        builder.set(escaped(), static_cast<uint8_t>(e.letter), static_cast<uint8_t>(e.letter), to(e.means));
    int32_t digits[3] = {Dfa::kDead, Dfa::kDead, Dfa::kDead};  // after "\u", "\u0" and "\u00"
    int32_t last[2] = {Dfa::kDead, Dfa::kDead};                // after "\u000" and "\u001"
    for (int c = 0; c < 0x20; ++c) {
      if (to(c) == Dfa::kDead) continue;
      if (digits[0] == Dfa::kDead) {
        for (int32_t& d : digits) d = add(0);
        builder.set(escaped(), 'u', 'u', digits[0]);
        builder.set(digits[0], '0', '0', digits[1]);
        builder.set(digits[1], '0', '0', digits[2]);
      }
      int32_t& tail = last[c / 16];
      if (tail == Dfa::kDead)
        builder.set(digits[2], static_cast<uint8_t>('0' + c / 16), static_cast<uint8_t>('0' + c / 16),
                    tail = add(0));
      for (int byte = '0'; byte <= 'f'; ++byte)
        if (is_hex(byte) && hex_value(byte) == c % 16)
          builder.set(tail, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), to(c));
    }
    row['\\'] = escape;
    builder.set_next(from, row);
  }
  Leaf out;
  std::vector<int32_t> order;
  out.dfa = builder.done(work, &labels, &order);
  set_counts(&out, least, most, labels, order);
  return out;
}

Leaf any_json_string(int64_t least, int64_t most) {
  DfaBuilder builder;
  std::vector<uint8_t> labels;
  const auto add = [&](uint8_t label = 0, bool accepts = false) {
    labels.push_back(label);
    return builder.add_state(accepts);
  };
  const int32_t open = add(), text = add(1), closed = add(0, true), escape = add();
  builder.set(open, '"', '"', text);
  builder.set(text, 0x20, 0x7f, text);
  builder.set(text, '"', '"', closed);
  builder.set(text, '\\', '\\', escape);
  // one, two or three bytes of a character are still to come
  const int32_t one = add(), two = add(), three = add();
  const int32_t e0 = add(), ed = add(), f0 = add(), f4 = add();
  builder.set(one, 0x80, 0xbf, text);
  builder.set(two, 0x80, 0xbf, one);
  builder.set(three, 0x80, 0xbf, two);
  builder.set(e0, 0xa0, 0xbf, one);
  builder.set(ed, 0x80, 0x9f, one);
  builder.set(f0, 0x90, 0xbf, two);
  builder.set(f4, 0x80, 0x8f, two);
  builder.set(text, 0xc2, 0xdf, one);
  builder.set(text, 0xe0, 0xef, two);
  builder.set(text, 0xe0, 0xe0, e0);
  builder.set(text, 0xed, 0xed, ed);
  builder.set(text, 0xf0, 0xf0, f0);
  builder.set(text, 0xf1, 0xf3, three);
  builder.set(text, 0xf4, 0xf4, f4);
  for (const ShortEscape& e : kShort)
    builder.set(escape, static_cast<uint8_t>(e.letter), static_cast<uint8_t>(e.letter), text);
  const auto hex = [&](int32_t from, int32_t to) {
    builder.set(from, '0', '9', to);
    builder.set(from, 'a', 'f', to);
    builder.set(from, 'A', 'F', to);
  };
  const int32_t hex1 = add(), hex2 = add(), hex3 = add(), hex4 = add(), surrogate = add();
  builder.set(escape, 'u', 'u', hex1);
  hex(hex1, hex2);
  hex(hex2, hex3);
  hex(hex3, hex4);
  hex(hex4, text);
  // \ud800 to \udbff followed by \udc00 to \udfff, in no other order.
  const int32_t high3 = add(), high4 = add(), slash = add(), u = add(), low1 = add(), low2 = add();
  for (const uint8_t d : {'d', 'D'}) {
    builder.set(hex1, d, d, surrogate);
    builder.set(low1, d, d, low2);
  }
  builder.set(surrogate, '0', '7', hex3);
  builder.set(surrogate, '8', '9', high3);
  builder.set(surrogate, 'a', 'b', high3);
  builder.set(surrogate, 'A', 'B', high3);
  hex(high3, high4);
  hex(high4, slash);
  builder.set(slash, '\\', '\\', u);
  builder.set(u, 'u', 'u', low1);
  builder.set(low2, 'c', 'f', hex3);
  builder.set(low2, 'C', 'F', hex3);
  Leaf out;
  std::vector<int32_t> order;
  Work plenty(int64_t{1} << 24);
  out.dfa = builder.done(&plenty, &labels, &order);
  set_counts(&out, least, most, labels, order);
  return out;
}

Leaf texts_leaf(const std::vector<std::string>& texts) {
  Leaf out{.dfa = Dfa::of_texts(texts)};
  if (std::ssize(texts) <= Leaf::kTextsMax) out.texts = texts;
  return out;
}

Leaf mark_and_blanks(const std::string& mark) {
  DfaBuilder builder;
  int32_t from = builder.add_state(false);
  for (const char c : mark) {
    const int32_t to = builder.add_state(false);
    builder.set(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
    from = to;
  }
  Leaf out = with_blanks(&builder, from, true);
  out.spaced = mark + " ", out.compact = mark;
  return out;
}

Leaf blanks() {
  DfaBuilder builder;
  const int32_t from = builder.add_state(false);
  Leaf out = with_blanks(&builder, from, false);
  out.is_blanks = true;
  return out;
}

Leaf blanks_and_mark(const std::string& mark) {
  DfaBuilder builder;
  std::vector<int32_t> states;
  for (int i = 0; i <= kBlanksMax; ++i) states.push_back(builder.add_state(false));
  for (size_t i = 0; i + 1 < states.size(); ++i)
    for (const char c : kBlanks)
      builder.set(states[i], static_cast<uint8_t>(c), static_cast<uint8_t>(c), states[i + 1]);
  const auto first = static_cast<uint8_t>(mark[0]);
  int32_t to = builder.add_state(mark.size() == 1);
  for (const int32_t s : states) builder.set(s, first, first, to);
  for (size_t i = 1; i < mark.size(); ++i) {
    const int32_t next = builder.add_state(i + 1 == mark.size());
    builder.set(to, static_cast<uint8_t>(mark[i]), static_cast<uint8_t>(mark[i]), next);
    to = next;
  }
  Work plenty(int64_t{1} << 24);
  return {.dfa = builder.done(&plenty), .spaced = mark, .compact = mark};
}

}  // namespace sluice
