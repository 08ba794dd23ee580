#include "server/requests/structure.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr size_t kChoicesMax = 1000;

constexpr const char* kUnnamed = "answer";  // shown to the model if a schema has no name

class StructureReader {
 public:
  StructureReader(ApiFields* fields, std::string_view body, ApiRequest* out)
      : fields_(fields), body_(body), out_(out) {}

  void all() {
    if (const auto at = fields_->take("response_format")) response_format(*at);
    if (const auto at = fields_->take("structured_outputs")) group(*at, "structured_outputs");
    for (const auto& [field, kind] : kFields) {
      const auto at = fields_->take(field);
      // To llama.cpp an empty grammar means no grammar, and its clients send all fields, including those with default values.
      if (at && !(at->value() == "" && field == std::string_view("grammar"))) one(kind, *at, {field});
    }
    for (const auto& [field, neutral] : kUnsupported) fields_->refuse(field, neutral);
    fields_->skip("guided_decoding_backend");
  }
  void format_of_response(const JsonAt& at) { response_format(at, Style::kResponse); }

 private:
  enum class Style : uint8_t { kChat, kResponse };
  enum class Kind : uint8_t { kSchema, kRegex, kChoice, kGrammar };
  enum class Values : uint8_t { kAny, kObjects };
  using Path = std::vector<std::string>;
  struct Name {
    const char* name;
    Kind kind;
  };
  // Fields of vLLM, llama.cpp and SGLang.
  static constexpr Name kFields[] = {{"guided_json", Kind::kSchema},   {"guided_regex", Kind::kRegex},
                                     {"guided_choice", Kind::kChoice}, {"guided_grammar", Kind::kGrammar},
                                     {"json_schema", Kind::kSchema},   {"grammar", Kind::kGrammar},
                                     {"regex", Kind::kRegex},          {"ebnf", Kind::kGrammar}};
  static constexpr Name kOfGroup[] = {{"json", Kind::kSchema},
                                      {"regex", Kind::kRegex},
                                      {"choice", Kind::kChoice},
                                      {"grammar", Kind::kGrammar}};
  static constexpr std::pair<const char*, const char*> kUnsupported[] = {
      {"grammar_lazy", "[false]"},  // of llama.cpp
      {"structural_tag", "[]"},
      {"guided_whitespace_pattern", "[]"}};
  static constexpr std::pair<const char*, const char*> kUnsupportedOfGroup[] = {
      {"structural_tag", "[]"},
      {"whitespace_pattern", "[]"},
      {"disable_any_whitespace", "[false]"},
      {"disable_additional_properties", "[false]"}};

  void need(const JsonAt& at, GrammarSource source) {
    if (out_->structure)
      return fields_->fail(at, "null when " + out_->structure_field +
                                   " is set, because only one field may constrain the answer");
    out_->structure = std::move(source);
    out_->structure_field = field_of(at);
  }

  // The JSON text of the value at `path`, with its keys in the order of the body. If the value is a string, that string is the text.
  std::string text_of(const Path& path) {
    // The text is written from parsed values. Parsing rounds an integer of more than 64 bits to a double, so it is rejected.
    if (const auto wide = wide_integer(body_, path)) return fields_->fail(wrong_width(*wide)), "";
    const OrderedJson member = in_order(body_, path.front());
    const OrderedJson* value = &member;
    for (size_t i = 1; i < path.size(); ++i) value = &value->at(path[i]);
    return value->is_string() ? value->get<std::string>() : value->dump();
  }

  void no_schema(const JsonAt& at, std::initializer_list<const char*> keys) {
    for (const char* key : keys)
      if (at.has(key))
        fields_->fail(at.at(key).value(), "null when type is \"" + at.string("type").value() + "\"");
  }

  // Reads OpenAI's form, and the form of llama.cpp and Together, in which "schema" is next to "type".
  void response_format(const JsonAt& at, Style style = Style::kChat) {
    const auto type = at.string("type");
    if (!type.ok()) return fields_->fail(type.status());
    note_unread(at, {"type", "json_schema", "schema", "name", "description", "strict"}, &out_->ignored);
    if (type.value() == "text") return no_schema(at, {"schema", "json_schema"});
    if (type.value() == "json_object") {
      no_schema(at, {"json_schema"});
      if (!at.has("schema")) return need(at, any_json_object());
      return told_schema(at, at, style, Values::kObjects);
    }
    if (type.value() != "json_schema")
      return fields_->fail(at.at("type").value(), "\"text\", \"json_object\" or \"json_schema\"");
    if (style == Style::kResponse) return named_schema(at, at, style);
    if (!at.has("schema")) {
      const auto inside = at.at("json_schema");
      return inside.ok() ? named_schema(inside.value(), at, style) : fields_->fail(inside.status());
    }
    no_schema_twice(at);
    told_schema(at, at, style);
  }

