#include "apps/run/answer_form.h"

#include <utility>

#include "apps/common/input_file.h"
#include "server/answers/answer_json.h"

namespace sluice::apps {
namespace {

constexpr const char* kSchemaFlag = "--json-schema";

Result<std::string> schema_text(const std::string& source) {
  const size_t first = source.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && source[first] == '{') return source;
  auto text = file_text(source, "a JSON schema");
  if (!text.ok()) return Status{text.status().code, std::string(kSchemaFlag) + ": " + text.status().message};
  return text;
}

}  // namespace

Result<AnswerForm> answer_form(const std::string& source, const ChatFormat& format,
                               std::optional<bool> thinking, int64_t vocab) {
  const auto text = schema_text(source);
  if (!text.ok()) return text.status();
  ApiRequest request;
  request.structure = GrammarSource{.kind = GrammarKind::kJsonSchema, .text = text.value()};
  request.structure_field = kSchemaFlag;
  request.thinking = thinking;
  auto filters = StructuredOutput(format, vocab).filters(request);
  if (!filters.ok()) return invalid(filters.error().message);
  // As with the server's response_format, the schema that the model sees is formatted anew.
  const auto schema = parse_ordered_json(text.value(), kSchemaFlag);
  if (!schema.ok()) return invalid(schema.status().message);
  return AnswerForm{
      .told = ResponseFormat{.name = "answer", .description = {}, .schema = dump(schema.value())},
      .make_filter = std::move(filters).value()};
}

}  // namespace sluice::apps
