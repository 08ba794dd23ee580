#include "apps/serve/api_structure.h"

#include <algorithm>

#include "text/harmony_tools.h"

namespace sluice::apps {
namespace {

constexpr size_t kChoicesMax = 1000;

class StructureReader {
 public:
  StructureReader(ApiFields* fields, std::string_view body, ApiRequest* out)
      : fields_(fields), body_(body), out_(out) {}

  void all() {
    if (const auto at = fields_->take("response_format")) response_format(*at);
    if (const auto at = fields_->take("structured_outputs")) group(*at, "structured_outputs");
    for (const char* kind : kKinds)
      if (const auto at = fields_->take(std::string("guided_") + kind))
        one(kind, *at, {"guided_" + std::string(kind)});
  }
  void format_of_response(const JsonAt& at) { response_format(at, Style::kResponse); }

 private:
  enum class Style : uint8_t { kChat, kResponse };
  using Path = std::vector<std::string>;
  static constexpr const char* kKinds[] = {"json", "regex", "choice", "grammar"};

  void need(const JsonAt& at, GrammarSource source) {
    if (out_->structure) return fields_->fail(at, "one of response_format, structured_outputs and guided_*");
    out_->structure = std::move(source);
    out_->structure_field = at.where().substr(at.where().find(": ") + 2);
  }

  // As it stands in the body, with its keys in their order.
  std::string text_of(const Path& path) const {
    OrderedJson value = in_order(body_, path.front());
    for (size_t i = 1; i < path.size(); ++i) value = OrderedJson(value[path[i]]);
    return value.is_string() ? value.get<std::string>() : value.dump();
  }

  // In a response a schema stands beside its type.
  void response_format(const JsonAt& at, Style style = Style::kChat) {
    const auto type = at.string("type");
    if (!type.ok()) return fields_->fail(type.status());
    if (type.value() == "text") return;
    if (type.value() == "json_object") return need(at, any_json_object());
    if (type.value() != "json_schema")
      return fields_->fail(at.at("type").value(), "\"text\", \"json_object\" or \"json_schema\"");
    if (style == Style::kResponse) return json_schema(at, {"text", "format", "schema"});
    const auto inside = at.at("json_schema");
    if (!inside.ok()) return fields_->fail(inside.status());
    json_schema(inside.value(), {"response_format", "json_schema", "schema"});
  }

  void json_schema(const JsonAt& at, const Path& path) {
    const auto name = at.string("name");
    if (!name.ok()) return fields_->fail(name.status());
    if (!is_function_name(name.value()))
      return fields_->fail(at.at("name").value(), "1 to 64 letters, digits, '_' and '-'");
    const auto strict = at.boolean("strict", false);  // either way an answer matches
    if (!strict.ok()) return fields_->fail(strict.status());
    const auto description = at.string("description", "");
    if (!description.ok()) return fields_->fail(description.status());
    const auto schema = at.at("schema");
    if (!schema.ok()) return fields_->fail(schema.status());
    if (!fits_in_order(schema.value(), fields_)) return;
    if (!schema.value().value().is_object()) return fields_->fail(schema.value(), "an object");
    GrammarSource source{.kind = GrammarKind::kJsonSchema, .text = text_of(path)};
    out_->response_format = {.name = name.value(), .description = description.value(), .schema = source.text};
    need(at, std::move(source));
  }

  void group(const JsonAt& at, const std::string& field) {
    std::optional<ApiError> error;
    ApiFields inside(at, &error);
    for (const char* kind : kKinds)
      if (const auto one_at = inside.take(kind)) one(kind, *one_at, {field, kind});
    if (inside.boolean("json_object", false)) need(at, any_json_object());
    inside.refuse("structural_tag", "[]");
    if (error) return fields_->fail({Code::kInvalidArgument, "body: " + error->message});
    if (!out_->structure && !fields_->failed())
      fields_->fail(at, "one of json, regex, choice, grammar and json_object");
  }

  void one(const std::string& kind, const JsonAt& at, const Path& path) {
    if (kind == "choice") return choice(at);
    if (kind == "json") {
      if (!at.value().is_object() && !at.value().is_string()) return fields_->fail(at, "a JSON schema");
      if (!fits_in_order(at, fields_)) return;
      return need(at, {.kind = GrammarKind::kJsonSchema, .text = text_of(path)});
    }
    const auto text = at.string();
    if (!text.ok()) return fields_->fail(text.status());
    need(at, {.kind = kind == "regex" ? GrammarKind::kRegex : GrammarKind::kEbnf, .text = text.value()});
  }

  void choice(const JsonAt& at) {
    std::vector<std::string> strings;
    const bool fits = at.value().is_array() && !at.value().empty() && at.value().size() <= kChoicesMax &&
                      std::all_of(at.value().begin(), at.value().end(), [&](const Json& one) {
                        return one.is_string() && !strings.emplace_back(one.get<std::string>()).empty();
                      });
    if (!fits)
      return fields_->fail(at,
                           "an array of 1 to " + std::to_string(kChoicesMax) + " strings that are not empty");
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

}  // namespace sluice::apps
