// Answers to a JSON schema: the joint effect of its keywords.
#include <set>

#include "grammar_fixture.h"

namespace sluice {
namespace {

class SchemaTest : public GrammarTest {
 protected:
  // Schemas, texts that must match them, and texts that must not.
  struct Case {
    const char* schema;
    std::vector<const char*> right, wrong;
  };
  void check(const std::vector<Case>& cases) {
    for (const Case& c : cases) {
      const Grammar compiled = grammar(kSchema, c.schema);
      for (const char* text : c.right) EXPECT_TRUE(matches(compiled, text)) << c.schema << ": " << text;
      for (const char* text : c.wrong) EXPECT_FALSE(matches(compiled, text)) << c.schema << ": " << text;
    }
  }
  // The number of sampled texts that reached a point where no token is allowed.
  int dead_ends(const char* schema, int draws) {
    const Grammar compiled = grammar(kSchema, schema);
    int out = 0;
    for (int seed = 0; seed < draws; ++seed) {
      GrammarMatcher matcher(compiled);
      Random random(static_cast<uint64_t>(seed));
      std::vector<uint32_t> bits(static_cast<size_t>((vocab_ + 31) / 32));
      for (int i = 0; i < 60 && !matcher.done(); ++i) {
        if (!matcher.allowed(bits).ok()) {
          ++out;
          break;
        }
        std::vector<int32_t> ids;
        for (int32_t id = 0; id < static_cast<int32_t>(vocab_); ++id)
          if (bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1) ids.push_back(id);
        EXPECT_TRUE(matcher.accept(ids[static_cast<size_t>(random.integer(0, std::ssize(ids) - 1))]).ok());
      }
    }
    return out;
  }
  // The text of a model that always takes the first allowed token, or the last; none if it reached a point
  // where no token is allowed.
  std::optional<std::string> stubborn(const Grammar& compiled, bool first, int tokens_max = 1500) {
    GrammarMatcher matcher(compiled);
    std::vector<uint32_t> bits(static_cast<size_t>((vocab_ + 31) / 32));
    std::string text;
    for (int i = 0; i < tokens_max; ++i) {
      if (!matcher.allowed(bits).ok()) return {};
      if (bits[static_cast<size_t>(end_) / 32] >> (end_ % 32) & 1) break;
      int32_t chosen = -1;
      for (int32_t id = 0; id < static_cast<int32_t>(vocab_); ++id)
        if (bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1 && (chosen < 0 || !first)) chosen = id;
      EXPECT_TRUE(matcher.accept(chosen).ok());
      text += tokenizer_.piece(chosen);
    }
    return text;
  }
};

TEST_F(SchemaTest, AFormatMayBeForbidden) {
  check({
      {R"({"type": "string", "maxLength": 12, "not": {"format": "ipv4"}})", {R"("hello")"}, {R"("1.2.3.4")"}},
      {R"({"oneOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]})",
       {R"("1.2.3.4")", R"("1::2")"},
       {R"("x")"}},
      {R"({"type": "string", "oneOf": [{"format": "date"}, {"format": "date-time"}]})",
       {R"("2024-01-02")", R"("2024-01-02T03:04:05Z")"},
       {R"("2024-01")"}},
      {R"({"type": "string", "oneOf": [{"format": "email"}, {"format": "uri"}]})",
       {R"("a@b.de")", R"("http://b.de/")"},
       {R"("mailto:a@b.de")"}},
      {R"({"type": "string", "oneOf": [{"format": "uuid"}, {"maxLength": 8}]})",
       {R"("abc")", R"("01234567-89ab-cdef-0123-456789abcdef")"},
       {R"("0123456789")"}},
      {R"({"type": "string", "maxLength": 12, "if": {"format": "date"}, "then": {"pattern": "^2"}})",
       {R"("2024-01-02")", R"("hello")"},
       {R"("3024-01-02")"}},
      {R"({"enum": ["1.2.3.4", "hello"], "not": {"format": "ipv4"}})", {R"("hello")"}, {R"("1.2.3.4")"}},
  });
  for (const char* schema :
       {R"({"type": "string", "maxLength": 12, "not": {"format": "uuid"}})",
        R"({"type": "string", "oneOf": [{"format": "ipv4"}, {"format": "hostname"}]})",
        R"({"type": "string", "maxLength": 12, "if": {"format": "date"}, "then": {"pattern": "^2"}})"})
    EXPECT_EQ(dead_ends(schema, 50), 0) << schema;
  EXPECT_NE(
      refusal(kSchema, R"({"type": "string", "not": {"format": "unheard-of"}})").find("nothing matches"),
      std::string::npos);
}

