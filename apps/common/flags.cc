#include <charconv>

#include "apps/common/flags.h"
#include "base/printable.h"

namespace sluice::apps {

// Names the first unknown option of `app` and the nearest known option.
Status unknown_flag(const CLI::App& app) {
  std::vector<std::string> left = app.remaining();
  // "--" itself is not unknown; all words after it are arguments.
  if (const auto end = std::find(left.begin(), left.end(), "--"); end != left.end()) left.erase(end);
  if (left.empty()) return {};
  const auto flag = std::find_if(left.begin(), left.end(), [](const std::string& w) { return w[0] == '-'; });
  if (flag == left.end()) return invalid("unexpected argument '" + left.front() + "'");
  // Long names also work with one dash.
  const std::string dashes = flag->starts_with("--") || flag->size() == 2 ? "--" : "-";
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back(dashes + name);
  return unknown_name("flag", flag->substr(0, flag->find('=')), known);
}

namespace {

// The text before and after `mark`; nullopt without the mark.
std::optional<std::pair<std::string, std::string>> split_at(const std::string& text, std::string_view mark) {
  const size_t at = text.find(mark);
  if (at == std::string::npos) return {};
  return std::pair(text.substr(0, at), text.substr(at + mark.size()));
}

std::string values_text(const std::string& count) { return count == "1" ? "a value" : count + " values"; }

}  // namespace

std::string wanted_and_found(const CLI::ParseError& error) {
  const std::string said = error.what();
  constexpr std::string_view kReceived = " required but received ";
  if (const auto most = split_at(said, ": At Most "))
    if (const auto counts = split_at(most->second, kReceived))
      return most->first + ": wanted " +
             (counts->first == "1" ? "once" : "at most " + counts->first + " times") + ", found " +
             counts->second + " times";
  if (const auto least = split_at(said, ": At least "))
    if (const auto counts = split_at(least->second, kReceived))
      return least->first + ": wanted at least " + values_text(counts->first) + ", found " + counts->second;
  if (error.get_name() == "ArgumentMismatch")  // "--flag: 1 required TEXT missing"
    if (const auto flag = split_at(said, ": "))
      if (const auto count = split_at(flag->second, " required "))
        return flag->first + ": wanted " + values_text(count->first) + ", found " +
               (count->first == "1" ? "none" : "fewer");
  if (const auto both = split_at(said, " excludes "); both && error.get_name() == "ExcludesError")
    return both->first + ": wanted no " + both->second + " next to it, found both";
  if (const auto both = split_at(said, " requires "); both && error.get_name() == "RequiresError")
    return both->first + ": needs " + both->second + ", found none";
  if (const auto words = split_at(said, " not expected: ");
      words && said.starts_with("The following argument"))
    return "unexpected argument '" + words->second + "'";
  if (const auto flag = split_at(said, ": "); flag && error.get_name() == "ValidationError")
    if (const auto value = split_at(flag->second, " not in {"); value && value->second.ends_with('}')) {
      std::string known = value->second.substr(0, value->second.size() - 1);
      std::replace(known.begin(), known.end(), ',', ' ');
      return "unknown " + flag->first + " '" + value->first + "'; known: " + known;
    }
  return said;
}

Status set_apart_values(const CLI::App& root, std::vector<std::string>* words) {
  const CLI::App* app = &root;
  std::vector<std::string> out;
  int values = 0;  // how many of the next words are values of the flag before them
  bool flags_end = false;
  for (const std::string& word : *words) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const bool is_value = values > 0 || flags_end;
    values = std::max(0, values - 1);
    flags_end |= !is_value && word == "--";
    if (const auto named = app->get_subcommands([&](const CLI::App* a) { return a->get_name() == word; });
        !is_value && !named.empty())
      app = named.front();
    const bool is_long = name.starts_with("--"), is_short = name.size() == 2 && name[0] == '-';
    const CLI::Option* option = !is_value && (is_long || is_short) ? app->get_option_no_throw(name) : nullptr;
    if (option != nullptr && equals == std::string::npos) values = option->get_items_expected_min();
    if (option == nullptr || equals == std::string::npos) {
      out.push_back(word);
      continue;
    }
    const std::string value = word.substr(equals + 1);
    if (option->get_items_expected_max() == 0 && (value.empty() || is_short))
      return invalid(name + ": wanted no value, found '" + word + "'");
    if (value.empty() || is_short) {
      out.insert(out.end(), {name, value});
    } else {
      out.push_back(word);
    }
  }
  *words = std::move(out);
  return {};
}

namespace {

template <class T>
CLI::Validator between(T minimum, T maximum, const std::string& wanted) {
  const auto check = [=](const std::string& word) -> std::string {
    T value{};
    const char* const end = word.data() + word.size();
    const auto [at, error] = std::from_chars(word.data(), end, value);
    // These comparisons reject NaN.
    if (error == std::errc() && at == end && value >= minimum && value <= maximum) return "";
    return "wanted " + wanted + ", found '" + word + "'";
  };
  return CLI::Validator(check, "");
}

}  // namespace

CLI::Validator integer_between(int64_t minimum, int64_t maximum) {
  return between(minimum, maximum,
                 maximum == INT64_MAX
                     ? "an integer of at least " + std::to_string(minimum)
                     : "an integer from " + std::to_string(minimum) + " to " + std::to_string(maximum));
}

CLI::Validator number_between(double minimum, double maximum) {
  return between(minimum, maximum, "a number from " + number_text(minimum) + " to " + number_text(maximum));
}

CLI::Validator seed_number() { return between<uint64_t>(0, UINT64_MAX, "an integer from 0 to 2^64 - 1"); }

CLI::Option* add_counts(CLI::App* app, const std::string& flag, std::vector<int64_t>* counts, int64_t minimum,
                        int64_t maximum, const std::string& says) {
  const auto take = [=](const std::string& list) {
    counts->clear();
    for (size_t at = 0; at <= list.size();) {
      const size_t end = std::min(list.find(',', at), list.size());
      const std::string word = list.substr(at, end - at);
      if (const std::string wrong = integer_between(minimum, maximum)(word); !wrong.empty())
        throw CLI::ValidationError(flag, wrong);
      counts->push_back(std::stoll(word));
      at = end + 1;
    }
  };
  CLI::Option* option = app->add_option_function<std::string>(flag, take, says)->type_name("INT ...");
  std::string all;
  for (const int64_t count : *counts) all += (all.empty() ? "" : ",") + std::to_string(count);
  return all.empty() ? option : option->default_str("[" + all + "]");
}

CLI::Validator some_text() {
  return CLI::Validator(
      [](const std::string& word) { return word.empty() ? "wanted some text, found none" : ""; }, "");
}

}  // namespace sluice::apps
