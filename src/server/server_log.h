// The server's log: lines on standard error.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "server/http/line_writer.h"

namespace sluice {

enum class LogFormat : uint8_t {
  kText,  // time, request id, message
  kJson,  // an object with time, request_id, message, and the message's numbers and names as fields
  kNone,
};

using LogFields = std::vector<std::pair<const char*, std::variant<int64_t, double, std::string>>>;

// Messages may contain untrusted text. So control characters are escaped, invalid UTF-8 is replaced in JSON, and the middle of a message
// longer than a few kilobytes is left out.
std::string log_line(LogFormat format, std::string_view time, std::string_view request, std::string_view text,
                     const LogFields& fields);

// Thread-safe. write() never blocks. If standard error is read too slowly, lines are dropped, and a later line reports their number.
class ServerLog {
 public:
  // Throws std::system_error if the writing thread cannot be created.
  explicit ServerLog(LogFormat format);
  // `request`: the id of the request, or empty. `fields` appear only in JSON.
  void write(std::string_view request, std::string_view text, const LogFields& fields = {}) noexcept;
  void flush();  // waits until all lines are written, at most one second
  int64_t dropped() const { return lines_ ? lines_->dropped() : 0; }

 private:
  LogFormat format_;
  std::unique_ptr<LineWriter> lines_;  // null for LogFormat::kNone
};

}  // namespace sluice
