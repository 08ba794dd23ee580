// What the commands that ask a server share: its address and keys on a command line, and the files of results.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "client/api_client.h"

namespace sluice::apps {

constexpr double kSecondsMax = 1e6;
extern const std::map<std::string, ApiBackend> kBackends;

// Endpoints begin with /v1, so what ends in it means its parent.
Status set_server(const std::string& url, const char* flag, ServerUrl* out);

// What goes into the head of a request as it stands.
CLI::Validator word_of_head(const std::string& wanted, const std::string& begin);
CLI::Validator key_word();

template <class Value>
CLI::Option* add_word(CLI::App* app, const std::string& flag, const std::map<std::string, Value>& words,
                      Value* value, const std::string& says) {
  std::vector<std::string> known;
  for (const auto& [word, meant] : words) known.push_back(word);
  return app
      ->add_option_function<std::string>(
          flag, [value, words](const std::string& word) { *value = words.at(word); }, says)
      ->check(CLI::IsMember(known));
}

Status write_text(const std::string& path, const std::string& text);
// That write_text() could write there, as far as can be told without doing it.
Status can_write(const std::string& flag, const std::string& path);
// A line that is drawn again with each answer, for people.
std::function<void(int64_t, int64_t)> counter(const char* of, bool quiet);

}  // namespace sluice::apps
