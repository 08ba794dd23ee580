#include "client/event_stream.h"

namespace sluice {

void EventStream::push(std::string_view bytes, const std::function<void(const std::string&)>& event) {
  for (const char c : bytes) {
    if (line_.size() + data_.size() > kEventBytesMax) too_long_ = true;
    if (too_long_) break;
    const bool second = c == '\n' && after_cr_;
    after_cr_ = c == '\r';
    if (second) continue;
    if (c == '\n' || c == '\r') {
      end_line(event);
    } else {
      line_ += c;
    }
  }
  if (too_long_) line_ = data_ = std::string();
}

void EventStream::end_line(const std::function<void(const std::string&)>& event) {
  constexpr std::string_view kData = "data:";
  if (line_.empty()) {
    if (has_data_) event(data_);
    data_.clear();
    has_data_ = false;
  } else if (line_.starts_with(kData)) {
    if (has_data_) data_ += '\n';
    has_data_ = true;
    data_ += std::string_view(line_).substr(kData.size() +
                                            (line_.size() > kData.size() && line_[kData.size()] == ' '));
  }
  line_.clear();
}

}  // namespace sluice
