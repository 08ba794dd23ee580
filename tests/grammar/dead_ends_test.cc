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
                             // Only the empty array: no element is allowed, or none can satisfy its schema.
                             R"({"type": "array", "uniqueItems": true, "minItems": 2,
            "items": {"type": "array", "maxItems": 0}})",
                             R"({"type": "array", "uniqueItems": true, "minItems": 2,
            "items": {"type": "array", "items": {"type": "array", "prefixItems": [{"type": "string"}], "maxItems": 1,
                                                 "contains": {"type": "boolean"}}}})",
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
              10, 60)) {
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

// A negation that schemas express only in part: the other values are checked at their end, and none is lost.
TEST_F(DeadEnds, PartsOfNegationsAreChecked) {
  const auto texts = [&](const char* schema, int draws) {
    std::set<std::string> out;
    for (const Json& value : values(schema, draws / 2, draws)) out.insert(value.dump());
    return out;
  };
  using Texts = std::set<std::string>;
  EXPECT_EQ(
      texts(R"({"type": "integer", "minimum": 0, "maximum": 2, "not": {"maximum": 2, "multipleOf": 2}})", 10),
      Texts{"1"});
  EXPECT_EQ(
      texts(
          R"({"type": "integer", "minimum": 0, "maximum": 9, "if": {"minimum": 0, "multipleOf": 2}, "then": {"minimum": 4},
                      "else": {"maximum": 3}})",
          60),
      (Texts{"1", "3", "4", "6", "8"}));
  EXPECT_EQ(
      texts(
          R"({"type": ["integer", "null"], "minimum": 0, "maximum": 3, "not": {"type": "integer", "multipleOf": 2}})",
          40),
      (Texts{"1", "3", "null"}));
  EXPECT_EQ(texts(R"({"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 2,
                      "not": {"type": "array", "maxItems": 1, "items": {"const": 1}}})",
                  60),
            (Texts{"[1,1]", "[1,2]", "[2,1]", "[2,2]", "[2]"}));
  for (const char* inside : {R"("items": {"type": "boolean"})", R"("contains": {"type": "boolean"})",
                             R"("prefixItems": [{"type": "boolean"}])", R"("uniqueItems": true)",
                             R"("unevaluatedItems": {"type": "boolean"})"})
    (void)values(R"({"type": "array", "maxItems": 2, "not": {"maxItems": 2, )" + std::string(inside) + "}}",
                 10, 20);
  for (const char* inside :
       {R"("unevaluatedProperties": {"type": "boolean"})", R"("additionalProperties": {"type": "boolean"})",
        R"("propertyNames": {"maxLength": 2})"})
    (void)values(
        R"({"type": "object", "maxProperties": 1, "not": {"maxProperties": 1, )" + std::string(inside) + "}}",
        1, 12);
  // Only a member that the schema does not declare makes exactly one alternative hold.
  for (
      const Json& value : values(
          R"({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": true,
       "oneOf": [{"patternProperties": {"^c": {"type": "boolean"}}}, {"propertyNames": {"pattern": "^[abc]"}}]})",
          1, 20))
    EXPECT_GT(value.size(), 1u) << value.dump();
}

