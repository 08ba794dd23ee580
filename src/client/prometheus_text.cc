#include "client/prometheus_text.h"

#include <algorithm>
#include <charconv>

namespace sluice {
namespace {

// Parses one line from left to right. The functions that parse a part return whether they found it.
class SampleLine {
 public:
  explicit SampleLine(std::string_view line) : rest_(line) {}

  bool read(MetricSample* out) {
    out->labels.clear();
    blanks();
    if (!name(&out->name)) return false;
    blanks();
    if (starts('{') && !labels(&out->labels)) return false;
    blanks();
    return number(&out->value) && end();
  }

 private:
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_blank(char c) { return c == ' ' || c == '\t'; }
  static bool belongs_to_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == ':';
  }
  bool starts(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  // Removes and returns the longest prefix of the rest whose characters all satisfy `belongs`.
  template <class Belongs>
  std::string_view take(Belongs belongs) {
    const auto stop = std::find_if_not(rest_.begin(), rest_.end(), belongs);
    const std::string_view out = rest_.substr(0, static_cast<size_t>(stop - rest_.begin()));
    rest_.remove_prefix(out.size());
    return out;
  }
  void blanks() { take(is_blank); }
  bool name(std::string* out) {
    if (rest_.empty() || is_digit(rest_.front())) return false;
    *out = take(belongs_to_name);
    return !out->empty();
  }

  // Parses labels after the opening brace. A comma may follow the last label.
  bool labels(std::vector<std::pair<std::string, std::string>>* out) {
    for (bool more = true;;) {
      blanks();
      if (starts('}')) return true;
      if (!more) return false;
      auto& [label, value] = out->emplace_back();
      if (!name(&label)) return false;
      blanks();
      if (!starts('=')) return false;
      blanks();
      if (!quoted(&value)) return false;
      blanks();
      more = starts(',');
    }
  }
  bool quoted(std::string* out) {
    if (!starts('"')) return false;
    while (!starts('"')) {
      if (rest_.empty()) return false;
      const bool escaped = starts('\\');
      if (rest_.empty()) return false;
      const char c = rest_.front();
      rest_.remove_prefix(1);
      if (escaped && c != '\\' && c != '"' && c != 'n') *out += '\\';  // not an escape sequence of the format
      *out += escaped && c == 'n' ? '\n' : c;
    }
    return true;
  }

  bool number(double* out) {
    std::string_view word = take([](char c) { return !is_blank(c); });
    // from_chars does not accept a plus sign.
    if (word.starts_with('+') && !word.starts_with("+-")) word.remove_prefix(1);
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), *out);
    return error == std::errc() && stop == word.data() + word.size();
  }
  // Parses an optional timestamp and exemplar.
  bool end() {
    blanks();
    double timestamp = 0;
    if (!rest_.empty() && rest_.front() != '#' && !number(&timestamp)) return false;
    blanks();
    return rest_.empty() || rest_.front() == '#';
  }

  std::string_view rest_;
};

}  // namespace

const std::string* MetricSample::label(std::string_view label_name) const {
  const auto found =
      std::find_if(labels.begin(), labels.end(), [&](const auto& l) { return l.first == label_name; });
  return found == labels.end() ? nullptr : &found->second;
}

void for_each_sample(std::string_view page, const std::function<void(const MetricSample&)>& take) {
  MetricSample sample;
  while (!page.empty()) {
    const size_t end = std::min(page.find('\n'), page.size());
    std::string_view line = page.substr(0, end);
    page.remove_prefix(std::min(end + 1, page.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (SampleLine(line).read(&sample)) take(sample);
  }
}

}  // namespace sluice
