// Automata of JSON numbers: bounded numbers, and multiples.
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/printable.h"
#include "grammar/leaf.h"

namespace sluice {
namespace {

// Maximum digits of numbers without an exponent. A double cannot hold more, and without a limit a model may write digits forever. Bounded
// numbers have at most 15 digits in total, because a longer one may become the bound as a double: 99.999999999999999 becomes 100.
constexpr size_t kWholeDigits = 15, kFractionDigits = 15;
constexpr int64_t kMultipleMax = 20000, kListedMax = 5000;

// How the digits so far compare with the bound's leading digits.
enum class Order : uint8_t { kBelow, kEqual, kAbove };

Order order_of(Order before, char digit, char of_bound) {
  if (before != Order::kEqual) return before;
  return digit < of_bound ? Order::kBelow : digit == of_bound ? Order::kEqual : Order::kAbove;
}

enum class Part : uint8_t { kBegin, kZero, kWhole, kPoint, kFraction };

// The position in a number after its sign: the part, the part's digits so far and their maximum, and how the number compares with both
// bounds. Before the point, the digits so far are compared with as many leading digits of the bound; after it, the number's value is compared.
struct Place {
  Part part = Part::kBegin;
  size_t digits = 0, max_digits = 0;
  Order least = Order::kEqual, most = Order::kEqual;
  auto operator<=>(const Place&) const = default;
};

// A range of magnitudes.
struct Range {
  std::optional<Decimal> least, most;
  bool min_excluded = false, max_excluded = false;
};

class RangeBuilder {
 public:
  RangeBuilder(DfaBuilder* builder, const Range& range, bool integer)
      : builder_(builder), range_(range), integer_(integer) {
    for (const auto* bound : {&range.least, &range.most}) {
      if (!*bound) continue;
      whole_max_ = std::max(whole_max_, (*bound)->whole.size() + 1);
    }
  }

  void from(int32_t start) {
    const Place begin{.max_digits = whole_max_};
    numbers_[begin] = start;
    todo_.push_back(begin);
    while (!todo_.empty()) {
      const Place at = todo_.back();
      todo_.pop_back();
      const int32_t state = numbers_.at(at);
      for (char digit = '0'; digit <= '9'; ++digit)
        if (const auto to = read(at, digit)) set(state, digit, *to);
      if (!integer_ && (at.part == Part::kZero || at.part == Part::kWhole)) set(state, '.', point(at));
    }
  }

 private:
  void set(int32_t from, char byte, const Place& to) {
    const auto [found, is_new] = numbers_.try_emplace(to, 0);
    if (is_new) {
      found->second = builder_->add_state(accepts(to));
      todo_.push_back(to);
    }
    builder_->set(from, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), found->second);
  }

  static Order whole_order(Order so_far, const Decimal& bound, char digit, size_t place) {
    return place < bound.whole.size() ? order_of(so_far, digit, bound.whole[place]) : so_far;
  }
  static Order fraction_order(Order so_far, const Decimal& bound, char digit, size_t place) {
    return order_of(so_far, digit, place < bound.fraction.size() ? bound.fraction[place] : '0');
  }

  std::optional<Place> read(const Place& at, char digit) const {
    Place to = at;
    const bool whole = at.part == Part::kBegin || at.part == Part::kWhole;
    if (at.part == Part::kZero) return {};
    if (at.part == Part::kBegin) to.part = digit == '0' ? Part::kZero : Part::kWhole;
    if (at.part == Part::kPoint) to.part = Part::kFraction;
    if (at.digits >= at.max_digits) return {};
    if (range_.least)
      to.least = whole ? whole_order(at.least, *range_.least, digit, at.digits)
                       : fraction_order(at.least, *range_.least, digit, at.digits);
    if (range_.most)
      to.most = whole ? whole_order(at.most, *range_.most, digit, at.digits)
                      : fraction_order(at.most, *range_.most, digit, at.digits);
    ++to.digits;
    // After the point, the position matters only while the digits so far equal the digits of a bound. Ignoring it
    // otherwise saves states.
    const bool open =
        (range_.least && to.least == Order::kEqual) || (range_.most && to.most == Order::kEqual);
    if (to.part == Part::kFraction && !open) to.max_digits -= std::exchange(to.digits, 0);
    return to;
  }

