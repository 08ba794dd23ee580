// The string literals and names of a chat template (Jinja), by which Sluice recognizes the template's chat format.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct TemplateWords {
  std::vector<std::string> strings;  // sorted and unique, escapes resolved
  std::vector<std::string> names;    // variables, attributes, filters and keywords; sorted and unique
  bool has_text = false;             // whether the template has text other than white space outside its tags
  bool has_string(std::string_view text) const;
  bool has_name(std::string_view name) const;
};

// nullopt: a tag or a string is not closed.
std::optional<TemplateWords> template_words(std::string_view jinja);

}  // namespace sluice
