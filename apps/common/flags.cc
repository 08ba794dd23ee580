#include <charconv>

#include "apps/common/flags.h"
#include "base/printable.h"

namespace sluice::apps {

// Reports the first unknown option and the nearest known one.
Status unknown_flag(const CLI::App& app) {
  std::vector<std::string> left = app.remaining();
  // All words after "--" are arguments.
  if (const auto end = std::find(left.begin(), left.end(), "--"); end != left.end()) left.erase(end);
  if (left.empty()) return {};
  const auto flag = std::find_if(left.begin(), left.end(), [](const std::string& w) { return w[0] == '-'; });
  if (flag == left.end()) return invalid("unexpected argument '" + left.front() + "'");
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  return unknown_name("flag", flag->substr(0, flag->find('=')), known);
}
namespace {

template <class T>
CLI::Validator between(T least, T most, const std::string& wanted) {
  const auto check = [=](const std::string& word) -> std::string {
    T value{};
    const char* const end = word.data() + word.size();
    const auto [at, error] = std::from_chars(word.data(), end, value);
    if (error == std::errc() && at == end && value >= least && value <= most) return "";  // NaN fails, too
    return "wanted " + wanted + ", found '" + word + "'";
  };
  return CLI::Validator(check, "");
}

}  // namespace

CLI::Validator integer_between(int64_t least, int64_t most) {
  return between(least, most,
                 most == INT64_MAX
                     ? "an integer of at least " + std::to_string(least)
                     : "an integer from " + std::to_string(least) + " to " + std::to_string(most));
}

CLI::Validator number_between(double least, double most) {
  return between(least, most, "a number from " + number_text(least) + " to " + number_text(most));
}

CLI::Validator seed_number() { return between<uint64_t>(0, UINT64_MAX, "an integer from 0 to 2^64 - 1"); }

CLI::Option* add_counts(CLI::App* app, const std::string& flag, std::vector<int64_t>* counts, int64_t least,
                        int64_t most, const std::string& says) {
  const auto take = [=](const std::string& list) {
    counts->clear();
    for (size_t at = 0; at <= list.size();) {
      const size_t end = std::min(list.find(',', at), list.size());
      const std::string word = list.substr(at, end - at);
      if (const std::string wrong = integer_between(least, most)(word); !wrong.empty())
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
