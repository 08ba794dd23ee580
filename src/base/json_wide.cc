// Finds integers in a JSON text that parsing would round.
#include <algorithm>

#include "base/json.h"
#include "base/printable.h"

namespace sluice {
namespace {

// A quick check that lets most texts skip the reader.
bool has_long_run_of_digits(std::string_view text) {
  constexpr int kDigits = 19;  // number of digits of 2^63
  int run = 0;
  for (const char c : text) {
    run = c >= '0' && c <= '9' ? run + 1 : 0;
    if (run == kDigits) return true;
  }
  return false;
}

bool is_bound(const std::string& name) {
  constexpr const char* kBounds[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                     "multipleOf"};
  return std::find(std::begin(kBounds), std::end(kBounds), name) != std::end(kBounds);
}

// Whether the text is a double in its shortest form: true for 18446744073709552000, but not for 18446744073709551616.
bool is_written_double(double value, const std::string& text) {
  const auto digits = [](std::string number) {
    number.resize(std::min(number.find('e'), number.size()));
    std::erase_if(number, [](char c) { return c == '.' || c == '-'; });
    while (number.ends_with('0')) number.pop_back();
    return number;
  };
  return digits(scientific_text(value)) == digits(text);
}

class WideReader final : public nlohmann::json_sax<Json> {
 public:
  explicit WideReader(std::span<const std::string> path) : path_(path) {}
  std::optional<WideInteger> found;

  bool null() override { return next(); }
  bool boolean(bool) override { return next(); }
  bool number_integer(int64_t) override { return next(); }
  bool number_unsigned(uint64_t) override { return next(); }
  bool number_float(double value, const std::string& text) override {
    // The library reads an integer as a double if no integer type holds it.
    const bool is_integer = text.find_first_not_of("-0123456789") == std::string::npos;
    const bool holds = !open_.empty() && is_bound(open_.back().name) && is_written_double(value, text);
    if (is_integer && !holds && is_within()) {
      found = WideInteger{place(), text};
      return false;
    }
    return next();
  }
  bool string(std::string&) override { return next(); }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(size_t) override { return open(false); }
  bool start_array(size_t) override { return open(true); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    open_.back().name = name;
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception&) override { return false; }

 private:
  // An open container, and the member being read.
  struct Level {
    bool is_array;
    size_t index = 0;
    std::string name = {};
    std::string step() const { return is_array ? std::to_string(index) : name; }
  };
  bool next() {
    if (!open_.empty()) ++open_.back().index;
    return true;
  }
  bool open(bool is_array) {
    open_.push_back({is_array});
    return true;
  }
  bool close() {
    open_.pop_back();
    return next();
  }
  bool is_within() const {
    return open_.size() >= path_.size() &&
           std::equal(path_.begin(), path_.end(), open_.begin(),
                      [](const std::string& step, const Level& level) { return step == level.step(); });
  }
  std::string place() const {
    std::string out;
    for (const Level& level : open_)
      out += level.is_array ? "[" + level.step() + "]" : (out.empty() ? "" : ".") + level.name;
    return out;
  }
  std::span<const std::string> path_;
  std::vector<Level> open_;
};

}  // namespace

std::optional<WideInteger> wide_integer(std::string_view text, std::span<const std::string> path) {
  if (!has_long_run_of_digits(text)) return {};
  WideReader reader(path);
  (void)Json::sax_parse(text.begin(), text.end(), &reader);
  return std::move(reader.found);
}

}  // namespace sluice