  // A number with fewer digits before the point is smaller.
  static Order after_whole(Order so_far, const Decimal& bound, size_t digits) {
    if (digits != bound.whole.size()) return digits < bound.whole.size() ? Order::kBelow : Order::kAbove;
    return so_far;
  }
  Place point(const Place& at) const {
    const size_t whole = at.part == Part::kZero ? 0 : at.digits;
    Place to{.part = Part::kPoint, .max_digits = kFractionDigits - std::min(whole, kFractionDigits)};
    if (range_.least) to.least = after_whole(at.least, *range_.least, at.digits);
    if (range_.most) to.most = after_whole(at.most, *range_.most, at.digits);
    return to;
  }

  static Order order_at_end(const Place& at, Order so_far, const Decimal& bound) {
    const bool whole = at.part == Part::kZero || at.part == Part::kWhole;
    const Order order = whole ? after_whole(so_far, bound, at.digits) : so_far;
    if (order != Order::kEqual) return order;
    return (whole ? 0 : at.digits) < bound.fraction.size() ? Order::kBelow : Order::kEqual;
  }
  bool accepts(const Place& at) const {
    if (at.part == Part::kBegin || at.part == Part::kPoint) return false;
    if (range_.least) {
      const Order order = order_at_end(at, at.least, *range_.least);
      if (order == Order::kBelow || (order == Order::kEqual && range_.min_excluded)) return false;
    }
    if (range_.most) {
      const Order order = order_at_end(at, at.most, *range_.most);
      if (order == Order::kAbove || (order == Order::kEqual && range_.max_excluded)) return false;
    }
    return true;
  }