TEST_F(SchemaTest, UniqueItemsNeverReachADeadEnd) {
  std::string many = R"({"enum": [)";
  for (int i = 0; i < 300; ++i) many += (i ? ", \"w" : "\"w") + std::to_string(i) + "\"";
  many += "]}";
  const std::pair<std::string, int> elements[] = {
      {R"({"type": "string", "format": "date"})", 5},
      {R"({"type": "string", "format": "uuid"})", 4},
      {R"({"type": "string", "pattern": "^[a-z]{2}$"})", 30},
      {R"({"type": "string", "pattern": "^\\d{3}$"})", 30},
      {R"({"type": "string", "maxLength": 10})", 6},
      {R"({"type": "number", "minimum": 0, "maximum": 1})", 6},
      {R"({"type": "integer", "minimum": 0, "maximum": 1000000})", 50},
      {many, 20}};
  for (const auto& [element, least] : elements) {
    const std::string schema = R"({"type": "array", "uniqueItems": true, "minItems": )" +
                               std::to_string(least) + R"(, "maxItems": )" + std::to_string(least) +
                               R"(, "items": )" + element + "}";
    const Grammar compiled = grammar(kSchema, schema);
    for (const bool first : {true, false}) {
      const auto text = stubborn(compiled, first);
      ASSERT_TRUE(text.has_value()) << schema;
      const Json value = Json::parse(*text, nullptr, false);
      ASSERT_TRUE(value.is_array()) << schema << ": " << *text;
      EXPECT_EQ(std::ssize(value), least) << schema;
      std::set<std::string> all;
      for (const Json& one : value) all.insert(one.is_number() ? Json(one.get<double>()).dump() : one.dump());
      EXPECT_EQ(std::ssize(all), least) << *text;
    }
  }
  EXPECT_EQ(dead_ends(R"({"type": "array", "uniqueItems": true, "minItems": 12,
                          "items": {"type": "string", "pattern": "^[a-z][0-9]$"}})",
                      100),
            0);
}

