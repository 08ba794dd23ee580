#include "server/server_log.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>

#include "base/json.h"
#include "base/printable.h"
#include "server/memory.h"

namespace sluice {
namespace {

constexpr int64_t kWaitingBytes = 1 << 20;  // limit of unwritten lines
constexpr size_t kTextMax = 4096;

std::string utc_now() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t whole = std::chrono::system_clock::to_time_t(now);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm date{};
  gmtime_r(&whole, &date);
  char day[24], out[40];
  std::strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &date);
  std::snprintf(out, sizeof out, "%s.%03dZ", day, static_cast<int>(ms));
  return out;
}

// Replaces the middle of a long text by the number of bytes left out, without cutting a character.
std::string without_middle(std::string_view text) {
  if (text.size() <= kTextMax) return std::string(text);
  const auto continues = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80; };
  size_t head = kTextMax * 3 / 4, tail = text.size() - kTextMax / 4;
  for (int i = 0; i < 3 && continues(head); ++i) --head;
  for (int i = 0; i < 3 && continues(tail); ++i) ++tail;
  return std::string(text.substr(0, head)) + " ... " + std::to_string(tail - head) + " bytes ... " +
         std::string(text.substr(tail));
}

std::string dropped_line(LogFormat format, int64_t lines) {
  return log_line(
      format, utc_now(), "",
      std::to_string(lines) +
          " lines of the log are missing here: writing to standard error failed, or its reader was too slow",
      {{"lines", lines}});
}

}  // namespace

std::string log_line(LogFormat format, std::string_view time, std::string_view request, std::string_view text,
                     const LogFields& fields) {
  if (format == LogFormat::kNone) return "";
  if (format == LogFormat::kText) {
    const std::string about = request.empty() ? std::string() : std::string(request) + ' ';
    return std::string(time) + ' ' + printable(about + without_middle(text)) + '\n';
  }
  OrderedJson line{{"time", time}};
  if (!request.empty()) line["request_id"] = request;
  line["message"] = without_middle(text);
  for (const auto& [name, value] : fields)
    if (const auto* word = std::get_if<std::string>(&value)) {
      line[name] = without_middle(*word);
    } else {
      std::visit([&, key = name](const auto& v) { line[key] = v; }, value);
    }
  return line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + '\n';
}

ServerLog::ServerLog(LogFormat format) : format_(format) {
  if (format != LogFormat::kNone)
    lines_ = std::make_unique<LineWriter>(STDERR_FILENO, kWaitingBytes,
                                          [format](int64_t lines) { return dropped_line(format, lines); });
}

void ServerLog::write(std::string_view request, std::string_view text, const LogFields& fields) noexcept {
  if (!lines_) return;
  if (!has_memory_for([&] { lines_->write(log_line(format_, utc_now(), request, text, fields)); }))
    lines_->drop();
}

void ServerLog::flush() {
  if (lines_) (void)lines_->flush(std::chrono::seconds(1));
}

}  // namespace sluice
