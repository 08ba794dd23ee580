// Objects of which some member must fail a schema, and unions of objects: answers that end have the member, and match one alternative.
#include "grammar_fixture.h"

namespace sluice {
namespace {

class ObjectMembers : public GrammarTest {
 protected:
  // Values drawn from the schema; drawn() fails where no token is left.
  std::vector<Json> some(const Json& schema, int least, int draws = 12) {
    const Grammar compiled = grammar(kSchema, schema.dump());
    std::vector<Json> out;
    for (uint64_t seed = 0; seed < static_cast<uint64_t>(draws); ++seed)
      if (const auto text = drawn(compiled, seed)) out.push_back(Json::parse(*text));
    EXPECT_GE(std::ssize(out), least) << schema;
    return out;
  }
};

TEST_F(ObjectMembers, SomeNameFails) {
  const Json flag = {{"type", "boolean"}}, names = {{"pattern", "^[a-d]"}};
  for (const Json& others : {Json(), Json(true), Json(false)}) {
    Json schema = {{"type", "object"}, {"properties", {{"a", flag}, {"h", flag}, {"b", flag}}}};
    schema["not"] = {{"propertyNames", names}};
    if (!others.is_null()) schema["additionalProperties"] = others;
    for (const Json& value : some(schema, 2)) {
      bool fails = false;
      for (const auto& [name, inside] : value.items()) fails |= name[0] < 'a' || name[0] > 'd';
      EXPECT_TRUE(fails) << schema << value;
    }
    const Grammar compiled = grammar(kSchema, schema.dump());
    EXPECT_TRUE(matches(compiled, R"({"a":true,"b":false,"h":true})")) << schema;
    EXPECT_FALSE(matches(compiled, R"({"a":true,"b":false})")) << schema;
  }
  // No declared name fails, so an undeclared one follows.
  const Json declared = {
      {"type", "object"}, {"properties", {{"a", flag}}}, {"not", {{"propertyNames", names}}}};
  for (const Json& value : some(declared, 2)) EXPECT_GT(value.size(), value.count("a")) << value;
  Json closed = declared;
  closed["additionalProperties"] = false;
  EXPECT_NE(refusal(kSchema, closed.dump()).find("nothing matches"), std::string::npos);
}

TEST_F(ObjectMembers, SomeValueFails) {
  Json members;
  for (int i = 0; i < 40; ++i) members["a" + std::to_string(i)] = {{"type", "boolean"}};
  members["h"] = {{"type", "boolean"}};
  const Json object = {{"type", "object"}, {"properties", members}, {"additionalProperties", false}};
  Json patterns = object, both = object;
  patterns["not"] = {{"patternProperties", {{"^a", {{"const", true}}}}}};
  for (const Json& value : some(patterns, 6)) {
    bool fails = false;
    for (const auto& [name, inside] : value.items()) fails |= name[0] == 'a' && inside == false;
    EXPECT_TRUE(fails) << value;
  }
  both["maxProperties"] = 2;
  both["allOf"] = {{{"not", {{"patternProperties", {{"^a", {{"const", true}}}}}}}},
                   {{"not", {{"additionalProperties", {{"const", false}}}, {"properties", {{"a1", true}}}}}}};
  for (const Json& value : some(both, 6)) {
    bool first = false, second = false;
    for (const auto& [name, inside] : value.items()) {
      first |= name[0] == 'a' && inside == false;
      second |= name != "a1" && inside == true;
    }
    EXPECT_TRUE(first && second && value.size() <= 2) << value;
  }
}

// A union as pydantic writes it, of nodes with lists of nodes. The property that tells them apart has a default, so it is not required.
TEST_F(ObjectMembers, RecursiveUnions) {
  for (const int kinds : {3, 5})
    for (const bool closed : {false, true})
      for (const bool with_list : {false, true}) {
        Json definitions, any = Json::array();
        for (int i = 0; i < kinds; ++i) any.push_back({{"$ref", "#/$defs/k" + std::to_string(i)}});
        for (int i = 0; i < kinds; ++i) {
          const std::string kind = "k" + std::to_string(i);
          Json& one = definitions[kind] = {
              {"type", "object"},
              {"required", {"name"}},
              {"properties",
               {{"kind", {{"const", kind}, {"default", kind}, {"title", "Kind"}, {"type", "string"}}},
                {"name", {{"type", "string"}, {"maxLength", 3}}}}}};
          if (i > 0)
            one["properties"]["children"] = {
                {"type", "array"},
                {"items", {{"discriminator", {{"propertyName", "kind"}}}, {"oneOf", any}}}};
          if (i > 0 && with_list) one["required"].push_back("children");
          if (closed) one["additionalProperties"] = false;
        }
        const Json schema = {{"$defs", definitions}, {"oneOf", any}};
        (void)some(schema, 6);
        const Grammar compiled = grammar(kSchema, schema.dump());
        EXPECT_TRUE(matches(compiled, R"({"children":[{"kind":"k0","name":"b"}],"kind":"k1","name":"a"})"))
            << schema;
        EXPECT_FALSE(matches(compiled, R"({"children":[],"name":"a"})")) << schema;
        EXPECT_FALSE(matches(compiled, R"({"children":[{"kind":"k9"}],"kind":"k1","name":"a"})")) << schema;
      }
}

// Several hundred alternatives, which a constant of one property tells apart, as in descriptions of interfaces.
TEST_F(ObjectMembers, LongUnions) {
  for (const bool referred : {false, true})
    for (const bool required : {false, true}) {
      Json any = Json::array(), definitions;
      for (int i = 0; i < 300; ++i) {
        const std::string kind = "kind" + std::to_string(i);
        const Json constant = i % 2 == 0 ? Json{{"const", kind}} : Json{{"enum", {kind, kind + "b"}}};
        const Json own = {
            {"type", "object"},
            {"properties", {{"kind", constant}, {"p" + std::to_string(i), {{"type", "boolean"}}}}},
            {"required", required ? Json{"kind", "id"} : Json{"id"}}};
        const Json base = {{"type", "object"},
                           {"properties", {{"id", {{"type", "integer"}, {"minimum", 0}, {"maximum", 9}}}}}};
        definitions[kind] = {{"allOf", {base, own}}};
        any.push_back(referred ? Json{{"$ref", "#/$defs/" + kind}} : definitions[kind]);
      }
      const Json schema = {{"$defs", definitions},
                           {"type", "array"},
                           {"minItems", 1},
                           {"maxItems", 2},
                           {"items", {{"oneOf", any}}}};
      for (const Json& value : some(schema, 6))
        for (const Json& one : value) EXPECT_TRUE(one.contains("kind") && one.contains("id")) << value;
      const Grammar compiled = grammar(kSchema, schema.dump());
      EXPECT_TRUE(matches(compiled, R"([{"id":1,"kind":"kind299b","p299":true}])"));
      EXPECT_FALSE(matches(compiled, R"([{"id":1,"kind":"kind299b","p299":1}])"));
      EXPECT_FALSE(matches(compiled, R"([{"id":1,"kind":"kind300"}])"));
    }
}

// The message tells what kind of value was found.
TEST_F(ObjectMembers, MessagesNameTheKindOfTheValue) {
  const std::pair<const char*, const char*> kAll[] = {
      {"[1]", "wanted an object, true or false, found an array, '[1]'"},
      {"null", "found null"},
      {R"({"properties": [1]})", "properties: wanted an object, found an array, '[1]'"},
      {R"({"minLength": {"a": 1}})", "minLength: wanted a whole number, found an object, '{\"a\":1}'"},
      {R"({"minLength": "5"})", "minLength: wanted a whole number, found the string '\"5\"'"},
      {R"({"required": true})", "required: wanted an array of names, found true"},
      {R"({"items": 5})", "as a schema, found the number '5'"}};
  for (const auto& [schema, said] : kAll)
    EXPECT_NE(refusal(kSchema, schema).find(said), std::string::npos) << refusal(kSchema, schema);
}

// Some validators apply "dependencies" to drafts that do not have it, and others ignore it there: every answer satisfies both.
TEST_F(ObjectMembers, DependenciesInDraftsWithoutThem) {
  const Json flag = {{"type", "boolean"}}, needs = {{"dependencies", {{"a", Json::array({"b"})}}}};
  Json schema = {
      {"type", "object"}, {"properties", {{"a", flag}, {"b", flag}}}, {"additionalProperties", false}};
  const auto with = [&schema](const char* key, const Json& value) {
    Json out = schema;
    out[key] = value;
    return out;
  };
  for (const Json& value : some(with("allOf", Json::array({needs})), 10))
    EXPECT_TRUE(!value.contains("a") || value.contains("b")) << value;
  const Json either = Json::array({{{"required", Json::array({"b"})}}, needs});
  for (const Json& value : some(with("oneOf", either), 10)) EXPECT_TRUE(value.empty()) << value;
  EXPECT_NE(refusal(kSchema, with("not", needs).dump()).find("nothing matches"), std::string::npos);
  schema["$schema"] = "http://json-schema.org/draft-07/schema#";
  for (const Json& value : some(with("not", needs), 10))
    EXPECT_TRUE(value.contains("a") && !value.contains("b")) << value;
}

// The objects fail in so many ways that only some are told; the other types fail in few.
TEST_F(ObjectMembers, ManyNegationsOfOneTypeLeaveThoseOfOthers) {
  const Json numbers =
      Json::parse(R"({"oneOf": [{"maximum": 100000, "type": "number"}, {"minimum": 1, "anyOf": [{"anyOf": [
      {"type": "object", "maxProperties": 3, "properties": {"b": {"type": "string"}}, "dependencies": {"a b": {"type": "boolean"}}},
      {"type": "object", "required": ["c", "a"], "maxProperties": 2, "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
       "allOf": [{"type": "boolean"}, {"type": "boolean"}]}]}, {"type": "number"}]}]})");
  for (const Json& value : some(numbers, 8, 40))
    EXPECT_TRUE(!value.is_number() || value < 1 || value > 100000) << value;
  // Two of eleven alternatives hold: for an object in many ways, for a string in one.
  Json pairs = {{"type", "string"}, {"pattern", "^[a-z]*$"}};
  for (int i = 0; i < 9; ++i)
    pairs["not"]["oneOf"].push_back({{"type", "object"}, {"required", {"a" + std::to_string(i)}}});
  pairs["not"]["oneOf"].push_back({{"type", "string"}, {"maxLength", 6}});
  pairs["not"]["oneOf"].push_back({{"type", "string"}, {"minLength", 3}});
  for (const Json& value : some(pairs, 20, 40)) {
    EXPECT_GE(value.get<std::string>().size(), 3u) << value;
    EXPECT_LE(value.get<std::string>().size(), 6u) << value;
  }
}

TEST_F(ObjectMembers, SomeMemberIsNotEvaluated) {
  for (const char* inside : {R"({"properties": {"a": true}, "unevaluatedProperties": false})",
                             R"({"patternProperties": {"^a": true}, "unevaluatedProperties": false})"}) {
    const std::string schema =
        R"({"type": "object", "properties": {"a": {"const": 1}}, "not": )" + std::string(inside) + "}";
    const Grammar compiled = grammar(kSchema, schema);
    for (const char* right : {R"({"b":0})", R"({"a":1,"b":0})"})
      EXPECT_TRUE(matches(compiled, right)) << inside;
    for (const char* wrong : {"{}", R"({"a":1})", R"({"a":2,"b":0})"})
      EXPECT_FALSE(matches(compiled, wrong)) << inside;
  }
}

}  // namespace
}  // namespace sluice