  DfaBuilder* builder_;
  Range range_;
  bool integer_;
  size_t whole_max_ = kWholeDigits;
  std::map<Place, int32_t> numbers_;
  std::vector<Place> todo_;
};

Dfa in_range(const NumberBounds& b, Work* work) {
  DfaBuilder builder;
  const int32_t start = builder.add_state(false);
  if (!b.most || !b.most->negative) {
    Range range;
    range.most = b.most, range.max_excluded = b.max_excluded;
    if (b.least && !b.least->negative) range.least = b.least, range.min_excluded = b.min_excluded;
    RangeBuilder(&builder, range, b.integer).from(start);
  }
  // Negative numbers only: zero is matched above, without a sign.
  const bool below = !b.least || b.least->negative;
  if (below) {
    Range range;
    range.least = Decimal{}, range.min_excluded = true;
    if (b.least) range.most = -*b.least, range.max_excluded = b.min_excluded;
    if (b.most && b.most->negative) range.least = -*b.most, range.min_excluded = b.max_excluded;
    const int32_t minus = builder.add_state(false);
    builder.set(start, '-', '-', minus);
    RangeBuilder(&builder, range, b.integer).from(minus);
  }
  return builder.done(work);
}

// A zero has no exponent, because an exponent would only add endless spellings of zero.
Dfa any_number() {
  Nfa nfa;
  nfa.begin = nfa.add_state();
  nfa.end = nfa.add_state();
  const int32_t sign = nfa.add_state(), zero = nfa.add_state(), mantissa = nfa.add_state();
  nfa.add_empty(nfa.begin, sign);
  nfa.add_edge(nfa.begin, '-', '-', sign);
  nfa.add_edge(sign, '0', '0', zero);
  nfa.add_empty(zero, nfa.end);
  int32_t from = nfa.add_state();
  nfa.add_edge(sign, '1', '9', from);
  const int32_t whole = nfa.add_state();
  nfa.add_empty(from, whole);
  for (size_t i = 1; i < kWholeDigits; ++i) {
    const int32_t to = nfa.add_state();
    nfa.add_edge(from, '0', '9', to);
    nfa.add_empty(to, whole);
    from = to;
  }
  nfa.add_empty(whole, mantissa);
  // After the point: in `zeros` every digit of the number so far is 0; in `others` some digit is not 0.
  int32_t zeros = nfa.add_state(), others = nfa.add_state();
  nfa.add_edge(zero, '.', '.', zeros);
  nfa.add_edge(whole, '.', '.', others);
  for (size_t i = 0; i < kFractionDigits; ++i) {
    const int32_t next_zeros = nfa.add_state(), next_others = nfa.add_state();
    nfa.add_edge(zeros, '0', '0', next_zeros);
    nfa.add_edge(zeros, '1', '9', next_others);
    nfa.add_edge(others, '0', '9', next_others);
    nfa.add_empty(next_zeros, nfa.end);
    nfa.add_empty(next_others, mantissa);
    zeros = next_zeros, others = next_others;
  }
  nfa.add_empty(mantissa, nfa.end);
  const int32_t e = nfa.add_state(), power = nfa.add_state(), first = nfa.add_state(),
                second = nfa.add_state();
  for (const uint8_t letter : {'e', 'E'}) nfa.add_edge(mantissa, letter, letter, e);
  for (const uint8_t s : {'+', '-'}) nfa.add_edge(e, s, s, power);
  nfa.add_empty(e, power);
  nfa.add_edge(power, '0', '9', first);
  nfa.add_edge(first, '0', '9', second);
  nfa.add_empty(first, nfa.end);
  nfa.add_empty(second, nfa.end);
  Work plenty(int64_t{1} << 24);
  return *determinize(nfa, &plenty);
}

std::string text_of(const Decimal& d) {
  return (d.negative ? "-" : "") + d.whole + (d.fraction.empty() ? "" : "." + d.fraction);
}

// `multiple` as an integer divided by a power of ten.
struct Scaled {
  int64_t value = 0;
  size_t places = 0;
};
std::optional<Scaled> scaled(const Decimal& d) {
  const std::string digits = d.whole + d.fraction;
  if (digits.size() > 18) return {};
  return Scaled{std::stoll(digits), d.fraction.size()};
}

// Accepts multiples of `m` by tracking the remainder of the digits so far.
std::optional<Dfa> multiples_of(const Scaled& m, bool integer) {
  if (m.value <= 0 || m.value > kMultipleMax || m.places > 15) return {};
  if (m.value * static_cast<int64_t>(m.places + 2) > 4 * kMultipleMax) return {};
  DfaBuilder builder;
  // State numbers by part, digits after the point, and the remainder of the digits so far (without the point) modulo m.value.
  std::map<std::tuple<int, size_t, int64_t>, int32_t> number;
  std::vector<std::tuple<int, size_t, int64_t>> todo;
  enum { kSign, kFirst, kZero, kWhole, kPoint, kFraction };
  const auto ends_well = [&](int part, size_t digits, int64_t remainder) {
    if (part < kZero || part == kPoint) return false;
    for (size_t i = digits; i < m.places; ++i) remainder = remainder * 10 % m.value;
    return remainder == 0;
  };
  const auto add = [&](int part, size_t digits, int64_t remainder) {
    const auto [found, is_new] = number.try_emplace({part, digits, remainder}, builder.states());
    if (is_new) {
      builder.add_state(ends_well(part, digits, remainder));
      todo.push_back(found->first);
    }
    return found->second;
  };
  add(kSign, 0, 0);
  for (size_t i = 0; i < todo.size(); ++i) {
    const auto [part, digits, remainder] = todo[i];
    const auto from = static_cast<int32_t>(i);
    if (part == kSign) builder.set(from, '-', '-', add(kFirst, 0, 0));
    if (!integer && (part == kZero || part == kWhole)) builder.set(from, '.', '.', add(kPoint, 0, remainder));
    for (uint8_t byte = '0'; byte <= '9'; ++byte) {
      const int64_t next = (remainder * 10 + (byte - '0')) % m.value;
      int32_t to = Dfa::kDead;
      if (part == kSign || part == kFirst)
        to = add(byte == '0' ? kZero : kWhole, 0, next);
      else if (part == kWhole)
        to = add(kWhole, 0, next);
      else if (part == kPoint || part == kFraction)
        to = digits < m.places            ? add(kFraction, digits + 1, next)
             : digits == 0 && byte == '0' ? add(kFraction, 1, remainder)
                                          : Dfa::kDead;
      builder.set(from, byte, byte, to);
    }
  }
  Work plenty(int64_t{1} << 24);
  return builder.done(&plenty);
}

// Numbers that are not integers, without an exponent.
std::optional<Dfa> with_fraction(Work* work) {
  Nfa nfa;
  nfa.begin = nfa.add_state();
  nfa.end = nfa.add_state();
  const int32_t whole = nfa.add_state(), fraction = nfa.add_state();
  nfa.add_edge(nfa.begin, '-', '-', whole);
  nfa.add_empty(nfa.begin, whole);
  nfa.add_edge(whole, '0', '9', whole);
  nfa.add_edge(whole, '.', '.', fraction);
  nfa.add_edge(fraction, '0', '9', fraction);
  nfa.add_edge(fraction, '1', '9', nfa.end);
  nfa.add_edge(nfa.end, '0', '0', nfa.end);
  return determinize(nfa, work);
}

// All multiples between two bounds, if they are integers and few.
std::optional<Dfa> listed(const NumberBounds& b) {
  if (!b.integer || !b.least || !b.most || b.multiples.size() != 1) return {};
  const auto whole = [](const Decimal& d) -> std::optional<int64_t> {
    if (d.whole.size() > 17) return {};
    return std::stoll(d.whole) * (d.negative ? -1 : 1);
  };
  const auto least = whole(*b.least), most = whole(*b.most), step = whole(b.multiples[0]);
  if (!least || !most || !step || *step <= 0 || !b.multiples[0].fraction.empty()) return {};
  if ((*most - *least) / *step > kListedMax) return {};
  std::vector<std::string> texts;
  for (int64_t i = *least / *step - 1; i <= *most / *step + 1; ++i) {
    const auto d = Decimal::of(Json(i * *step));
    const int low = compare(*d, *b.least), high = compare(*d, *b.most);
    if (low < 0 || (low == 0 && b.min_excluded) || high > 0 || (high == 0 && b.max_excluded)) continue;
    if (std::ranges::any_of(b.not_multiples, [&](const Decimal& m) { return is_multiple(*d, m); })) continue;
    texts.push_back(std::to_string(i * *step));
  }
  return Dfa::of_texts(texts);
}

// Limits unbounded multiples of a large number m to -1000 * m ... 1000 * m, because an automaton of all multiples would be large.
NumberBounds near(NumberBounds b) {
  constexpr int64_t kLarge = 1000, kTimes = 1000;
  const auto m = b.multiples.size() == 1 ? scaled(b.multiples[0]) : std::nullopt;
  if (!m || m->places > 0 || m->value < kLarge || m->value > int64_t{1'000'000'000'000}) return b;
  b.integer = true;
  if (!b.least) b.least = Decimal::of(Json(-kTimes * m->value));
  if (!b.most) b.most = Decimal::of(Json(kTimes * m->value));
  return b;
}

}  // namespace

