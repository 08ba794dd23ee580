#include "text/harmony_tools.h"

#include <algorithm>
#include <set>

#include "base/json.h"
#include "base/printable.h"
#include "base/utf8.h"

namespace sluice {
namespace {

using Schema = OrderedJson;
constexpr std::string_view kDeeper = "    ", kVariant = "   ";

std::string dump(const Schema& value) { return value.dump(-1, ' ', false, Schema::error_handler_t::replace); }

const Schema* member(const Schema& schema, const char* key) {
  const auto found = schema.is_object() ? schema.find(key) : schema.end();
  return found == schema.end() || found->is_null() ? nullptr : &*found;
}
const std::string* words(const Schema& schema, const char* key) {
  const Schema* at = member(schema, key);
  return at && at->is_string() ? &at->get_ref<const std::string&>() : nullptr;
}
const Schema* list(const Schema& schema, const char* key) {
  const Schema* at = member(schema, key);
  return at && at->is_array() ? at : nullptr;
}
bool has_enum(const Schema& schema) {
  const Schema* values = list(schema, "enum");
  return values && !values->empty();
}

void add_comment(const std::string& text, const std::string& indent, std::string* out) {
  *out += indent + "// " + text + "\n";
}
// Writes each line of `text` as a TypeScript comment.
void add_comments(const std::string& text, std::string* out) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    add_comment(text.substr(at, end - at), "", out);
    at = end + 1;
  }
}

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : between) + part;
  return out;
}

// Returns for example "default: 3". A string is quoted unless the schema has an enum.
std::string default_of(const Schema& schema) {
  const Schema* value = member(schema, "default");
  if (!value) return {};
  return "default: " + (value->is_string() && has_enum(schema) ? value->get<std::string>() : dump(*value));
}

std::string type_of(const Schema& schema, const std::string& indent);

std::string nullable_type_of(const Schema& schema, const std::string& indent) {
  std::string type = type_of(schema, indent);
  const Schema* nullable = member(schema, "nullable");
  const bool may_be_null = nullable && nullable->is_boolean() && nullable->get<bool>();
  if (may_be_null && type.find("null") == std::string::npos) type += " | null";
  return type;
}

std::string variant_of(const Schema& schema, const std::string& indent, bool described) {
  std::vector<std::string> notes;
  const std::string* description = words(schema, "description");
  if (description && !described) notes.push_back(*description);
  if (const std::string value = default_of(schema); !value.empty()) notes.push_back(value);
  const std::string type = nullable_type_of(schema, indent + std::string(kVariant));
  return indent + " | " + type + (notes.empty() ? "" : " // " + joined(notes, " "));
}

std::string one_of(const Schema& variants, const std::string& indent) {
  std::string out;
  for (const Schema& variant : variants) out += "\n" + variant_of(variant, indent, false);
  return out;
}

void add_variants(const std::string& name, const Schema& property, const Schema& variants,
                  const std::string& indent, std::string* out) {
  const std::string* about = words(property, "description");
  const std::string* first = variants.empty() ? nullptr : words(variants[0], "description");
  const bool same = about && first && *about == *first;
  if (about && !same) add_comment(*about, indent, out);
  if (const std::string value = default_of(property); !value.empty()) add_comment(value, indent, out);
  *out += indent + name + ":\n";
  for (size_t i = 0; i < variants.size(); ++i) {
    const std::string* own = words(variants[i], "description");
    const bool described = (i == 0 && about && !same) || (own && about && *own == *about);
    *out += variant_of(variants[i], indent, described) + "\n";
  }
  *out += indent + ",\n";
}

void add_property(const std::string& key, const Schema& property, bool required, const std::string& indent,
                  std::string* out) {
  const std::string name = key + (required ? "" : "?");
  if (const std::string* title = words(property, "title"))
    add_comment(*title + "\n" + indent + "//", indent, out);
  const Schema* variants = list(property, "oneOf");
  const std::string* about = words(property, "description");
  if (about && !variants) add_comment(*about, indent, out);
  if (const Schema* examples = list(property, "examples"); examples && !examples->empty()) {
    *out += indent + "// Examples:\n";
    for (const Schema& example : *examples)
      if (example.is_string()) *out += indent + "// - \"" + example.get<std::string>() + "\"\n";
  }
  if (variants) return add_variants(name, property, *variants, indent, out);
  *out += indent + name + ": " + nullable_type_of(property, indent + std::string(kDeeper)) + ",";
  if (const std::string value = default_of(property); !value.empty()) *out += " // " + value;
  *out += "\n";
}

std::string object_of(const Schema& schema, const std::string& indent) {
  std::string out;
  if (const std::string* about = words(schema, "description")) add_comment(*about, indent, &out);
  out += "{\n";
  std::set<std::string_view> required;
  if (const Schema* names = list(schema, "required"))
    for (const Schema& name : *names)
      if (name.is_string()) required.insert(name.get_ref<const std::string&>());
  const Schema* properties = member(schema, "properties");
  if (properties && properties->is_object())
    for (const auto& [key, property] : properties->items())
      add_property(key, property, required.contains(key), indent, &out);
  return out + indent + "}";
}

std::string string_of(const Schema& schema) {
  std::vector<std::string> values;
  if (const Schema* all = list(schema, "enum"))
    for (const Schema& value : *all)
      if (value.is_string()) values.push_back("\"" + value.get<std::string>() + "\"");
  return values.empty() ? "string" : joined(values, " | ");
}

std::string type_of(const Schema& schema, const std::string& indent) {
  if (const Schema* variants = list(schema, "oneOf")) return one_of(*variants, indent);
  if (const Schema* types = list(schema, "type")) {
    std::vector<std::string> names;
    for (const Schema& type : *types)
      if (type.is_string()) names.push_back(type == "integer" ? "number" : type.get<std::string>());
    if (!names.empty()) return joined(names, " | ");
  }
  const std::string* type = words(schema, "type");
  if (!type) return "any";
  if (*type == "object") return object_of(schema, indent);
  if (*type == "string") return string_of(schema);
  if (*type == "number" || *type == "integer") return "number";
  if (*type == "boolean") return "boolean";
  if (*type != "array") return "any";
  const Schema* items = member(schema, "items");
  return items ? type_of(*items, indent) + "[]" : "Array<any>";
}

}  // namespace

Result<std::string> functions_section(const std::vector<FunctionTool>& functions) {
  std::string out = "# Tools\n\n## functions\n\nnamespace functions {\n\n";
  for (const FunctionTool& f : functions) {
    if (!is_function_name(f.name))
      return invalid("function: wanted a name of 1 to " + std::to_string(kFunctionNameMax) +
                     " letters, digits, '_' and '-', found '" + shortened(valid_utf8(f.name)) + "'");
    add_comments(f.description, &out);
    if (f.parameters.empty()) {
      out += "type " + f.name + " = () => any;\n\n";
      continue;
    }
    const auto parsed = parse_ordered_json(f.parameters, "parameters");
    if (!parsed.ok()) return invalid("function " + f.name + ": " + parsed.status().message);
    const Schema& schema = parsed.value();
    if (!schema.is_object())
      return invalid("function " + f.name + ": wanted parameters that are a JSON object, found '" +
                     valid_utf8(f.parameters.substr(0, 40)) + "'");
    out += "type " + f.name + " = (_: " + type_of(schema, "") + ") => any;\n\n";
  }
  return out + "} // namespace functions";
}

std::string call_header(const std::string& name) {
  return "<|channel|>commentary to=" + function_recipient(name) + " <|constrain|>json<|message|>";
}

}  // namespace sluice