TEST_F(SchemaTest, KeywordsHoldBesideEachOther) {
  check({
      {R"({"const": "née"})", {R"("née")"}, {R"("nຟe")", R"("ne")"}},
      {R"({"type": "object", "properties": {"größe": {"const": "Bébé"}}, "required": ["größe"]})",
       {R"({"größe": "Bébé"})"},
       {R"({"größe": "Bebe"})", "{}"}},
      {R"({"type": "string", "pattern": "^\"[ab]\"$"})", {R"("\"a\"")"}, {R"("a")", "\"\"a\"\""}},
      {R"({"type": "string", "pattern": "^a\\nb$"})", {R"("a\nb")"}, {"\"a\nb\"", R"("anb")"}},
      {R"({"type": "string", "pattern": "b"})", {R"("abc")", R"("b")"}, {R"("ac")"}},
      {R"({"type": "string", "pattern": "^(?!ab)[a-c]{1,3}$"})", {R"("acb")"}, {R"("abc")", R"("")"}},
      {R"({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a", "b"]})",
       {R"({"a": true, "b": [1]})"},
       {R"({"a": true})", R"({"b": 1})"}},
      {R"({"type": "object", "required": ["a"]})",
       {R"({"a": null})", R"({"a": 1, "z": 2})"},
       {"{}", R"({"z": 2})"}},
      {R"({"minimum": 3, "maximum": 5})", {"3", "4.25", "5"}, {"2", "5.1", "6", "2.9"}},
      {R"({"type": "string", "format": "date", "pattern": "^2025-"})",
       {R"("2025-02-28")"},
       {R"("2024-02-28")", R"("2025-02-30")"}},
      {R"({"enum": ["ab", "cd"], "pattern": "^c"})", {R"("cd")"}, {R"("ab")"}},
      {R"({"enum": [1, "x", null], "type": ["integer", "null"]})", {"1", "null"}, {R"("x")"}},
      {R"({"type": "integer", "minimum": -3, "exclusiveMaximum": 12})",
       {"-3", "0", "11"},
       {"-4", "12", "1.0", "-0"}},
      {R"({"type": "integer", "multipleOf": 7})", {"0", "14", "-21"}, {"15", "1"}},
      {R"({"type": "number", "multipleOf": 0.25})", {"0.25", "-1.5", "3"}, {"0.3", "0.26"}},
      {R"({"type": "number", "exclusiveMinimum": 0.5, "maximum": 1})",
       {"0.51", "1", "1.0"},
       {"0.5", "0.50", "1.01"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("äöü")", R"("\n🦆")"},
       {R"("a")", R"("abcd")"}},
      {R"({"type": "string", "pattern": "^[a-z]{2,4000}$"})", {R"("ab")"}, {R"("a")", R"("aB")"}},
      {R"({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": true, "minItems": 3})",
       {R"(["c", "a", "b"])"},
       {R"(["a", "b", "a"])", R"(["a", "b"])", R"(["a", "b", "c", "a"])"}},
      {R"({"type": "array", "uniqueItems": true})",
       {R"([1, "1", [1]])"},
       {"[1, 1.0]", R"([{"a": 1, "b": 2}, {"b": 2, "a": 1}])"}},
      {R"({"type": "array", "minItems": 1})", {"[1]", R"(["a", {}])"}, {"[]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": false})",
       {"[1, null]", "[]"},
       {"[null]", "[1, null, 2]"}},
      {R"({"type": "array", "contains": {"const": 5}, "items": {"type": "integer"}})",
       {"[5, 1]"},
       {"[]", "[1, 2]"}},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]})", {"1", "2.5"}, {"3", "1.5"}},
      {R"({"anyOf": [{"type": "string"}], "maxLength": 2})", {R"("ab")"}, {R"("abc")", "1"}},
      {R"({"allOf": [{"type": "string"}, {"minLength": 2}, {"pattern": "^a"}]})",
       {R"("ab")"},
       {R"("a")", R"("ba")"}},
      {R"({"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": {"type": "integer", "minimum": 2}}})",
       {"2", "3"},
       {"1", "4"}},
      {R"({"not": {"type": "string"}})", {"1", "null", "{}"}, {R"("a")"}},
      {R"({"type": "string", "not": {"enum": ["a", "b"]}})", {R"("c")", R"("ab")"}, {R"("a")"}},
      {R"({"type": "object", "properties": {"k": {"enum": ["a", "b"]}, "x": {"type": "integer"}}, "required": ["k"],
           "if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["x"]}})",
       {R"({"k": "b"})", R"({"k": "a", "x": 1})"},
       {R"({"k": "a"})"}},
      {R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "dependentRequired": {"a": ["b"]}})",
       {"{}", R"({"b": null})", R"({"a": null, "b": null})"},
       {R"({"a": null})"}},
      {R"({"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": false})",
       {R"({"x1": 1, "x2": 2})", "{}"},
       {R"({"y": 1})", R"({"x": "a"})", R"({"x": 1, "x": 2})"}},
      {R"({"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 2})",
       {R"({"a": true, "b": false})"},
       {R"({"a": true})", R"({"a": true, "a": false})"}},
      {R"({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": true})",
       {R"({"b": 1})"},
       {R"({"c": 1})"}},
  });
}