std::optional<Decimal> Decimal::of(const Json& number) {
  if (!number.is_number()) return {};
  std::string text = number.is_number_float() ? scientific_text(number.get<double>()) : number.dump();
  Decimal out;
  if (text[0] == '-') out.negative = true, text.erase(0, 1);
  int64_t power = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string::npos) {
    power = std::stoll(text.substr(e + 1));
    text.resize(e);
  }
  const size_t point = text.find('.');
  std::string whole = text.substr(0, point),
              fraction = point == std::string::npos ? "" : text.substr(point + 1);
  if (whole.find_first_not_of("0123456789") != std::string::npos ||
      fraction.find_first_not_of("0123456789") != std::string::npos)
    return {};  // infinity and NaN
  for (; power > 0; --power) {
    whole += fraction.empty() ? '0' : fraction[0];
    if (!fraction.empty()) fraction.erase(0, 1);
  }
  for (; power < 0; ++power) {
    fraction.insert(fraction.begin(), whole.empty() ? '0' : whole.back());
    if (!whole.empty()) whole.pop_back();
  }
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
  out.whole = whole.empty() ? "0" : whole;
  out.fraction = fraction;
  if (out.is_zero()) out.negative = false;
  return out;
}

// A fraction with p digits is a multiple of 2^-p if 5^p divides its digits.
bool Decimal::is_double() const {
  if (whole.size() + fraction.size() > 15) return false;
  int64_t digits = fraction.empty() ? 0 : std::stoll(fraction);
  for (size_t i = 0; i < fraction.size(); ++i, digits /= 5)
    if (digits % 5 != 0) return false;
  return true;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int sign = a.negative ? -1 : 1;
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -sign : sign;
  if (const int c = a.whole.compare(b.whole); c != 0) return c < 0 ? -sign : sign;
  const int c = a.fraction.compare(b.fraction);  // without trailing zeros, so a prefix is smaller
  return c == 0 ? 0 : c < 0 ? -sign : sign;
}

