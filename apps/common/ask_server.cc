#include "apps/common/ask_server.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "apps/common/progress.h"

namespace sluice::apps {

const std::map<std::string, ApiBackend> kBackends = {
    {"openai", ApiBackend::kOpenai}, {"vllm", ApiBackend::kOpenai}, {"openai-chat", ApiBackend::kOpenaiChat}};

Status set_server(const std::string& url, const char* flag, ServerUrl* out) {
  auto parsed = parse_url(url);
  if (!parsed.ok()) return invalid(std::string(flag) + ": " + parsed.status().message);
  *out = std::move(parsed).value();
  if (out->path.ends_with("/v1")) out->path.resize(out->path.size() - 3);
  return {};
}

CLI::Validator word_of_head(const std::string& wanted, const std::string& begin) {
  const auto check = [=](const std::string& word) -> std::string {
    const auto plain = [](char c) { return c > ' ' && c < 127; };
    if (word.starts_with(begin) && std::all_of(word.begin(), word.end(), plain)) return "";
    return "wanted " + wanted + ", found another value";  // does not show the value, which may be a key
  };
  return CLI::Validator(check, "");
}
CLI::Validator key_word() { return word_of_head("a key without spaces and line breaks", ""); }

Status write_text(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (out) return {};
  return {Code::kIo, "cannot write " + path + ": " + std::strerror(errno)};
}

Status can_write(const std::string& flag, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto cannot = [&](const std::string& why) {
    return Status{Code::kIo, flag + ": cannot write " + path + ": " + why};
  };
  if (fs::is_directory(path, error)) return cannot("it is a folder");
  if (fs::exists(path, error))
    return access(path.c_str(), W_OK) == 0 ? Status{} : cannot(std::strerror(errno));
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  if (!fs::is_directory(folder, error)) return cannot("there is no folder " + folder.string());
  return access(folder.c_str(), W_OK | X_OK) == 0 ? Status{} : cannot(std::strerror(errno));
}

std::function<void(int64_t, int64_t)> counter(const char* of, bool quiet) {
  if (quiet || !people_are_watching()) return nullptr;
  return [of](int64_t done, int64_t all) {
    std::fprintf(stderr, "\r%lld of %lld %s\033[K%s", static_cast<long long>(done),
                 static_cast<long long>(all), of, done == all ? "\r\033[K" : "");
  };
}

}  // namespace sluice::apps
