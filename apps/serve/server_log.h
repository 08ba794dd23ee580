// What a server tells those who run it: lines on standard error.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace sluice::apps {

enum class LogFormat : uint8_t {
  kText,  // time, id of the request, text
  kJson,  // an object: time, request_id, message, and what of the message is a number or a name by itself
  kNone,
};

using LogFields = std::vector<std::pair<const char*, std::variant<int64_t, double, std::string>>>;

// Text is foreign in part: control characters are escaped, and bytes that are no UTF-8 replaced in JSON.
std::string log_line(LogFormat format, std::string_view time, std::string_view request, std::string_view text,
                     const LogFields& fields);

class ServerLog {
 public:
  explicit ServerLog(LogFormat format) : format_(format) {}
  // `request`: the id of the one that it is about; empty: of none. `fields` stand in JSON alone.
  void write(std::string_view request, std::string_view text, const LogFields& fields = {}) const;

 private:
  LogFormat format_;
};

}  // namespace sluice::apps