bool is_multiple(const Decimal& value, const Decimal& of) {
  // Scales both to integers and computes the remainder of the digits.
  const size_t places = std::max(value.fraction.size(), of.fraction.size());
  const auto digits = [&](const Decimal& d) {
    return d.whole + d.fraction + std::string(places - d.fraction.size(), '0');
  };
  std::string divisor = digits(of);
  divisor.erase(0, std::min(divisor.find_first_not_of('0'), divisor.size()));
  if (divisor.empty() || divisor.size() > 17) return false;
  const int64_t m = std::stoll(divisor);
  __int128 remainder = 0;
  for (const char c : digits(value)) remainder = (remainder * 10 + (c - '0')) % m;
  return remainder == 0;
}

Result<Dfa> json_numbers(const NumberBounds& bounds, Work* work) {
  if (bounds.none()) return any_number();
  if (auto few = listed(near(bounds))) return std::move(*few);
  Dfa out = in_range(bounds, work);
  if (!work->over() && out.empty() && !bounds.integer && bounds.least && bounds.most &&
      compare(*bounds.least, *bounds.most) < 0)
    return invalid("bounds that allow only numbers of more than " + std::to_string(kFractionDigits) +
                   " digits, the maximum for a number with bounds");
  for (const Decimal& multiple : bounds.multiples) {
    const auto m = scaled(multiple);
    auto one = m ? multiples_of(*m, bounds.integer) : std::nullopt;
    if (one) one = combine(out, *one, SetOp::kBoth, work);
    if (!one)
      return invalid("multipleOf " + text_of(multiple) + ", which is too large or has too many digits");
    out = std::move(*one);
  }
  for (const Decimal& multiple : bounds.not_multiples) {
    const auto m = scaled(multiple);
    const auto one = m ? multiples_of(*m, bounds.integer) : std::nullopt;
    auto others = one ? combine(out, *one, SetOp::kFirstOnly, work) : std::nullopt;
    if (others) out = std::move(*others);
  }
  if (bounds.fraction) {
    const auto broken = with_fraction(work);
    auto both = broken ? combine(out, *broken, SetOp::kBoth, work) : std::nullopt;
    if (!both) return invalid("bounds of a number that take too long to compile");
    out = std::move(*both);
  }
  if (work->over()) return invalid("bounds of a number that take too long to compile");
  return out;
}

}  // namespace sluice
