// Parses server-sent events from pieces of any size.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace sluice {

// Source: WHATWG HTML, "Server-sent events", 9.2.6. Lines end in LF, CR or CR LF, an empty line ends an event, and the data lines of an event
// are joined by LF. Comments and fields other than data are ignored.
class EventStream {
 public:
  static constexpr size_t kEventBytesMax = 16 << 20;
  // Calls `event` with the data of each event that `bytes` completes. After an event above the limit, the parser ignores all bytes.
  void push(std::string_view bytes, const std::function<void(const std::string& data)>& event);
  bool too_long() const { return too_long_; }  // an event exceeded the limit

 private:
  void end_line(const std::function<void(const std::string&)>& event);
  std::string line_, data_;
  bool has_data_ = false, after_cr_ = false, too_long_ = false;
};

}  // namespace sluice