// A condition fails where its "then" or "else" does. Schemas express that, so no answer begins in a way that cannot fail it.
TEST_F(DeadEnds, ConditionsThatFail) {
  const std::string two =
      R"({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}}, "required": ["b"],
          "additionalProperties": false, )";
  for (const Json& value :
       values(two + R"("not": {"if": {"required": ["a"]}, "then": {"properties": {"b": {"const": true}}},
                                           "else": {"properties": {"b": {"const": false}}}}})",
              20))
    EXPECT_NE(value.contains("a"), value["b"]) << value;
  for (
      const Json& value : values(
          R"({"type": "object", "properties": {"name": {"type": ["string", "null"], "maxLength": 3}, "x": {"type": "boolean"},
                  "kind": {"type": "null"}}, "required": ["name", "kind"], "additionalProperties": false,
                  "if": {"if": {}, "then": {"properties": {"name": {"minLength": 2}}}}, "then": {"required": ["x"]}})",
          15))
    EXPECT_TRUE(value.contains("x") || value["name"].is_string()) << value;
  for (const char* never :
       {R"({"properties": {"a": {}}, "not": {"if": {}, "then": {"additionalProperties": true}}})",
        R"({"type": "object", "required": ["a", "b"], "maxProperties": 3,
            "oneOf": [{"required": ["b"]}, {"if": {"required": ["a"]}, "then": {"dependentRequired": {"a": ["b"]}}}]})"})
    EXPECT_NE(refusal(kSchema, never).find("nothing matches"), std::string::npos) << never;
  // So many combinations that the whole value is checked instead.
  Json some = Json::array();
  for (char c = 'a'; c < 'a' + 16; ++c) {
    const std::string name(1, c);
    some.push_back({{"if", {{"required", {name}}}},
                    {"then", {{"required", {name + "1"}}}},
                    {"else", {{"required", {name + "2"}}}}});
  }
  (void)grammar(kSchema, Json{{"type", "object"}, {"oneOf", some}}.dump());
}

// Keywords that hold for every value do not tell alternatives apart.
TEST_F(DeadEnds, KeywordsThatAlwaysHold) {
  for (const Json& value : values(R"({"type": ["integer", "object", "array"], "oneOf": [
           {"minimum": 3, "items": {}, "unevaluatedProperties": {"items": true}},
           {"unevaluatedItems": true, "minItems": 0, "properties": {"a": {"required": []}}}]})",
                                  20))
    EXPECT_TRUE(value.is_number() && value < 3) << value;
  EXPECT_NE(refusal(kSchema, R"({"type": "object", "not": {"unevaluatedProperties": true}})")
                .find("nothing matches"),
            std::string::npos);
}

// Listed multiples of a large number.
TEST_F(DeadEnds, MultiplesThatAreExcluded) {
  for (const Json& value :
       values(R"({"type": "integer", "multipleOf": 1000, "not": {"multipleOf": 3000}})", 20))
    EXPECT_TRUE(value.get<int64_t>() % 1000 == 0 && value.get<int64_t>() % 3000 != 0) << value;
  EXPECT_NE(refusal(kSchema, R"({"type": "array", "minItems": 1,
                                 "items": {"type": "integer", "multipleOf": 1000, "not": {"multipleOf": 0.1}}})")
                .find("nothing matches"),
            std::string::npos);
}

// Every string holds for both alternatives, so only numbers are left.
TEST_F(DeadEnds, TypesThatAlternativesNeverRestrict) {
  for (const char* schema :
       {R"({"type": ["integer", "string"], "oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]})",
        R"({"maxLength": 4, "oneOf": [{"multipleOf": 2}, {"minimum": 2}]})",
        R"({"maxItems": 2, "oneOf": [{"multipleOf": 2}, {"minimum": 2}]})",
        R"({"type": ["integer", "string"], "allOf": [{"oneOf": [{"multipleOf": 2}, {"minimum": 2}]}]})"})
    for (const Json& value : values(schema, 15)) EXPECT_TRUE(value.is_number()) << schema << value.dump();
}

// A number is complete before the byte after it is read, so what follows it is no dead end of its check.
TEST_F(DeadEnds, CheckedNumbersEndInObjectsAndArrays) {
  const Grammar price = grammar(
      kSchema,
      R"({"type": "object", "properties": {"p": {"type": "number", "multipleOf": 0.01}}, "required": ["p"]})");
  for (const char* text : {R"({"p":4})", R"({"p":4.2})", R"({"p": 4 })", R"({"p":417.25})"})
    EXPECT_TRUE(matches(price, text)) << text;
  EXPECT_FALSE(matches(price, R"({"p":4.6})"));  // for a checker that divides doubles
  const Grammar odd =
      grammar(kSchema, R"({"type": "array", "items": {"type": "integer", "not": {"multipleOf": 2}}})");
  for (const char* text : {"[1]", "[1,3]", "[7, 5]"}) EXPECT_TRUE(matches(odd, text)) << text;
  for (const char* text : {"[2]", "[1,4]"}) EXPECT_FALSE(matches(odd, text)) << text;
}

