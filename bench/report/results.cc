#include "report/results.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>
#include <tuple>

namespace sluice::bench {
namespace {

constexpr std::string_view kRemark = "; ";

std::string number(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

bool is_plain(char c) {
  return c >= ' ' && c <= '~' && std::string_view("|`\"<>").find(c) == std::string_view::npos;
}

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> out;
  for (size_t at = 0;;) {
    const size_t comma = line.find(',', at);
    out.push_back(line.substr(at, comma - at));
    if (comma == std::string_view::npos) return out;
    at = comma + 1;
  }
}

// Reads lines; every complaint names its position.
class Parser {
 public:
  Parser(const std::string& name, std::string_view suite) : name_(name), suite_(suite) {}

  Status header(std::string_view line) {
    line_ = 1;
    return line == kCsvHeader ? Status{} : wrong("the header " + std::string(kCsvHeader), line);
  }

  Status row(std::string_view line, int number) {
    line_ = number;
    fields_ = split(line);
    constexpr size_t kFields = 12;
    if (fields_.size() != kFields)
      return wrong(std::to_string(kFields) + " fields", std::to_string(fields_.size()));
    Row r;
    SLUICE_TRY(word(0, "suite", &r.suite));
    SLUICE_TRY(identifier(1, "op", &r.op));
    SLUICE_TRY(word(2, "model", &r.model));
    SLUICE_TRY(count(3, "tokens", &r.tokens));
    SLUICE_TRY(word(4, "impl", &r.impl));
    SLUICE_TRY(word(5, "version", &r.version));
    SLUICE_TRY(value(6, "median_us", &r.median_us));
    SLUICE_TRY(value(7, "p10_us", &r.p10_us));
    SLUICE_TRY(value(8, "p90_us", &r.p90_us));
    SLUICE_TRY(value(9, "bytes", &r.bytes));
    SLUICE_TRY(value(10, "flops", &r.flops));
    SLUICE_TRY(plain(11, "note", &r.note));
    if (r.suite != suite_) return wrong("suite " + suite_, r.suite);
    if (r.p10_us <= 0) return wrong("p10_us > 0", fields_[7]);
    if (r.median_us < r.p10_us) return wrong("median_us >= p10_us", fields_[6]);
    if (r.p90_us < r.median_us) return wrong("p90_us >= median_us", fields_[8]);
    SLUICE_TRY(fits(r));
    rows_.push_back(std::move(r));
    return {};
  }

  Status empty() {
    line_ = 1;
    return wrong("rows after the header", "none");
  }

  std::vector<Row> take() { return std::move(rows_); }

 private:
  Status wrong(const std::string& wanted, std::string_view found) const {
    return {Code::kCorrupt, name_ + ":" + std::to_string(line_) + ": wanted " + wanted + ", found '" +
                                std::string(found) + "'"};
  }

  Status word(size_t i, const char* name, std::string* out) const {
    if (fields_[i].empty()) return wrong(std::string("a value for ") + name, "");
    return plain(i, name, out);
  }

  // Words must be printable in tables and file names.
  Status plain(size_t i, const char* name, std::string* out) const {
    for (const char c : fields_[i])
      if (!is_plain(c))
        return wrong(std::string("printable ASCII without | ` \" < > for ") + name, fields_[i]);
    *out = fields_[i];
    return {};
  }

  Status identifier(size_t i, const char* name, std::string* out) const {
    for (const char c : fields_[i])
      if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '_')
        return wrong(std::string("a-z, 0-9 and _ for ") + name, fields_[i]);
    return word(i, name, out);
  }

  Status count(size_t i, const char* name, int64_t* out) const {
    const std::string_view f = fields_[i];
    const auto [end, error] = std::from_chars(f.data(), f.data() + f.size(), *out);
    if (error != std::errc() || end != f.data() + f.size() || *out < 1)
      return wrong(std::string("a whole number >= 1 for ") + name, f);
    return {};
  }

  Status value(size_t i, const char* name, double* out) const {
    const std::string_view f = fields_[i];
    const auto [end, error] = std::from_chars(f.data(), f.data() + f.size(), *out);
    if (error != std::errc() || end != f.data() + f.size() || !std::isfinite(*out) || *out < 0)
      return wrong(std::string("a number >= 0 for ") + name, f);
    return {};
  }

  // Compared rows must describe the same work, and an implementation must not appear twice.
  Status fits(const Row& r) {
    const std::string note(compared_note(r.note));
    const auto [same, first] =
        work_.try_emplace(std::tuple(r.op, r.model, r.tokens, note), std::tuple(r.bytes, r.flops, line_));
    const auto& [bytes, flops, where] = same->second;
    const std::string as_on = " as on line " + std::to_string(where);
    if (r.bytes != bytes) return wrong("bytes " + number(bytes, 0) + as_on, fields_[9]);
    if (r.flops != flops) return wrong("flops " + number(flops, 0) + as_on, fields_[10]);
    const auto [twin, fresh] = impls_.try_emplace(std::tuple(r.op, r.model, r.tokens, note, r.impl), line_);
    if (!fresh)
      return wrong("one row for " + r.impl + " (there is one on line " + std::to_string(twin->second) + ")",
                   r.impl);
    return {};
  }

  std::string name_, suite_;
  int line_ = 0;
  std::vector<std::string_view> fields_;
  std::vector<Row> rows_;
  std::map<std::tuple<std::string, std::string, int64_t, std::string>, std::tuple<double, double, int>> work_;
  std::map<std::tuple<std::string, std::string, int64_t, std::string, std::string>, int> impls_;
};

}  // namespace

std::string_view compared_note(std::string_view note) { return note.substr(0, note.find(kRemark)); }

std::string_view remark_of(std::string_view note) {
  const size_t at = note.find(kRemark);
  return at == std::string_view::npos ? std::string_view() : note.substr(at + kRemark.size());
}

std::string csv_word(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c == ',' ? ';' : is_plain(c) ? c : ' ';
  return out;
}

Result<std::string> csv_line(const Row& r) {
  std::string out;
  for (const auto& [name, text] : {std::pair{"suite", r.suite},
                                   {"op", r.op},
                                   {"model", r.model},
                                   {"tokens", std::to_string(r.tokens)},
                                   {"impl", r.impl},
                                   {"version", r.version},
                                   {"median_us", number(r.median_us, 4)},
                                   {"p10_us", number(r.p10_us, 4)},
                                   {"p90_us", number(r.p90_us, 4)},
                                   {"bytes", number(r.bytes, 0)},
                                   {"flops", number(r.flops, 0)},
                                   {"note", r.note}}) {
    if (text.find_first_of(",\"\r\n") != std::string::npos)
      return invalid(std::string("csv: ") + name + ": wanted no comma, no quote and one line, found '" +
                     text + "'");
    out += (out.empty() ? "" : ",") + text;
  }
  return out + "\n";
}

Result<std::vector<Row>> parse_csv(std::string_view text, const std::string& name, std::string_view suite) {
  Parser parser(name, std::string(suite));
  int number = 0;
  for (size_t at = 0; at < text.size() || number == 0;) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    at = end + 1;
    if (++number == 1) {
      SLUICE_TRY(parser.header(line));
    } else {
      SLUICE_TRY(parser.row(line, number));
    }
  }
  if (number < 2) return parser.empty();
  return parser.take();
}

}  // namespace sluice::bench
