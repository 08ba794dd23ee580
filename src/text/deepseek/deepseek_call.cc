#include "text/deepseek/deepseek_call.h"

#include <utility>

namespace sluice {
namespace {

constexpr std::string_view kCallBlanks = " \t\r\n", kFenceMark = "```";

bool is_call_blank(char c) { return kCallBlanks.find(c) != kCallBlanks.npos; }

std::string without_blanks(std::string_view text) {
  const size_t begin = text.find_first_not_of(kCallBlanks);
  if (begin == text.npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kCallBlanks) + 1 - begin));
}

}  // namespace

std::string DeepSeekCall::push(std::string_view text) {
  all_ += text;
  std::string out;
  for (const char c : text) take(c, &out);
  if (!out.empty()) has_arguments_ = true;
  return out;
}

bool DeepSeekCall::separate(std::string_view piece) {
  if (place_ != Place::kHead) return false;
  all_ += piece;
  const std::string head = without_blanks(std::exchange(head_, {}));
  if (form_ == Form::kFenced) {
    if (head != "function") stray_ = head;
    place_ = Place::kName;
    return true;
  }
  head_ = head;
  set_name();
  return true;
}

void DeepSeekCall::set_name() {
  std::string name = without_blanks(std::exchange(head_, {}));
  if (!name.empty()) name_ = std::move(name);
  place_ = Place::kBeforeArguments;
}

void DeepSeekCall::end_fence() {
  const std::string line = without_blanks(std::exchange(head_, {}));
  if (!line.empty() && line != "```" && line != "```json") stray_ += line;
  place_ = Place::kArguments;
}

void DeepSeekCall::take(char c, std::string* out) {
  switch (place_) {
    case Place::kHead:
      head_ += c;
      return;
    case Place::kName:
      if (c != '\n') head_ += c;
      // Line breaks before the name are not part of it.
      else if (!without_blanks(head_).empty())
        set_name();
      return;
    case Place::kBeforeArguments:
      if (is_call_blank(c)) return;
      // A backtick begins a fence, because JSON never begins with a backtick.
      place_ = c == '`' ? Place::kFence : Place::kArguments;
      return take(c, out);
    case Place::kFence:
      if (c != '\n' && c != '{') {
        head_ += c;
        return;
      }
      end_fence();
      return c == '{' ? take(c, out) : void();
    case Place::kArguments:
      if (!name_) return;
      held_ += c;
      if (is_call_blank(c) || c == '`') return;
      // Blanks before the first character are not part of the arguments.
      if (out->empty() && !has_arguments_) held_.erase(0, held_.find_first_not_of(kCallBlanks));
      *out += std::exchange(held_, {});
      return;
  }
}

std::string DeepSeekCall::finish(End end) {
  if (place_ == Place::kName) set_name();
  if (place_ == Place::kFence && end == End::kClosed) end_fence();
  const std::string marks = without_blanks(held_);
  const bool is_cut_mark = end == End::kCutOff && marks.size() < kFenceMark.size();
  if (!marks.empty() && marks != kFenceMark && !is_cut_mark) stray_ += marks;
  if (!name_ || has_arguments_ || end == End::kCutOff) return {};
  return "{}";
}

}  // namespace sluice