// Looking ahead for the end of a value whose check costs much leaves the tokens that it has no steps for.
TEST_F(DeadEnds, CostlyChecksDoNotFail) {
  for (
      const char* schema :
      {R"({"minItems": 2, "maxContains": 1, "oneOf": [{"type": "array", "unevaluatedItems": false, "contains": true}, true]})",
       R"({"not": {"type": "array", "unevaluatedItems": false, "contains": true}})"})
    for (const Json& value : values(schema, 15))
      EXPECT_FALSE(value.is_array() && !value.empty()) << schema << value;
}

// What a negation does not tell about one type is not checked, and so not searched for, in values of other types.
TEST_F(DeadEnds, NegationsAreToldByType) {
  for (
      const Json& value : values(
          R"({"type": "number", "multipleOf": 3, "not": {"exclusiveMinimum": 1, "unevaluatedItems": {"type": "boolean"}}})",
          10))
    EXPECT_TRUE(value <= 0) << value;
  for (const Json& value :
       values(R"({"type": ["integer", "null"], "if": {"multipleOf": 1}, "then": {"type": "null"}})", 10))
    EXPECT_TRUE(value.is_null()) << value;
  for (const Json& value : values(R"({"type": ["number", "object"], "oneOf": [
           {"maxProperties": 3, "additionalProperties": {"type": "boolean"}, "not": {"const": 1}}, {"minLength": 1}]})",
                                  10))
    EXPECT_TRUE(value == 1 || value.is_object()) << value;
  EXPECT_NE(refusal(kSchema, R"({"type": "integer", "not": {"multipleOf": 1}})").find("nothing matches"),
            std::string::npos);
}

// Alternatives that only an optional property tells apart: an object without it would match several of them.
TEST_F(DeadEnds, UnionsByAnOptionalProperty) {
  for (const int count : {7, 20})
    for (const bool closed : {false, true}) {
      Json union_of = Json::array();
      for (int i = 0; i < count; ++i) {
        const std::string n = std::to_string(i);
        union_of.push_back({{"type", "object"},
                            {"properties",
                             {{"kind", {{"const", "k" + n}}},
                              {"message", {{"type", "string"}}},
                              {"own" + n, {{"type", i % 2 == 0 ? "integer" : "string"}}},
                              {"path" + n, {{"type", "array"}, {"items", {{"type", "integer"}}}}}}}});
        if (closed) union_of.back()["additionalProperties"] = false;
      }
      const Json schema = {
          {"type", "object"}, {"properties", {{"x", {{"oneOf", union_of}}}}}, {"required", {"x"}}};
      (void)values(schema.dump(), 0, 4);  // some text is long, but none stops where no token is left
      const Grammar compiled = grammar(kSchema, schema.dump());
      EXPECT_TRUE(matches(compiled, R"({"x":{"kind":"k3","message":"m"}})")) << schema;
      EXPECT_EQ(matches(compiled, R"({"x":{"own4":7}})"), closed) << schema;
      EXPECT_FALSE(matches(compiled, R"({"x":{"message":"m"}})")) << schema;
    }
}

// In a checked object a blank after a member does not decide that the object ends.
TEST_F(DeadEnds, CommasFollowBlanksInCheckedObjects) {
  const Grammar compiled = grammar(
      kSchema,
      R"({"type": "object", "properties": {"a": {"type": "integer"}, "h": {"type": "integer"}}, "not": {"propertyNames": {"pattern": "^a"}}})");
  EXPECT_TRUE(matches(compiled, R"({"a":1 , "h":2 })"));
  EXPECT_FALSE(matches(compiled, R"({"a":1 })"));
}