TEST_F(SchemaTest, DiscriminatedUnionsAndTheRestOfOneOf) {
  const Grammar united = grammar(kSchema, R"({"$defs": {
      "A": {"type": "object", "properties": {"k": {"const": "a", "type": "string"}, "n": {"type": "integer"}}, "required": ["k", "n"]},
      "B": {"type": "object", "properties": {"k": {"const": "b", "type": "string"}}, "required": ["k"]}},
      "discriminator": {"mapping": {"a": "#/$defs/A", "b": "#/$defs/B"}, "propertyName": "k"},
      "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]})");
  EXPECT_TRUE(matches(united, R"({"k": "a", "n": 1})"));
  EXPECT_TRUE(matches(united, R"({"k": "b"})"));
  EXPECT_FALSE(matches(united, R"({"k": "a"})"));
}

TEST_F(SchemaTest, WhatIsUnevaluated) {
  check({
      {R"({"enum": [[1, 2], []], "unevaluatedItems": false})", {"[]"}, {"[1,2]"}},
      {R"({"type": "array", "allOf": [{"prefixItems": [{"type": "integer"}]}], "unevaluatedItems": false})",
       {"[1]", "[]"},
       {"[1, 2]", R"(["a"])"}},
      {R"({"type": "array", "allOf": [{"items": {"type": "integer"}}], "unevaluatedItems": {"type": "null"}})",
       {"[1, 2]"},
       {"[null]"}},
      {R"({"type": "array", "contains": {"type": "string"}, "unevaluatedItems": false})",
       {R"(["a"])", R"(["a", "b"])"},
       {"[]", R"(["a", 1])"}},
      {R"({"type": "array", "contains": {"type": "string"}, "unevaluatedItems": {"type": "null"}})",
       {R"(["a", null])"},
       {"[null]", R"(["a", 1])"}},
      {R"({"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [{"const": "foo"}],
           "oneOf": [{"prefixItems": [true, {"const": "bar"}]}, {"prefixItems": [true, {"const": "baz"}]}],
           "unevaluatedItems": false, "minItems": 2})",
       {R"(["foo", "bar"])", R"(["foo", "baz"])"},
       {R"(["foo", "quux"])", R"(["foo", "bar", 1])"}},
      {R"({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "prefixItems": [{"type": "string"}],
           "items": {"maxLength": 2}, "minItems": 1})",
       {R"(["ab"])"},
       {R"(["abc"])", "[1]"}},
  });
}

TEST_F(SchemaTest, ElementsThatMustBeContained) {
  check({
      {R"({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "contains": {"type": "integer"}})",
       {R"(["a", 1])", R"(["a", 1, 2])"},
       {"[]", R"(["a"])"}},
      {R"({"type": "array", "prefixItems": [{"type": "string"}], "contains": {"const": "b"}})",
       {R"(["b"])", R"(["a", "b"])"},
       {R"(["a"])"}},
      {R"({"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 1}, "minContains": 1, "maxContains": 2})",
       {"[1]", "[1, 2, 1]", "[1, 2, 2]"},
       {"[2]", "[1, 1, 1]"}},
      {R"({"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 1}, "maxContains": 0, "minContains": 0})",
       {"[]", "[2, 2]"},
       {"[1]", "[2, 1]"}},
      {R"({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "contains": {"const": 1}, "minContains": 0})",
       {"[1]"},
       {"[]"}},
  });
  EXPECT_EQ(
      dead_ends(
          R"({"type": "array", "items": {"type": "boolean"}, "contains": {"const": true}, "maxContains": 1})",
          50),
      0);
  EXPECT_EQ(
      dead_ends(R"({"type": "array", "prefixItems": [{"type": "boolean"}], "contains": {"type": "null"}})",
                50),
      0);
  for (const char* none :
       {R"({"type": "array", "contains": {"const": 1}, "minContains": 3, "maxContains": 1})",
        R"({"type": "array", "contains": {"const": 1}, "minContains": 2, "uniqueItems": true})"})
    EXPECT_NE(refusal(kSchema, none).find("nothing matches"), std::string::npos) << none;
}

