#include "base/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "base/named_once.h"
#include "base/printable.h"

namespace sluice {
namespace {

std::string joined(std::span<const std::string_view> words) {
  std::string out;
  for (std::string_view w : words) out += (out.empty() ? "" : ", ") + std::string(w);
  return out;
}

Status bad_value(const Field& field, const std::string& wanted, std::string_view found) {
  return invalid(std::string(field.name) + ": wanted " + wanted + ", found '" + std::string(found) + "'");
}

// The edit distance, or `limit` if it is at least that large.
size_t edit_distance(std::string_view a, std::string_view b, size_t limit) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) >= limit) return limit;
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0]++;
    size_t row_min = row[0];
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replace});
      row_min = std::min(row_min, row[j]);
    }
    if (row_min >= limit) return limit;  // later rows cannot get smaller
  }
  return std::min(row[b.size()], limit);
}

}  // namespace

std::string Field::value_text() const {
  if (kind == Kind::kInt) return std::to_string(*integer);
  if (kind == Kind::kWord) return *choice < words.size() ? std::string(words[*choice]) : "?";
  return number_text(*real);
}

Status Field::set(std::string_view value) const {
  if (kind == Kind::kInt) {
    int64_t parsed = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
    if (error != std::errc() || end != value.data() + value.size())
      return bad_value(*this, "an integer", value);
    *integer = parsed;
    return {};
  }
  if (kind == Kind::kReal) {
    const std::string copy(value);
    char* end = nullptr;
    const double parsed = std::strtod(copy.c_str(), &end);
    if (copy.empty() || *end != '\0') return bad_value(*this, "a number", value);
    *real = parsed;
    return {};
  }
  for (size_t i = 0; i < words.size(); ++i)
    if (words[i] == value) return *choice = static_cast<uint8_t>(i), Status{};
  return bad_value(*this, "one of " + joined(words), value);
}

std::string nearest(std::string_view word, std::span<const std::string> names) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() * 2 / 5) + 1;  // names at this distance are too far
  for (const std::string& name : names) {
    const size_t distance = edit_distance(word, name, best_distance);
    if (distance < best_distance) best = name, best_distance = distance;
  }
  if (best_distance <= 1) return best;
  // A name that starts with `word` is a better hint than a similar name of equal length: --temp means
  // --temperature, not --help.
  constexpr size_t kBeginning = 4;
  if (word.size() < kBeginning) return best;
  const std::string* longer = nullptr;
  for (const std::string& name : names)
    if (name.starts_with(word) && (!longer || name.size() < longer->size())) longer = &name;
  return longer ? *longer : best;
}

Status unknown_name(std::string_view what, std::string_view name, std::span<const std::string> known) {
  std::string message = "unknown " + std::string(what) + " '" + std::string(name) + "'";
  if (const std::string near = nearest(name, known); !near.empty()) {
    message += "; did you mean '" + near + "'?";
  } else {
    message += "; known:";
    for (const std::string& k : known) message += " " + k;
  }
  return invalid(message);
}

bool next_assignment(std::string_view* rest, std::string_view* name, std::string_view* value) {
  const size_t begin = rest->find_first_not_of(' ');
  if (begin == std::string_view::npos) return false;
  const size_t end = std::min(rest->find(' ', begin), rest->size());
  const std::string_view item = rest->substr(begin, end - begin);
  rest->remove_prefix(end);
  const size_t equals = item.find('=');
  *name = item.substr(0, equals);
  *value = equals == std::string_view::npos ? std::string_view{} : item.substr(equals + 1);
  return true;
}

Status named_once(std::string_view line) {
  std::vector<std::string_view> seen;
  std::string_view name, value;
  while (next_assignment(&line, &name, &value)) {
    if (std::find(seen.begin(), seen.end(), name) != seen.end())
      return invalid(std::string(name) + ": given twice");
    seen.push_back(name);
  }
  return {};
}

}  // namespace sluice