// Dependencies are settled while the schema is compiled, so no member begins whose dependencies cannot be met any more.
TEST_F(DeadEnds, ManyDependencies) {
  const auto with = [](const std::string& members, const std::string& rest) {
    return R"({"type": "object", "additionalProperties": false, "minProperties": 1, "properties": {)" +
           members + "}, " + rest + "}";
  };
  std::string members, ring, chain, all;
  constexpr int kMembers = 9;
  for (int i = 0; i < kMembers; ++i) {
    const auto name = [](int n) { return "\"f" + std::to_string(n % kMembers) + "\""; };
    members += (i ? ", " : "") + name(i) + R"(: {"type": "boolean"})";
    ring += (i ? ", " : "") + name(i) + ": [" + name(i + 1) + "]";
    if (i > 0) chain += (i > 1 ? ", " : "") + name(i) + ": [" + name(i - 1) + "]";
    if (i > 0) all += (i > 1 ? ", " : "") + name(i) + R"(: ["f0"])";
  }
  for (const Json& value : values(with(members, R"("dependentRequired": {)" + ring + "}"), 10))
    EXPECT_EQ(value.size(), kMembers) << value;
  for (const Json& value : values(with(members, R"("dependencies": {)" + chain + "}"), 10))
    EXPECT_TRUE(value.contains("f" + std::to_string(value.size() - 1))) << value;
  for (const Json& value : values(with(members, R"("dependentRequired": {)" + all + "}"), 10))
    EXPECT_TRUE(value.contains("f0")) << value;
  // Required, and forbidden, members settle others.
  EXPECT_NE(refusal(kSchema, with(R"("f0": {}, "f1": {})",
                                  R"("required": ["f0"], "dependentRequired": {"f0": ["f1", "other"]})"))
                .find("nothing matches"),
            std::string::npos);
  for (const Json& value :
       values(with(R"("f0": {"const": 1}, "f1": {"const": 2})", R"("dependentRequired": {"f0": ["other"]})"),
              10))
    EXPECT_EQ(value, Json({{"f1", 2}}));
}

// Any number of dependencies that have nothing to do with each other: objects hold any combination of them, in the schema's order.
TEST_F(DeadEnds, IndependentDependencies) {
  for (const int pairs : {10, 60}) {
    Json members, names, schemas, conditions = Json::array();
    for (int i = 0; i < 2 * pairs; ++i)
      members[(i < pairs ? "a" : "b") + std::to_string(i % pairs)] = {{"type", "boolean"}};
    for (int i = 0; i < pairs; ++i) {
      const std::string a = "a" + std::to_string(i);
      names[a] = {"b" + std::to_string(i)};
      schemas[a] = {{"required", names[a]}};
      conditions.push_back({{"if", {{"required", {a}}}}, {"then", schemas[a]}});
    }
    const Json object = {{"type", "object"}, {"properties", members}, {"additionalProperties", false}};
    for (const auto& [keyword, said] :
         std::vector<std::pair<std::string, Json>>{{"dependentRequired", names},
                                                   {"dependencies", names},
                                                   {"dependentSchemas", schemas},
                                                   {"allOf", conditions}}) {
      Json schema = object;
      schema[keyword] = said;
      for (const Json& value : values(schema.dump(), 6, 8, 1000))
        for (const auto& [name, inside] : value.items())
          EXPECT_TRUE(name[0] == 'b' || value.contains("b" + name.substr(1))) << keyword << value;
      const Grammar compiled = grammar(kSchema, schema.dump());
      EXPECT_TRUE(matches(compiled, R"({"a1":true,"a3":true,"b1":true,"b3":true})")) << keyword;
      EXPECT_FALSE(matches(compiled, R"({"a1":true,"a3":true,"b3":true})")) << keyword;
      schema["maxProperties"] = 3;
      schema["minProperties"] = 3;
      for (const Json& value : values(schema.dump(), 6, 8, 1000)) EXPECT_EQ(value.size(), 3u) << value;
    }
  }
}

