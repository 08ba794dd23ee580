#include "apps/serve/server_log.h"

#include <chrono>
#include <cstdio>
#include <ctime>

#include "base/json.h"
#include "base/printable.h"

namespace sluice::apps {
namespace {

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

}  // namespace

std::string log_line(LogFormat format, std::string_view time, std::string_view request, std::string_view text,
                     const LogFields& fields) {
  if (format == LogFormat::kNone) return "";
  if (format == LogFormat::kText) {
    const std::string about = request.empty() ? std::string() : std::string(request) + ' ';
    return std::string(time) + ' ' + printable(about + std::string(text)) + '\n';
  }
  OrderedJson line{{"time", time}};
  if (!request.empty()) line["request_id"] = request;
  line["message"] = text;
  for (const auto& [name, value] : fields)
    std::visit([&, key = name](const auto& v) { line[key] = v; }, value);
  return line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + '\n';
}

void ServerLog::write(std::string_view request, std::string_view text, const LogFields& fields) const {
  if (format_ == LogFormat::kNone) return;
  const std::string line = log_line(format_, utc_now(), request, text, fields);
  std::fwrite(line.data(), 1, line.size(), stderr);  // at once, so that lines of several writers stay whole
}

}  // namespace sluice::apps
