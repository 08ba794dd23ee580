#include "text/template_words.h"

#include <algorithm>

namespace sluice {
namespace {

bool is_name_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

char unescaped(char letter) {
  switch (letter) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    default:
      return letter;
  }
}

class TemplateReader {
 public:
  explicit TemplateReader(std::string_view all) : all_(all) {}

  std::optional<TemplateWords> read() {
    while (at_ < all_.size()) {
      const std::string_view ahead = all_.substr(at_, 2);
      if (ahead == "{#") {
        const size_t end = all_.find("#}", at_ + 2);
        if (end == all_.npos) return {};
        at_ = end + 2;
      } else if (ahead == "{{" || ahead == "{%") {
        if (!tag(ahead == "{{" ? "}}" : "%}")) return {};
      } else {
        words_.has_text =
            words_.has_text || std::string_view(" \t\r\n").find(all_[at_]) == std::string_view::npos;
        ++at_;
      }
    }
    for (auto* list : {&words_.strings, &words_.names}) {
      std::sort(list->begin(), list->end());
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    return std::move(words_);
  }

 private:
  bool tag(std::string_view end) {
    at_ += 2;
    while (at_ < all_.size()) {
      const char c = all_[at_];
      if (all_.substr(at_, 2) == end) return at_ += 2, true;
      if (c == '\'' || c == '"') {
        if (!string(c)) return false;
      } else if (is_name_letter(c)) {
        const size_t begin = at_;
        while (at_ < all_.size() && is_name_letter(all_[at_])) ++at_;
        words_.names.emplace_back(all_.substr(begin, at_ - begin));
      } else {
        ++at_;
      }
    }
    return false;
  }

  bool string(char quote) {
    std::string out;
    for (++at_; at_ < all_.size(); ++at_) {
      if (all_[at_] == quote) {
        words_.strings.push_back(std::move(out));
        return ++at_, true;
      }
      if (all_[at_] == '\\' && at_ + 1 < all_.size())
        out += unescaped(all_[++at_]);
      else
        out += all_[at_];
    }
    return false;
  }

  std::string_view all_;
  size_t at_ = 0;
  TemplateWords words_;
};

bool is_among(const std::vector<std::string>& sorted, std::string_view text) {
  const auto found = std::lower_bound(sorted.begin(), sorted.end(), text);
  return found != sorted.end() && *found == text;
}

}  // namespace

bool TemplateWords::has_string(std::string_view text) const { return is_among(strings, text); }
bool TemplateWords::has_name(std::string_view name) const { return is_among(names, name); }

std::optional<TemplateWords> template_words(std::string_view jinja) { return TemplateReader(jinja).read(); }

}  // namespace sluice