// Dependencies together with what else decides about members.
TEST_F(DeadEnds, DependenciesOfOtherMembers) {
  const auto sizes = [&](const std::string& rest) {
    std::set<size_t> out;
    for (const Json& value :
         values(R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 1}, "c": {"const": 1},
             "d": {"const": 1}, "e": {"const": 1}}, )" +
                    rest + "}",
                10, 40))
      out.insert(value.size());
    return out;
  };
  using Sizes = std::set<size_t>;
  // A ring of three and one of two: sums of 3 and 2.
  const std::string rings =
      R"("dependentRequired": {"a": ["c"], "c": ["e"], "e": ["a"], "b": ["d"], "d": ["b"]})";
  EXPECT_EQ(sizes(rings), (Sizes{0, 2, 3, 5}));
  EXPECT_EQ(sizes(rings + R"(, "minProperties": 3, "maxProperties": 4)"), Sizes{3});
  EXPECT_EQ(sizes(rings + R"(, "required": ["d"], "minProperties": 3)"), Sizes{5});
  EXPECT_NE(
      refusal(
          kSchema,
          R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 1}}, "additionalProperties": false,
                                 "dependentRequired": {"a": ["b"], "b": ["a"]}, "minProperties": 1, "maxProperties": 1})")
          .find("nothing matches"),
      std::string::npos);
  // A member that nothing matches, and an undeclared one, which is generated where it is needed.
  for (const Json& value :
       values(R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 1}, "c": {"const": 1},
             "d": {"type": "array", "items": {"$ref": "#/properties/d"}, "minItems": 1}},
             "dependentRequired": {"a": ["b"], "b": ["d"], "c": ["other"]}, "minProperties": 1})",
              5)) {
    EXPECT_TRUE(value.contains("c") && value.contains("other")) << value;
    EXPECT_FALSE(value.contains("a") || value.contains("b") || value.contains("d")) << value;
  }
  // Every object of a list with its dependencies is another one.
  for (const Json& value :
       values(R"({"type": "array", "uniqueItems": true, "minItems": 3, "items": {"type": "object",
             "properties": {"a": {"const": 1}, "b": {"const": 1}}, "additionalProperties": false, "dependentRequired": {"a": ["b"]}}})",
              5, 8))
    EXPECT_EQ(value.size(), 3u) << value;
  Json many;
  for (int i = 0; i < 300; ++i) many["a" + std::to_string(i)] = {"b" + std::to_string(i)};
  EXPECT_NE(refusal(kSchema, Json{{"type", "object"}, {"dependentRequired", many}}.dump())
                .find("wanted at most 512 members of an object that depend on each other, found 600"),
            std::string::npos);
}

// A search ahead that runs out of steps leaves the text of the answer as it was.
TEST_F(DeadEnds, SearchesThatAreCutShort) {
  Json members, schemas;
  for (int i = 0; i < 200; ++i) {
    members["a" + std::to_string(i)] = members["b" + std::to_string(i)] = {{"type", "boolean"}};
    schemas["a" + std::to_string(i)] = {{"properties", {{"b" + std::to_string(i), {{"const", true}}}}}};
  }
  (void)values(Json{{"type", "object"},
                    {"properties", members},
                    {"additionalProperties", false},
                    {"dependentSchemas", schemas}}
                   .dump(),
               8, 10, 1000);
}

// The schema of a dependency may consist of alternatives itself.
TEST_F(DeadEnds, AlternativesInADependency) {
  for (const char* required : {R"("required": ["cc"], )", ""}) {
    const std::string schema =
        R"({"type": "object", "properties": {"cc": {"enum": ["Y", "N"]}}, "additionalProperties": false, )" +
        std::string(required) + R"("dependentSchemas": {"cc": {"oneOf": [
        {"properties": {"cc": {"enum": ["N"]}}}, {"properties": {"cc": {"enum": ["Y"]}}}]}}})";
    std::set<std::string> found;
    for (const Json& value : values(schema, 20)) found.insert(value.value("cc", "none"));
    EXPECT_TRUE(found.contains("Y") && found.contains("N")) << schema;
  }
}

// Some validators accept every string as one of these formats, so no text would pass the check.
TEST_F(DeadEnds, FormatsWithoutAnOpposite) {
  for (const std::string format : {"uri-reference", "iri-reference", "uri-template", "regex"}) {
    const std::string never = R"({"not": {"format": ")" + format + R"("}})";
    EXPECT_NE(refusal(kSchema, R"({"type": "string", "maxLength": 12, "allOf": [)" + never + "]}")
                  .find("not of the format " + format),
              std::string::npos)
        << format;
    for (const Json& value : values(R"({"anyOf": [{"type": "boolean"}, )" + never + "]}", 20))
      EXPECT_TRUE(value.is_boolean()) << value;
  }
}

}  // namespace
}  // namespace sluice
