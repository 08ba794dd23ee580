// The words that a chat template is made of. A template is a program; what it writes it has as strings.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct TemplateWords {
  std::vector<std::string> strings;  // sorted, each once; escapes resolved
  std::vector<std::string> names;    // likewise: of variables, attributes, filters, keywords
  bool has_text = false;             // outside of its tags, other than white space
  bool has_string(std::string_view text) const;
  bool has_name(std::string_view name) const;
};

// None: a tag or a string does not end.
std::optional<TemplateWords> template_words(std::string_view jinja);

}  // namespace sluice
