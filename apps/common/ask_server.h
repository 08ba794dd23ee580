// Shared by the commands that send requests to a server: flags for the server's address and key, and result files.
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

// Parses the server's URL. A trailing /v1 is dropped, because the paths of endpoints include it.
Status set_server(const std::string& url, const char* flag, ServerUrl* out);

// Validates text that becomes part of a request's HTTP headers or path.
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
// Checks that write_text() can probably write to `path`, without writing.
Status can_write(const std::string& flag, const std::string& path);
// Returns a function that redraws a progress line with the number of finished answers.
std::function<void(int64_t, int64_t)> counter(const char* of, bool quiet);

}  // namespace sluice::apps
