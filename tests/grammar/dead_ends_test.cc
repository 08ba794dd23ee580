// Schemas whose values may be refused at their end: no answer comes to a place where nothing may follow.
#include <set>

#include "grammar_fixture.h"

namespace sluice {
namespace {

class DeadEnds : public GrammarTest {
 protected:
  // The values drawn; every text that is not cut must be valid JSON, and drawn() fails where no token is left.
  std::vector<Json> values(const std::string& schema, int least, int draws = 30, int tokens_max = 400) {
    const Grammar compiled = grammar(kSchema, schema);
    std::vector<Json> out;
    for (uint64_t seed = 0; seed < static_cast<uint64_t>(draws); ++seed)
      if (const auto text = drawn(compiled, seed, tokens_max)) {
        out.push_back(Json::parse(*text, nullptr, false));
        EXPECT_FALSE(out.back().is_discarded()) << schema << ": " << *text;
      }
    EXPECT_GE(std::ssize(out), least) << schema;
    return out;
  }
  static bool differ(const Json& array) {
    std::set<std::string> all;
    for (const Json& one : array) all.insert(one.dump());
    return all.size() == array.size();
  }
};

TEST_F(DeadEnds, ElementsOfManyValuesDiffer) {
  // More values than are listed: 81 pairs, 128 objects, 127 arrays.
  for (const char* schema :
       {R"({"type": "array", "uniqueItems": true, "minItems": 20, "maxItems": 22,
            "items": {"prefixItems": [{"enum": [1, 2, 3, 4, 5, 6, 7, 8, 9]}, {"enum": [1, 2, 3, 4, 5, 6, 7, 8, 9]}], "minItems": 2, "items": false}})",
        R"({"type": "array", "uniqueItems": true, "minItems": 12, "maxItems": 12, "items": {"type": "object",
            "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}, "c": {"type": "boolean"}, "d": {"type": "boolean"},
            "e": {"type": "boolean"}, "f": {"type": "boolean"}, "g": {"type": "boolean"}},
            "required": ["a", "b", "c", "d", "e", "f", "g"], "additionalProperties": false}})",
        R"({"type": "array", "uniqueItems": true, "minItems": 15, "maxItems": 16,
            "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 6}})",
        R"({"type": "array", "uniqueItems": true, "minItems": 10, "maxItems": 12,
            "items": {"type": "integer", "minimum": 0, "maximum": 79, "not": {"multipleOf": 2}}})"})
    for (const Json& value : values(schema, 3, 8, 2500)) EXPECT_TRUE(differ(value)) << schema << value.dump();
}

TEST_F(DeadEnds, MoreElementsThanValuesAreRefused) {
  for (const char* schema : {R"({"type": "array", "uniqueItems": true, "minItems": 82,
            "items": {"prefixItems": [{"enum": [1, 2, 3, 4, 5, 6, 7, 8, 9]}, {"enum": [1, 2, 3, 4, 5, 6, 7, 8, 9]}], "minItems": 2, "items": false}})",
                             R"({"type": "array", "uniqueItems": true, "minItems": 128,
            "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 6}})",
                             R"({"type": "array", "uniqueItems": true, "minItems": 41,
            "items": {"type": "integer", "minimum": 0, "maximum": 79, "not": {"multipleOf": 2}}})"})
    EXPECT_NE(refusal(kSchema, schema).find("nothing matches"), std::string::npos) << schema;
}

TEST_F(DeadEnds, DependenciesThatFail) {
  for (
      const Json& value : values(
          R"({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}}, "not": {"dependentRequired": {"a": ["b"]}}})",
          20))
    EXPECT_TRUE(value.contains("a") && !value.contains("b")) << value.dump();
  for (
      const Json& value : values(
          R"({"type": "object", "properties": {"a": {"type": "integer"}}, "not": {"dependentSchemas": {"a": {"properties": {"a": {"minimum": 5}}}}}})",
          10))
    EXPECT_TRUE(value.contains("a") && value["a"] < 5) << value.dump();
}

TEST_F(DeadEnds, ObjectsPassTheirChecks) {
  for (
      const Json& value : values(
          R"({"type": "object", "properties": {"a": {"type": "null"}, "h": {"const": 1}}, "required": ["a"], "additionalProperties": false,
               "not": {"propertyNames": {"pattern": "^[a-d]"}}})",
          20))
    EXPECT_TRUE(value.contains("h")) << value.dump();
}