TEST_F(SchemaTest, WhatMustNotHold) {
  check({
      {R"({"not": {"pattern": "b"}})", {R"("a")"}, {R"("b")", "1", "[]"}},
      {R"({"not": {"type": "integer"}, "type": "number"})", {"1.5", "-0.25"}, {"1", "1.0"}},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", {"1.5"}, {"1", "2.0"}},
      {R"({"oneOf": [true, {"type": "string"}]})", {"1", "null"}, {R"("a")"}},
      {R"({"type": "string", "oneOf": [{"minLength": 3}, {"maxLength": 5}]})",
       {R"("ab")", R"("abcdef")"},
       {R"("abcd")"}},
      {R"({"type": "object", "not": {"unknown": 1, "required": ["a"]}, "additionalProperties": true})",
       {R"({"b": 1})"},
       {R"({"a": 1})"}},
      // In this draft keywords next to $ref are ignored, so a violation of "maxLength" does not violate the
      // schema.
      {R"({"$schema": "http://json-schema.org/draft-07/schema#", "type": "string", "definitions": {"x": {"pattern": "^x"}},
           "not": {"$ref": "#/definitions/x", "maxLength": 2}})",
       {R"("a")"},
       {R"("xyz")"}},
  });
  for (const char* none : {R"({"oneOf": [true, {}]})", R"({"not": {"title": "all"}})",
                           R"({"oneOf": [{"type": "string"}, {"type": "string"}]})",
                           R"({"type": "integer", "not": {"pattern": "a"}})"})
    EXPECT_NE(refusal(kSchema, none).find("nothing matches"), std::string::npos) << none;
  for (const char* schema : {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})",
                             R"({"type": "string", "oneOf": [{"minLength": 3}, {"maxLength": 5}]})"})
    EXPECT_EQ(dead_ends(schema, 50), 0) << schema;
}

// Numbers compare as doubles, as in validators that read doubles.
TEST_F(SchemaTest, NumbersHoldAsDoubles) {
  check({
      {R"({"type": "number", "exclusiveMaximum": 100})", {"99.9999999999999"}, {"99.999999999999999", "100"}},
      {R"({"type": "number", "minimum": 7, "maximum": 123456789})",
       {"7.00000000000001"},
       {"123456789.0000001"}},
      {R"({"type": "number", "multipleOf": 0.01})",
       {"4.59", "1", "-0.25"},
       {"4.6", "4.60", "0.001", "4.590"}},
      {R"({"type": "number", "multipleOf": 0.25})", {"4.75", "4"}, {"4.6"}},
      {R"({"type": "number", "multipleOf": 3})", {"6", "6.0"}, {"6.00", "7"}},
  });
  EXPECT_EQ(dead_ends(R"({"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 10})", 200), 0);
}

// Keywords that the draft of "$schema" does not have are ignored, as by validators of that draft.
TEST_F(SchemaTest, KeywordsOfLaterDraftsAreIgnored) {
  check({
      {R"({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "const": 1})",
       {"1", "2"},
       {}},
      {R"({"$schema": "http://json-schema.org/draft-06/schema#", "type": "integer", "const": 1})",
       {"1"},
       {"2"}},
      {R"({"$schema": "http://json-schema.org/draft-07/schema#", "enum": [1, 2],
           "oneOf": [{"const": 1}, {"$ref": "#/definitions/any", "const": 3}], "definitions": {"any": {"minimum": 2}}})",
       {"2", "1"},
       {}},
      {R"({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"const": {"type": "integer"}},
           "required": ["const"], "dependentRequired": {"const": ["b"]}})",
       {R"({"const": 1})"},
       {R"({"const": "a"})"}},
      {R"({"$schema": "https://json-schema.org/draft/2019-09/schema", "type": "object", "properties": {"const": {"type": "integer"}},
           "required": ["const"], "dependentRequired": {"const": ["b"]}})",
       {R"({"const": 1, "b": 1})"},
       {R"({"const": 1})"}},
  });
  EXPECT_NE(refusal(kSchema, R"({"$schema": "http://json-schema.org/draft-04/schema#", "not": {"const": 1}})")
                .find("nothing matches"),
            std::string::npos);
}

