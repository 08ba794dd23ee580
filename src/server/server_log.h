// What a server tells those who run it: lines on standard error.
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
  kText,  // time, id of the request, text
  kJson,  // an object: time, request_id, message, and what of the message is a number or a name by itself
  kNone,
};

using LogFields = std::vector<std::pair<const char*, std::variant<int64_t, double, std::string>>>;

// Text is foreign in part: control characters are escaped, bytes that are no UTF-8 replaced in JSON, and the middle of what is longer
// than some kilobytes is left out.
std::string log_line(LogFormat format, std::string_view time, std::string_view request, std::string_view text,
                     const LogFields& fields);

// From any thread. Nobody waits for who reads it: lines that are not read in time are dropped, and a line says how many.
class ServerLog {
 public:
  // Throws std::system_error where the system has no thread for it.
  explicit ServerLog(LogFormat format);
  // `request`: the id of the one that it is about; empty: of none. `fields` stand in JSON alone.
  void write(std::string_view request, std::string_view text, const LogFields& fields = {}) noexcept;
  void flush();  // waits a second at most until all lines are written
  int64_t dropped() const { return lines_ ? lines_->dropped() : 0; }

 private:
  LogFormat format_;
  std::unique_ptr<LineWriter> lines_;  // none: of LogFormat::kNone
};

}  // namespace sluice