TEST_F(DeadEnds, SchemasWithoutAValueAreRefused) {
  for (
      const char* schema :
      {R"({"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": false, "not": {"dependentSchemas": {"c": {"const": 1}}}})",
       R"({"type": "object", "properties": {"h": {"type": "string", "pattern": "^[0-9]?$"}}, "additionalProperties": false, "minProperties": 1,
            "not": {"patternProperties": {"^[a-d]": {"type": "null"}}}})"})
    EXPECT_NE(refusal(kSchema, schema).find("wanted a schema that allows some"), std::string::npos) << schema;
}

TEST_F(DeadEnds, NegatedUnevaluatedParts) {
  for (const Json& value :
       values(R"({"not": {"anyOf": [true, {"properties": {"foo": true}}], "unevaluatedProperties": false}})",
              10)) {
    ASSERT_TRUE(value.is_object()) << value.dump();
    EXPECT_GT(value.size(), value.count("foo")) << value.dump();
  }
  for (const Json& value :
       values(R"({"not": {"allOf": [{"prefixItems": [true, true]}], "unevaluatedItems": false}})", 5)) {
    ASSERT_TRUE(value.is_array()) << value.dump();
    EXPECT_GT(value.size(), 2u) << value.dump();
  }
}

TEST_F(DeadEnds, AlternativesThatAlwaysHoldTogether) {
  // Every message matches twice.
  for (
      const Json& value : values(
          R"({"oneOf": [{"oneOf": [{"$ref": "#/$defs/message"}]}, {"$ref": "#/$defs/message"}, {"$ref": "#/$defs/reference"}], "$defs": {
               "message": {"type": "object", "properties": {"type": {"const": "message"}, "text": {"type": "string"}}, "required": ["type", "text"]},
               "reference": {"type": "object", "properties": {"type": {"const": "reference"}, "id": {"type": "string"}}, "required": ["type", "id"]}}})",
          5))
    EXPECT_EQ(value["type"], "reference") << value.dump();
  for (const Json& value :
       values(R"({"type": "integer", "not": {"oneOf": [{"minimum": 3}, {"maximum": 5}]}})", 20))
    EXPECT_TRUE(value >= 3 && value <= 5) << value.dump();
}

TEST_F(DeadEnds, UnevaluatedPartsOfListedValues) {
  const auto accepts = [&](const std::string& schema, const std::set<std::string>& right,
                           const std::set<std::string>& wrong) {
    const Grammar compiled = grammar(kSchema, schema);
    for (const std::string& text : right) EXPECT_TRUE(matches(compiled, text)) << schema << text;
    for (const std::string& text : wrong) EXPECT_FALSE(matches(compiled, text)) << schema << text;
  };
  accepts(R"({"enum": [{"a":1}, {"a":1,"b":2}, {"b":2}, {"c":3}], "unevaluatedProperties": false,
              "anyOf": [{"required": ["a"], "properties": {"a": true, "b": true}}, {"properties": {"a": true}}]})",
          {R"({"a":1})", R"({"a":1,"b":2})"}, {R"({"b":2})", R"({"c":3})"});
  accepts(
      R"({"enum": [{"k":1,"x":1}, {"k":2,"x":1}, {"k":2,"y":1}], "unevaluatedProperties": false, "properties": {"k": true},
              "if": {"properties": {"k": {"const": 1}}}, "then": {"properties": {"x": true}}, "else": {"properties": {"y": true}}})",
      {R"({"k":1,"x":1})", R"({"k":2,"y":1})"}, {R"({"k":2,"x":1})"});
  accepts(
      R"({"enum": [{"a":1,"b":1}, {"b":1}], "dependentSchemas": {"a": {"properties": {"b": true}}}, "properties": {"a": true},
              "unevaluatedProperties": false})",
      {R"({"a":1,"b":1})"}, {R"({"b":1})"});
  accepts(
      R"({"enum": [["x",1], ["x",1,2], [1]], "oneOf": [{"prefixItems": [{"type": "string"}, true]}, {"maxItems": 1}],
              "unevaluatedItems": false})",
      {R"(["x",1])"}, {R"(["x",1,2])", "[1]"});
}

}  // namespace
}  // namespace sluice