// Unlisted members appear if the schema requires more members than the listed ones can supply.
TEST_F(SchemaTest, ObjectsReachTheirMinimumOfMembers) {
  check({
      {R"({"type": "object", "properties": {"c": {"const": 1}}, "patternProperties": {"^a": {"type": "number"}},
           "propertyNames": {"enum": ["b", "c"]}, "minProperties": 2})",
       {R"({"c": 1, "b": 0})"},
       {R"({"c": 1})", R"({"c": 1, "a": 0})"}},
      {R"({"type": "object", "patternProperties": {"^a": {"type": "number"}}, "minProperties": 1})",
       {R"({"a": 1})"},
       {"{}", R"({"b": 1})"}},
      {R"({"type": "object", "patternProperties": {"^a": false}, "minProperties": 1})",
       {R"({"b": 1})"},
       {"{}", R"({"a": 1})"}},
      {R"({"type": "object", "patternProperties": {"^a$": {"type": "null"}, "^b": {"enum": []}}, "minProperties": 2})",
       {R"({"a": null, "c": 1})"},
       {R"({"a": null})", R"({"a": null, "b": 1})"}},
      {R"({"type": "object", "patternProperties": {"^a$": {"type": "null"}}, "minProperties": 1})",
       {R"({"a": null})"},
       {"{}", R"({"c": 1})"}},
      {R"({"type": "object", "properties": {"a": {"enum": []}}, "minProperties": 1})",
       {R"({"b": 1})"},
       {"{}"}},
  });
  EXPECT_NE(refusal(kSchema, R"({"type": "object", "patternProperties": {"^a$": true}, "minProperties": 2,
                                 "additionalProperties": false})")
                .find("nothing matches"),
            std::string::npos);
}

TEST_F(SchemaTest, ListedIntegersAreWrittenAsIntegers) {
  check({
      {R"({"type": "integer", "const": 1e2})", {"100"}, {"100.0", "1e2"}},
      {R"({"type": "integer", "enum": [2.0, 3.0, 2.5]})", {"2", "3"}, {"2.0", "2.5"}},
      {R"({"enum": [-4.0, 0.5, 1e300]})", {"-4", "0.5", "1e+300"}, {"-4.0"}},
      {R"({"const": {"a": [1.0, 1.5]}})", {R"({"a":[1,1.5]})"}, {R"({"a":[1.0,1.5]})"}},
      {R"({"$schema": "http://json-schema.org/draft-04/schema#", "type": "number", "enum": [1.0]})",
       {"1.0"},
       {"1"}},
  });
}

TEST_F(SchemaTest, LeapDaysThatAreListed) {
  check({{R"({"type": "string", "format": "date", "enum": ["2024-02-29", "2023-02-29", "1900-02-29"]})",
          {R"("2024-02-29")"},
          {R"("2023-02-29")", R"("1900-02-29")"}}});
}

