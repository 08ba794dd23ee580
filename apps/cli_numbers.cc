#include <charconv>

#include "apps/cli.h"
#include "base/printable.h"

namespace sluice::apps {
namespace {

template <class T>
CLI::Validator between(T least, T most, const std::string& wanted) {
  const auto check = [=](const std::string& word) -> std::string {
    T value{};
    const char* const end = word.data() + word.size();
    const auto [at, error] = std::from_chars(word.data(), end, value);
    if (error == std::errc() && at == end && value >= least && value <= most) return "";  // NaN fails
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

CLI::Validator some_text() {
  return CLI::Validator(
      [](const std::string& word) { return word.empty() ? "wanted some text, found none" : ""; }, "");
}

}  // namespace sluice::apps
