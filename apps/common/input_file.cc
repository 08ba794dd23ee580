#include "apps/common/input_file.h"

#include <cerrno>
#include <cstring>
#include <memory>

namespace sluice::apps {
namespace {

// as `end`: equals no byte and not EOF, so that read_until() reads to the end of the file
constexpr int kNoByte = -2;

// Reads up to and including `end`, or to the end of the file.
Result<std::string> read_until(int end, std::FILE* in, const std::string& place) {
  std::string out;
  errno = 0;
  for (int c = std::getc(in); c != EOF; c = std::getc(in)) {
    if (std::ssize(out) == kInputBytesMax)
      return Status{Code::kCorrupt,
                    place + ": wanted at most " + std::to_string(kInputBytesMax) + " bytes, found more"};
    out += static_cast<char>(c);
    if (c == end) break;
  }
  if (std::ferror(in)) return Status{Code::kIo, place + ": cannot be read: " + std::strerror(errno)};
  return out;
}

void drop_line_end(std::string* text) {
  if (!text->ends_with('\n')) return;
  text->pop_back();
  if (text->ends_with('\r')) text->pop_back();
}

}  // namespace

Result<std::string> text_of(std::FILE* in, const std::string& place) {
  auto text = read_until(kNoByte, in, place);
  if (text.ok()) drop_line_end(&text.value());
  return text;
}

Result<std::string> file_text(const std::string& path, const std::string& what) {
  const auto close = [](std::FILE* f) { std::fclose(f); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rbe"), close);
  if (file) {
    auto text = text_of(file.get(), path);
    if (text.ok() || text.status().code != Code::kIo) return text;
  }
  return Status{Code::kIo, path + ": cannot read " + what + ": " + std::strerror(errno)};
}

Result<std::optional<std::string>> next_line(std::FILE* in, const std::string& place) {
  auto line = read_until('\n', in, place);
  if (!line.ok()) return line.status();
  if (line.value().empty()) return std::optional<std::string>();
  drop_line_end(&line.value());
  return std::optional(std::move(line).value());
}

}  // namespace sluice::apps
