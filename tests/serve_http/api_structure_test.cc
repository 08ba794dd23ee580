#include "apps/serve/api_structure.h"

#include <gtest/gtest.h>

namespace sluice::apps {
namespace {

ApiResult<ApiRequest> read(const std::string& fields) {
  return read_chat(R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}", {.vocab = 100});
}
ApiRequest taken(const std::string& fields) {
  auto out = read(fields);
  EXPECT_TRUE(std::holds_alternative<ApiRequest>(out)) << std::get<ApiError>(out).message;
  return std::get<ApiRequest>(std::move(out));
}
std::string refused(const std::string& fields) {
  const auto out = read(fields);
  if (const auto* error = std::get_if<ApiError>(&out)) return error->param + ", " + error->message;
  return "";
}

TEST(ApiStructure, ReadsEachWayToAskForIt) {
  EXPECT_FALSE(taken(R"("response_format": {"type": "text"}, "guided_json": null)").structure);
  EXPECT_EQ(taken(R"("response_format": {"type": "json_object"})").structure, any_json_object());
  const ApiRequest schema = taken(
      R"("response_format": {"type": "json_schema", "json_schema": {"name": "a-b_9", "description": "d", "strict": true,
         "schema": {"z": 1, "a": {"y": 2, "b": 3}}}})");
  const GrammarSource in_order{.kind = GrammarKind::kJsonSchema, .text = R"({"z":1,"a":{"y":2,"b":3}})"};
  EXPECT_EQ(schema.structure, in_order);
  EXPECT_EQ(schema.structure_field, "response_format.json_schema");
  EXPECT_EQ(schema.response_format->name, "a-b_9");
  EXPECT_EQ(schema.response_format->description, "d");
  EXPECT_EQ(schema.response_format->schema, in_order.text);
  EXPECT_EQ(taken(R"("guided_json": {"z":1,"a":{"y":2,"b":3}})").structure, in_order);
  EXPECT_EQ(taken(R"("guided_json": "{\"z\":1,\"a\":{\"y\":2,\"b\":3}}")").structure, in_order);
  EXPECT_EQ(taken(R"("structured_outputs": {"json": {"z":1,"a":{"y":2,"b":3}}})").structure, in_order);
  EXPECT_EQ(taken(R"("structured_outputs": {"json_object": true})").structure, any_json_object());
  EXPECT_EQ(taken(R"("guided_regex": "a+")").structure, (GrammarSource{GrammarKind::kRegex, "a+"}));
  EXPECT_EQ(taken(R"("guided_grammar": "root ::= x")").structure,
            (GrammarSource{GrammarKind::kEbnf, "root ::= x"}));
  EXPECT_EQ(taken(R"("guided_choice": ["a", "b\"c"])").structure,
            (GrammarSource{GrammarKind::kEbnf, R"(root ::= "a" | "b\"c")"}));
  EXPECT_FALSE(taken(R"("guided_choice": ["a"])").response_format);
}

TEST(ApiStructure, RefusesTheRestAndNamesIt) {
  EXPECT_EQ(
      refused(R"("response_format": {"type": "xml"})"),
      R"(response_format.type, response_format.type: wanted "text", "json_object" or "json_schema", found "xml")");
  EXPECT_TRUE(refused(R"("response_format": 5)").starts_with("response_format, "));
  EXPECT_TRUE(refused(R"("response_format": {"type": "json_schema"})").starts_with("response_format"));
  EXPECT_TRUE(
      refused(R"("response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}})")
          .starts_with("response_format.json_schema.name, "));
  EXPECT_TRUE(
      refused(R"("response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}})")
          .starts_with("response_format.json_schema.schema, "));
  EXPECT_TRUE(refused(R"("guided_regex": 5)").starts_with("guided_regex, "));
  EXPECT_TRUE(refused(R"("guided_choice": [])").starts_with("guided_choice, "));
  EXPECT_TRUE(refused(R"("guided_choice": [""])").starts_with("guided_choice, "));
  EXPECT_TRUE(refused(R"("guided_regex": "a", "guided_choice": ["a"])").starts_with("guided_choice, "));
  EXPECT_TRUE(refused(R"("structured_outputs": {})").starts_with("structured_outputs, "));
  EXPECT_TRUE(refused(R"("structured_outputs": {"structural_tag": "x"})")
                  .starts_with("structured_outputs.structural_tag, "));
}

}  // namespace
}  // namespace sluice::apps
