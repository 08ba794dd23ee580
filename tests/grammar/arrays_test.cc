// Answers to schemas of arrays: whatever is drawn, the array ends and is valid.
#include <functional>
#include <set>

#include "grammar_fixture.h"

namespace sluice {
namespace {

class ArraysTest : public GrammarTest {
 protected:
  struct Case {
    const char* schema;
    std::function<bool(const Json&)> holds;
    int ended = 25;  // of 40 draws
  };
  void check(const std::vector<Case>& cases) {
    for (const Case& c : cases) {
      const Grammar compiled = grammar(kSchema, c.schema);
      int ended = 0;
      for (uint64_t seed = 0; seed < 40; ++seed) {
        const auto text = drawn(compiled, seed);  // fails where no token is left
        if (!text) continue;
        ++ended;
        const Json value = Json::parse(*text, nullptr, false);
        ASSERT_TRUE(value.is_array()) << c.schema << ": " << *text;
        EXPECT_TRUE(c.holds(value)) << c.schema << ": " << *text;
      }
      EXPECT_GE(ended, c.ended) << c.schema;
    }
  }
  static int64_t count(const Json& array, const Json& value) {
    return std::count(array.begin(), array.end(), value);
  }
  static bool differ(const Json& array) {
    std::set<std::string> all;
    for (const Json& one : array) all.insert(one.dump());
    return all.size() == array.size();
  }
};

// Does "contains" of 2019-09 evaluate elements? The draft and its validators disagree.
TEST_F(ArraysTest, WhatValidatorsJudgeDifferentlyIsNotGenerated) {
  for (const char* schema :
       {R"({"$schema": "https://json-schema.org/draft/2019-09/schema", "type": "array",
                                 "not": {"contains": {"const": 1}, "unevaluatedItems": false}})",
        R"({"$schema": "https://json-schema.org/draft/2019-09/schema", "type": "array", "maxItems": 2,
                                 "if": {"contains": {"const": 1}, "unevaluatedItems": false}, "then": {"minItems": 9}})"}) {
    const Grammar compiled = grammar(kSchema, schema);
    for (const char* right : {"[]", R"(["a"])", R"([1, "a"])"})
      EXPECT_TRUE(matches(compiled, right)) << right;
    for (const char* wrong : {"[1]", "[1, 1]"}) EXPECT_FALSE(matches(compiled, wrong)) << wrong;
  }
}

TEST_F(ArraysTest, SeveralContainedAreAllThere) {
  check({
      {R"({"type": "array", "items": {"type": "integer"}, "allOf": [{"contains": {"const": 0}}, {"contains": {"const": 1}}]})",
       [](const Json& a) { return count(a, 0) > 0 && count(a, 1) > 0; }},
      {R"({"type": "array", "items": {"type": "integer"}, "maxItems": 3,
           "allOf": [{"contains": {"const": 0}}, {"contains": {"const": 1}}, {"contains": {"minimum": 5}}]})",
       [](const Json& a) {
         return a.size() == 3 && count(a, 0) == 1 && count(a, 1) == 1 &&
                std::any_of(a.begin(), a.end(), [](const Json& v) { return v >= 5; });
       }},
      {R"({"type": "array", "items": {"enum": [1, 2, 3]}, "contains": {"const": 1}, "minContains": 2,
           "allOf": [{"contains": {"const": 2}, "maxContains": 1}]})",
       [](const Json& a) { return count(a, 1) >= 2 && count(a, 2) == 1; }},
      // One element can be what both want.
      {R"({"type": "array", "items": {"enum": [1, 7]}, "maxItems": 1, "allOf": [{"contains": {"minimum": 5}}, {"contains": {"maximum": 9}}]})",
       [](const Json& a) { return a == Json::array({7}); }},
      {R"({"type": "array", "items": {"enum": [1, 2, 3]}, "oneOf": [{"contains": {"const": 1}}, {"contains": {"const": 2}}]})",
       [](const Json& a) { return (count(a, 1) > 0) != (count(a, 2) > 0); }},
      {R"({"type": "array", "items": {"enum": [1, 2, 3]}, "if": {"contains": {"const": 1}}, "then": {"minItems": 3},
           "else": {"maxItems": 2}})",
       [](const Json& a) { return count(a, 1) > 0 ? a.size() >= 3 : a.size() <= 2; }},
  });
  for (
      const char* schema :
      {R"({"type": "array", "maxItems": 1, "allOf": [{"contains": {"const": 0}}, {"contains": {"const": 1}}]})",
       R"({"type": "array", "contains": {"const": 0}, "not": {"contains": {"minimum": 0}}})"})
    EXPECT_NE(refusal(kSchema, schema).find("nothing matches"), std::string::npos) << schema;
  EXPECT_NE(refusal(kSchema, R"({"type": "array", "contains": {"const": 0}, "minContains": 5000})")
                .find("contains: wanted at most 5 at one place, and at most 2000 combinations"),
            std::string::npos);
}