  void no_schema_twice(const JsonAt& at) {
    if (at.has("json_schema")) fields_->fail(at.at("json_schema").value(), "null when schema is set");
  }

  void named_schema(const JsonAt& at, const JsonAt& format, Style style) {
    const auto name = at.string("name");
    if (!name.ok()) return fields_->fail(name.status());
    told_schema(at, format, style);
  }

  // Reads the schema in `at` and the description that the model sees. `at` is `format` or a member of it.
  void told_schema(const JsonAt& at, const JsonAt& format, Style style, Values values = Values::kAny) {
    const auto name = at.string("name", kUnnamed);
    if (!name.ok()) return fields_->fail(name.status());
    if (!is_function_name(name.value()))
      return fields_->fail(at.at("name").value(), "1 to 64 letters, digits, '_' and '-'");
    // Only the type of "strict" is checked, because answers always match the schema.
    const auto strict = at.boolean("strict", false);
    if (!strict.ok()) return fields_->fail(strict.status());
    const auto description = at.string("description", "");
    if (!description.ok()) return fields_->fail(description.status());
    const auto schema = at.at("schema");
    if (!schema.ok()) return fields_->fail(schema.status());
    if (!schema.value().value().is_object()) return fields_->fail(schema.value(), "an object");
    Path path = style == Style::kResponse ? Path{"text", "format"} : Path{"response_format"};
    if (at.where() != format.where()) {
      path.emplace_back("json_schema");
      note_unread(at, {"name", "description", "schema", "strict"}, &out_->ignored);
    }
    path.emplace_back("schema");
    GrammarSource source{
        .kind = GrammarKind::kJsonSchema, .text = text_of(path), .object = values == Values::kObjects};
    out_->response_format = {.name = name.value(), .description = description.value(), .schema = source.text};
    need(at, std::move(source));
  }

  void group(const JsonAt& at, const std::string& field) {
    const bool had = out_->structure.has_value();
    std::vector<std::string> unknown;
    fields_->inside(at, [&](ApiFields* inside) {
      StructureReader reader(inside, body_, out_);
      for (const auto& [name, kind] : kOfGroup)
        if (const auto one_at = inside->take(name)) reader.one(kind, *one_at, {field, name});
      if (const auto any = inside->take("json_object"); any && inside->boolean("json_object", false))
        reader.need(*any, any_json_object());
      for (const auto& [name, neutral] : kUnsupportedOfGroup) inside->refuse(name, neutral);
      inside->skip("disable_fallback");
      note_unread(*inside, field + ".", out_);
      unknown = inside->unread();
    });
    if (had || out_->structure || fields_->failed()) return;
    const std::string wanted = "one of json, regex, choice, grammar and json_object";
    if (unknown.empty()) return fields_->fail(at, wanted);
    fields_->fail({Code::kInvalidArgument,
                   at.where() + ": wanted " + wanted + ", found the unknown key '" + unknown.front() + "'"});
  }

  void one(Kind kind, const JsonAt& at, const Path& path) {
    if (kind == Kind::kChoice) return choice(at);
    if (kind == Kind::kSchema) {
      const Json& given = at.value();
      if ((!given.is_object() && !given.is_boolean() && !given.is_string()) || given == "")
        return fields_->fail(at, "a JSON schema or null");
      return need(at, {.kind = GrammarKind::kJsonSchema, .text = text_of(path)});
    }
    const auto text = at.string();
    if (!text.ok()) return fields_->fail(text.status());
    if (text.value().empty())
      return fields_->fail(at, kind == Kind::kRegex ? "a regular expression or null" : "a grammar or null");
    need(at, {.kind = kind == Kind::kRegex ? GrammarKind::kRegex : GrammarKind::kEbnf, .text = text.value()});
  }

  void choice(const JsonAt& at) {
    if (!at.value().is_array() || at.value().empty() || at.value().size() > kChoicesMax)
      return fields_->fail(at,
                           "an array of 1 to " + std::to_string(kChoicesMax) + " strings that are not empty");
    std::vector<std::string> strings;
    const auto items = at.items();
    for (const JsonAt& one : items.value()) {
      if (!one.value().is_string() || one.value().get_ref<const std::string&>().empty())
        return fields_->fail(one, "a string that is not empty");
      strings.push_back(one.value().get<std::string>());
    }
    need(at, one_of_strings(strings));
  }

  ApiFields* fields_;
  std::string_view body_;
  ApiRequest* out_;
};

}  // namespace

void read_text_format(const JsonAt& at, ApiFields* fields, std::string_view body, ApiRequest* out) {
  StructureReader(fields, body, out).format_of_response(at);
}

void read_structure(ApiFields* fields, std::string_view body, ApiRequest* out) {
  StructureReader(fields, body, out).all();
}

}  // namespace sluice
