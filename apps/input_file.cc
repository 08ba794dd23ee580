#include "apps/input_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>

namespace sluice::apps {

std::string text_of(std::istream& in) {
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

Result<std::string> file_text(const std::string& path, const std::string& what) {
  std::error_code error;
  std::ifstream file;
  if (!std::filesystem::is_directory(path, error)) file.open(path, std::ios::binary);
  if (!file.is_open())
    return Status{Code::kIo, path + ": wanted a file with " + what + ", found none that can be read"};
  return text_of(file);
}

}  // namespace sluice::apps