TEST_F(ArraysTest, WhatElementsMustNotBe) {
  check({
      {R"({"type": "array", "items": {"type": ["integer", "boolean"]}, "not": {"items": {"type": "integer"}}})",
       [](const Json& a) {
         return std::any_of(a.begin(), a.end(), [](const Json& v) { return v.is_boolean(); });
       }},
      {R"({"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "not": {"contains": {"const": 2}}})",
       [](const Json& a) { return a.size() >= 2 && count(a, 2) == 0; }},
      {R"({"type": "array", "items": {"enum": [1, 2, 3]}, "maxItems": 4, "not": {"contains": {"const": 2}, "minContains": 2}})",
       [](const Json& a) { return a.size() <= 4 && count(a, 2) < 2; }},
      {R"({"type": "array", "items": {"enum": [1, 2]}, "not": {"contains": {"const": 2}, "minContains": 1, "maxContains": 2}})",
       [](const Json& a) { return count(a, 2) == 0 || count(a, 2) > 2; }},
      {R"({"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "boolean"}], "items": false,
           "not": {"prefixItems": [{"const": true}, {"const": false}]}})",
       [](const Json& a) {
         return (!a.empty() && a[0] != Json(true)) || (a.size() > 1 && a[1] != Json(false));
       }},
      {R"({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": {"enum": [1, 2]}, "maxItems": 3,
           "not": {"items": [{"const": 1}], "additionalItems": {"const": 2}}})",
       [](const Json& a) {
         return (!a.empty() && a[0] != 1) || (a.size() > 1 && a[1] != 2) || (a.size() > 2 && a[2] != 2);
       }},
      {R"({"type": "array", "items": {"enum": [1, 2, 3]}, "maxItems": 4, "not": {"uniqueItems": true}})",
       [](const Json& a) { return a.size() <= 4 && !differ(a); }},
      {R"({"type": "array", "items": {"type": "string", "maxLength": 3}, "if": {"uniqueItems": true}, "then": {"maxItems": 2},
           "else": {"minItems": 3}})",
       [](const Json& a) { return differ(a) ? a.size() <= 2 : a.size() >= 3; }, 10},
      {R"({"type": "array", "maxItems": 3, "not": {"uniqueItems": true}, "items": {"type": "object",
           "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}})",
       [](const Json& a) { return a.size() <= 3 && !differ(a); }},
  });
  EXPECT_NE(
      refusal(kSchema, R"({"type": "array", "maxItems": 1, "not": {"uniqueItems": true}})").find("nothing"),
      std::string::npos);
  EXPECT_NE(refusal(kSchema,
                    R"({"type": "array", "prefixItems": [{"type": "null"}], "not": {"uniqueItems": true}})")
                .find("not of uniqueItems: wanted no prefixItems and no contains next to it"),
            std::string::npos);
}

TEST_F(ArraysTest, ElementsThatMustDifferAreEnough) {
  check({
      {R"({"type": "array", "uniqueItems": true, "items": {"type": ["null", "boolean"]}, "minItems": 2})",
       [](const Json& a) { return differ(a) && a.size() >= 2; }},
      {R"({"type": "array", "uniqueItems": true, "prefixItems": [{"enum": [1, 2]}, {"enum": [1, 2]}],
           "items": {"enum": [1, 2, 3]}, "minItems": 3})",
       [](const Json& a) { return differ(a) && a.size() == 3 && a[2] == 3; }},
      {R"({"type": "array", "uniqueItems": true, "items": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}})",
       differ},
      {R"({"type": "array", "uniqueItems": true, "items": {"oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]}})",
       differ},
      {R"({"type": "array", "uniqueItems": true, "items": {"enum": [1, 2, 3]}, "contains": {"const": 3}})",
       [](const Json& a) { return differ(a) && count(a, 3) == 1; }},
      {R"({"type": "array", "uniqueItems": true, "items": {"anyOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, "minItems": 3})",
       [](const Json& a) { return differ(a) && a.size() == 3; }},
      // The first element must leave a value for the second.
      {R"({"type": "array", "uniqueItems": true, "prefixItems": [{"enum": ["aa", "ab"]}, {"const": "aa"}],
           "items": {"enum": ["aa", "ab", "cc"]}, "minItems": 3})",
       [](const Json& a) {
         return a == Json::array({"ab", "aa", "cc"});
       }},
      {R"({"type": "array", "uniqueItems": true, "items": {"type": ["boolean", "null"], "not": {"const": true}}, "minItems": 2})",
       [](const Json& a) { return differ(a) && a.size() == 2 && count(a, true) == 0; }},
      {R"({"type": "array", "uniqueItems": true, "items": {"enum": [1, 2, 3, "x"]}, "contains": {"type": "integer"},
           "minContains": 3, "maxItems": 3})",
       [](const Json& a) { return differ(a) && a.size() == 3 && count(a, "x") == 0; }},
      {R"({"type": "array", "uniqueItems": true, "items": {"type": "object", "properties": {"a": {"type": "boolean"}},
           "required": ["a"], "additionalProperties": false}, "minItems": 2})",
       [](const Json& a) { return differ(a) && a.size() == 2; }},
      {R"({"type": "array", "uniqueItems": true, "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 1}, "minItems": 3})",
       [](const Json& a) { return differ(a) && a.size() == 3; }},
  });
  for (
      const char* schema :
      {R"({"type": "array", "uniqueItems": true, "items": {"type": ["null", "boolean"]}, "minItems": 4})",
       R"({"type": "array", "uniqueItems": true, "prefixItems": [{"const": 1}, {"const": 1}], "minItems": 2})",
       R"({"type": "array", "uniqueItems": true, "items": {"anyOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, "minItems": 4})",
       R"({"type": "array", "uniqueItems": true, "items": {"type": "string", "pattern": "^[0-9]{2}$"}, "minItems": 101})",
       R"({"type": "array", "uniqueItems": true, "minItems": 4, "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 1}})"})
    EXPECT_NE(refusal(kSchema, schema).find("nothing matches"), std::string::npos) << schema;
  // Spelled with and without blanks.
  const Grammar objects =
      grammar(kSchema, R"({"type": "array", "uniqueItems": true, "items": {"type": "object", "properties":
      {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false}})");
  EXPECT_TRUE(matches(objects, R"([{"a": 1}, {"a": 2}])"));
  EXPECT_TRUE(matches(objects, R"([{"a":2},{"a":1}])"));
  EXPECT_FALSE(matches(objects, R"([{"a": 1}, {"a":1}])"));
}

}  // namespace
}  // namespace sluice