TEST_F(SchemaTest, SchemasThatNeverEndAreRefused) {
  for (const char* schema :
       {R"({"$ref": "#"})", R"({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}})",
        R"({"$defs": {"a": {"oneOf": [{"type": "integer"}, {"$ref": "#/$defs/b"}]},
                      "b": {"oneOf": [{"type": "string"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"})",
        R"({"dependentSchemas": {"a": {"$ref": "#"}}})", R"({"not": {"anyOf": [{"$ref": "#"}]}})"})
    EXPECT_NE(refusal(kSchema, schema).find("refers to itself"), std::string::npos) << schema;
  // Recursion through a property ends, because each level consumes part of the value.
  check({{R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": false})",
          {"{}", R"({"a": {"a": {}}})"},
          {R"({"a": 1})"}}});
}

TEST_F(SchemaTest, ReferencesAreRelativeToTheSchemaAroundThem) {
  const std::vector<const char*> right{R"("Z")"}, wrong{R"("W")"};
  const std::pair<const char*, const char*> roots[] = {
      // The URI of the root, with its reference; and two schemas, the second of which is the reference's
      // target.
      {R"("$id": "http://x.y/root.json", "$ref": "item")",
       R"({"$id": "http://other.org/item", "const": "W"}, {"$id": "http://x.y/item", "const": "Z"})"},
      {R"("$id": "http://x.y/b/s.json", "$ref": "item")",
       R"({"$id": "http://x.y/a/item", "const": "W"}, {"$id": "http://x.y/b/item", "const": "Z"})"},
      {R"("$id": "http://x.y/b/s.json", "$ref": "/item")",
       R"({"$id": "http://x.y/b/item", "const": "W"}, {"$id": "http://x.y/item", "const": "Z"})"},
      {R"("$id": "http://x.y/b/s.json", "$ref": "./c/../item")",
       R"({"$id": "http://x.y/item", "const": "W"}, {"$id": "item", "const": "Z"})"},
      {R"("$id": "http://x.y/b/s.json", "$ref": "../item")",
       R"({"$id": "item", "const": "W"}, {"$id": "http://x.y/item", "const": "Z"})"},
      {R"("$id": "http://x.y/b/s.json", "$ref": "//z.y/item")",
       R"({"$id": "/item", "const": "W"}, {"$id": "http://z.y/item", "const": "Z"})"},
      {R"("$id": "http://x.y/s.json?v=1", "$ref": "?v=2")",
       R"({"$id": "http://x.y/s.json", "const": "W"}, {"$id": "http://x.y/s.json?v=2", "const": "Z"})"},
      {R"("$id": "http://x.y", "$ref": "item")",
       R"({"$id": "http://item", "const": "W"}, {"$id": "http://x.y/item", "const": "Z"})"},
      {R"("$id": "HTTP://X.y/s", "$ref": "http://x.Y/Item")",
       R"({"$id": "item", "const": "W"}, {"$id": "Item", "const": "Z"})"},
      {R"("$id": "urn:a:s", "$ref": "urn:a:item")",
       R"({"$id": "urn:b:item", "const": "W"}, {"$id": "urn:a:item", "const": "Z"})"},
      {R"("$id": "s.json", "$ref": "b/item")",
       R"({"$id": "item", "const": "W"}, {"$id": "b/item", "const": "Z"})"},
      {R"("$ref": "b/item")",
       R"({"$id": "http://x.y/b/item", "const": "W"}, {"$id": "b/item", "const": "Z"})"},
      {R"("$ref": "http://x.y/b/item")",
       R"({"$id": "http://x.y/a/s", "allOf": [{"$id": "item", "const": "W"}]},
          {"$id": "http://x.y/b/s", "allOf": [{"$id": "item", "const": "Z"}]})"},
      {R"("$id": "http://x.y/a/root", "$ref": "b/item#/$defs/q")",
       R"({"$id": "item", "$defs": {"q": {"const": "W"}}}, {"$id": "b/item", "$defs": {"q": {"const": "Z"}}})"},
      {R"("$id": "http://x.y/a/root", "$ref": "b/item#q")",
       R"({"$anchor": "q", "const": "W"}, {"$id": "b/item", "allOf": [{"$anchor": "q", "const": "Z"}]})"},
      // References inside the referenced schema resolve against its own base, under members of any name.
      {R"("$ref": "b/item")",
       R"({"$id": "q", "const": "W"}, {"$id": "b/item", "$ref": "q", "allOf": [{"$id": "q", "const": "Z"}]})"},
      {R"("$defs": {"q": {"const": "W"}}, "$ref": "item#/properties/default")",
       R"(true, {"$id": "item", "properties": {"default": {"$ref": "#/$defs/q"}}, "$defs": {"q": {"const": "Z"}}})"},
      {R"("type": "string", "$defs": {"q": {"const": "Z"}}, "not": {"$ref": "item"})",
       R"(true, {"$id": "item", "anyOf": [{"not": {"$ref": "#/$defs/q"}}], "$defs": {"q": {"enum": ["Z", "z"]}}})"},
      // A value that is no schema in the draft has no URI.
      {R"("$ref": "item")", R"({"x": {"$id": "item", "const": "W"}}, {"$id": "item", "const": "Z"})"},
      {R"("$ref": "item")", R"({"enum": [{"$id": "item"}]}, {"id": "item", "$id": "item", "const": "Z"})"},
  };
  for (const auto& [root, schemas] : roots) {
    const std::string schema =
        "{" + std::string(root) + R"(, "anyOf": [true, {"allOf": [)" + schemas + "]}]}";
    check({{schema.c_str(), right, wrong}});
  }
}

TEST_F(SchemaTest, ReferencesToOtherDocumentsAreRefused) {
  const char* const kAway[] = {
      R"({"$id": "http://x.y/a/root.json", "$ref": "item", "$defs": {"b": {"$id": "http://x.y/b/item"}}})",
      R"({"$id": "http://x.y/a/root.json", "$ref": "/b/item", "$defs": {"b": {"$id": "item"}}})",
      R"({"$id": "http://x.y/root.json", "$ref": "//z/item", "$defs": {"b": {"$id": "item"}}})",
      R"({"$id": "http://x.y/root.json", "$ref": "Item", "$defs": {"b": {"$id": "item"}}})",
      R"({"$ref": "../item", "$defs": {"b": {"$id": "item"}}})",
      R"({"$ref": "item", "$defs": {"b": {"$id": "http://x.y/item"}}})",
      R"({"$ref": "item", "$defs": {"b": {"$id": "s", "$defs": {"c": {"$id": "b/item"}}}}})",
      R"({"$ref": "item", "x": {"b": {"$id": "item"}}})",
      R"({"$schema": "http://json-schema.org/draft-07/schema#", "allOf": [{"$ref": "item"}],
          "definitions": {"b": {"$id": "item", "$ref": "#"}}})"};
  for (const char* schema : kAway)
    EXPECT_NE(refusal(kSchema, schema).find("found a URI of another document"), std::string::npos) << schema;
  // The last two have no base, and validators differ in how they resolve them.
  for (
      const char* schema :
      {R"({"$ref": "item", "$defs": {"a": {"$id": "item"}, "b": {"$id": "item", "const": 1}}})",
       R"({"$ref": "item", "$defs": {"a": {"$id": "item"}, "b": {"$id": "../item", "const": 1}}})",
       R"({"$id": "s/root", "$ref": "item", "$defs": {"a": {"$id": "item"}, "b": {"$id": "/item", "const": 1}}})"})
    EXPECT_NE(refusal(kSchema, schema).find("found several that differ"), std::string::npos) << schema;
  EXPECT_NE(refusal(kSchema, R"({"$ref": "item", "$defs": {"a": {"$id": "item", "$ref": "#/$defs/q"}}})")
                .find("$ref 'item#/$defs/q': wanted a schema at this place, found nothing"),
            std::string::npos);
  EXPECT_NE(refusal(kSchema, R"({"$ref": "/item", "$defs": {"a": {"$id": "/item", "$ref": "item"}}})")
                .find("$ref '/item': wanted a finite schema"),
            std::string::npos);
}

TEST_F(SchemaTest, AnchorsOfSeveralScopesAreRefused) {
  EXPECT_NE(refusal(kSchema, R"({"$id": "https://example.org/main", "$ref": "start", "$defs": {
      "a": {"$id": "start", "$dynamicRef": "inner#thing", "$defs": {"x": {"$dynamicAnchor": "thing", "type": "null"}}},
      "b": {"$id": "inner", "$dynamicAnchor": "thing", "type": "string"}}})")
                .find("$dynamicAnchor"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
