#include "server/requests/structure.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

Result<ApiRequest, ApiError> read(const std::string& fields) {
  return read_chat(R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}", {.vocab = 100});
}
ApiRequest taken(const std::string& fields) {
  auto out = read(fields);
  EXPECT_TRUE(out.ok()) << out.error().message;
  return std::move(out).value();
}
std::string refused(const std::string& fields) {
  const auto out = read(fields);
  if (!out.ok()) return out.error().param + ", " + out.error().message;
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
  const std::vector<std::string> strings{"a", "b\"c"};
  EXPECT_EQ(taken(R"("guided_choice": ["a", "b\"c"])").structure, one_of_strings(strings));
  EXPECT_FALSE(taken(R"("guided_choice": ["a"])").response_format);
}

TEST(ApiStructure, ReadsTheFieldsOfOtherServers) {
  const std::string json = R"({"z": 1, "a": {"y": 2, "b": 3}})";
  const GrammarSource schema{.kind = GrammarKind::kJsonSchema, .text = R"({"z":1,"a":{"y":2,"b":3}})"};
  for (const std::string type : {"json_object", "json_schema"}) {
    const ApiRequest r = taken(R"("response_format": {"type": ")" + type + R"(", "schema": )" + json + "}");
    GrammarSource want = schema;
    want.object = type == "json_object";
    EXPECT_EQ(r.structure, want);
    EXPECT_EQ(r.response_format->name, "answer");
    EXPECT_EQ(r.response_format->schema, schema.text);
  }
  EXPECT_EQ(taken(R"("json_schema": )" + json).structure, schema);
  EXPECT_EQ(taken(R"("json_schema": "{\"z\":1,\"a\":{\"y\":2,\"b\":3}}")").structure, schema);
  EXPECT_EQ(taken(R"("grammar": "root ::= x")").structure, (GrammarSource{GrammarKind::kEbnf, "root ::= x"}));
  EXPECT_EQ(taken(R"("ebnf": "root ::= x")").structure, (GrammarSource{GrammarKind::kEbnf, "root ::= x"}));
  EXPECT_EQ(taken(R"("regex": "a+")").structure, (GrammarSource{GrammarKind::kRegex, "a+"}));
  EXPECT_FALSE(taken(R"("grammar": "", "regex": null)").structure);
  for (const char* empty : {"regex", "ebnf", "guided_json", "guided_regex", "guided_grammar", "json_schema"})
    EXPECT_TRUE(refused("\"" + std::string(empty) + "\": \"\"").starts_with(std::string(empty) + ", "));
  const ApiRequest unknown = taken(R"("structured_outputs": {"regex": "a", "flux": 1}, "grammar": null)");
  EXPECT_EQ(unknown.ignored, std::vector<std::string>{"structured_outputs.flux"});
  EXPECT_NE(refused(R"("structured_outputs": {"jsn": {}})").find("found the unknown key 'jsn'"),
            std::string::npos);
}

TEST(ApiStructure, OneFieldSaysWhatAnAnswerMatches) {
  const std::string fields[] = {R"("response_format": {"type": "json_object"})",
                                R"("structured_outputs": {"json_object": true})",
                                R"("guided_json": {})",
                                R"("guided_regex": "a")",
                                R"("guided_choice": ["a"])",
                                R"("guided_grammar": "root ::= x")",
                                R"("json_schema": {})",
                                R"("grammar": "root ::= x")",
                                R"("regex": "a")",
                                R"("ebnf": "root ::= x")"};
  for (const std::string& one : fields)
    for (const std::string& other : fields)
      if (&one != &other) {
        EXPECT_NE(refused(one + ", " + other).find("null when "), std::string::npos) << one << other;
      }
  EXPECT_TRUE(refused(R"("response_format": {"type": "text", "schema": {}})")
                  .starts_with("response_format.schema, "));
  EXPECT_TRUE(refused(R"("response_format": {"type": "json_object", "json_schema": {}})")
                  .starts_with("response_format.json_schema, "));
  EXPECT_TRUE(refused(R"("response_format": {"type": "json_schema", "schema": {}, "json_schema": {}})")
                  .starts_with("response_format.json_schema, "));
  EXPECT_TRUE(
      refused(R"("response_format": {"type": "structural_tag"})").starts_with("response_format.type, "));
  EXPECT_TRUE(refused(R"("structural_tag": "{}")").starts_with("structural_tag, "));
  EXPECT_TRUE(refused(R"("grammar": "root ::= [a-z]", "grammar_lazy": true)").starts_with("grammar_lazy, "));
  EXPECT_EQ(refused(R"("grammar": "root ::= [a-z]", "grammar_lazy": false)"), "");
  EXPECT_EQ(refused(R"("guided_choice": ["a", 1])"),
            "guided_choice[1], guided_choice[1]: wanted a string that is not empty, found 1");
  EXPECT_EQ(refused(R"("guided_choice": ["a", ""])"),
            "guided_choice[1], guided_choice[1]: wanted a string that is not empty, found \"\"");
  EXPECT_TRUE(refused(R"("guided_whitespace_pattern": " ")").starts_with("guided_whitespace_pattern, "));
  EXPECT_TRUE(refused(R"("structured_outputs": {"regex": "a", "whitespace_pattern": " "})")
                  .starts_with("structured_outputs.whitespace_pattern, "));
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
  EXPECT_TRUE(refused(R"("guided_choice": [""])").starts_with("guided_choice[0], "));
  EXPECT_TRUE(refused(R"("guided_regex": "a", "guided_choice": ["a"])").starts_with("guided_choice, "));
  EXPECT_TRUE(refused(R"("structured_outputs": {})").starts_with("structured_outputs, "));
  EXPECT_TRUE(refused(R"("structured_outputs": {"structural_tag": "x"})")
                  .starts_with("structured_outputs.structural_tag, "));
}

}  // namespace
}  // namespace sluice
