// Only in builds that have xgrammar.
#include "grammar/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "base/random.h"

namespace sluice {
namespace {

constexpr GrammarKind kSchema = GrammarKind::kJsonSchema;

Tokenizer shipped() {
  auto tokenizer = Tokenizer::load(SLUICE_SOURCE_DIR "/models/sluice-16e-tiny/tokenizer.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message;
  return std::move(tokenizer).value();
}

class GrammarTest : public ::testing::Test {
 protected:
  const Tokenizer tokenizer_ = shipped();
  const int64_t vocab_ =
      tokenizer_.vocab_size() + 37;  // as models have it: more logits than tokens, and no whole word
  const int32_t end_ = *tokenizer_.id_of("<|return|>");
  GrammarCompiler compiler_{tokenizer_, vocab_, end_};

  std::vector<int32_t> allowed(GrammarMatcher* matcher) const {
    std::vector<uint32_t> bits(static_cast<size_t>((vocab_ + 31) / 32), 0x5a5a5a5a);
    matcher->allowed(bits);
    std::vector<int32_t> out;
    for (size_t id = 0; id < bits.size() * 32; ++id)
      if (bits[id / 32] >> (id % 32) & 1) out.push_back(static_cast<int32_t>(id));
    for (const int32_t id : out) {
      EXPECT_LT(id, tokenizer_.vocab_size()) << "a logit without a token";
      EXPECT_TRUE(id == end_ || !tokenizer_.is_special(id)) << tokenizer_.piece(id);
    }
    EXPECT_FALSE(out.empty());
    return out;
  }
  Grammar grammar(GrammarKind kind, const std::string& text) {
    auto out = compiler_.compile({kind, text});
    EXPECT_TRUE(out.ok()) << out.status().message;
    return std::move(out).value();
  }
  // A text drawn from the tokens that may come; none if it has not ended after so many.
  std::optional<std::string> drawn(const Grammar& grammar, uint64_t seed, int tokens_max = 400) {
    GrammarMatcher matcher(grammar);
    Random random(seed);
    std::string text;
    for (int i = 0; i < tokens_max; ++i) {
      const auto ids = allowed(&matcher);
      // Ends where it can, so that texts end.
      const bool ends = std::find(ids.begin(), ids.end(), end_) != ids.end();
      const int32_t id = ends && random.integer(0, 2) == 0
                             ? end_
                             : ids[static_cast<size_t>(random.integer(0, std::ssize(ids) - 1))];
      EXPECT_TRUE(matcher.accept(id));
      if (id == end_) return text;
      text += tokenizer_.piece(id);
    }
    return {};
  }
  bool matches(const Grammar& grammar, std::string_view text) {
    std::vector<int32_t> ids;
    EXPECT_TRUE(tokenizer_.encode(text, Specials::kAsText, &ids).ok());
    ids.push_back(end_);
    GrammarMatcher matcher(grammar);
    for (const int32_t id : ids) {
      const auto may = allowed(&matcher);
      const bool listed = std::find(may.begin(), may.end(), id) != may.end();
      EXPECT_EQ(matcher.accept(id), listed) << text << " at '" << tokenizer_.piece(id) << "' " << id;
      if (!listed) return false;
    }
    EXPECT_TRUE(matcher.done());
    return true;
  }
  std::string refusal(GrammarKind kind, const std::string& text) {
    const auto out = compiler_.compile({kind, text});
    EXPECT_FALSE(out.ok()) << text;
    return out.status().message;
  }
};

constexpr char kPerson[] = R"({"type": "object", "properties": {
    "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "city": {"enum": ["Zürich", "東京"]}, "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
    "required": ["name", "age", "city"], "additionalProperties": false})";

TEST_F(GrammarTest, ASchemaHoldsWhateverIsDrawn) {
  const Grammar person = grammar(kSchema, kPerson);
  int ended = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const auto text = drawn(person, seed);
    if (!text) continue;
    ++ended;
    const auto json = parse_json(valid_utf8(*text), "answer");
    ASSERT_TRUE(json.ok()) << *text << ": " << json.status().message;
    const Json& j = json.value();
    EXPECT_TRUE(j.at("name").is_string());
    EXPECT_TRUE(j.at("age").is_number_integer() && j["age"] >= 0 && j["age"] <= 150) << *text;
    EXPECT_TRUE(j.at("city") == "Zürich" || j["city"] == "東京") << *text;
    EXPECT_LE(j.size(), 4u);
    EXPECT_LE(j.value("tags", Json::array()).size(), 3u);
  }
  EXPECT_GT(ended, 20);
}

TEST_F(GrammarTest, TakesWhatMatchesAndNothingElse) {
  const Grammar person = grammar(kSchema, kPerson);
  EXPECT_TRUE(matches(person, R"({"name": "Zoë \"Z\" 🦆", "age": 7, "city": "東京"})"));
  EXPECT_TRUE(matches(person, "{\n  \"name\":\"\",\"age\":150,\"city\":\"Zürich\",\"tags\":[true]\n}"));
  EXPECT_FALSE(matches(person, R"({"name": "Z", "age": 151, "city": "東京"})"));
  EXPECT_FALSE(matches(person, R"({"name": "Z", "age": 7})"));
  EXPECT_FALSE(matches(person, R"({"name": "Z", "age": 7, "city": "東京", "more": 1})"));
  EXPECT_FALSE(matches(person, R"({"name": "Z", "age": 7, "city": "東京"} )"));
  EXPECT_FALSE(matches(person, "{\"name\": \"\n\", \"age\": 7, \"city\": \"東京\"}"));
  const Grammar any = grammar(kSchema, any_json_object().text);
  EXPECT_TRUE(matches(any, R"({"b": [1, -2.5e3, {"c": null}], "a": "x"})"));
  EXPECT_FALSE(matches(any, "[1]"));
  const Grammar code = grammar(GrammarKind::kRegex, R"([A-Z]{2}-\d{3}|nein)");
  EXPECT_TRUE(matches(code, "AB-123"));
  EXPECT_TRUE(matches(code, "nein"));
  EXPECT_FALSE(matches(code, "AB-12"));
  const Grammar list = grammar(GrammarKind::kEbnf, "root ::= item (\", \" item)*\nitem ::= [a-z]+");
  EXPECT_TRUE(matches(list, "one, two, three"));
  EXPECT_FALSE(matches(list, "one,two"));
  const std::vector<std::string> words{"yes", "say \"no\"", "back\\slash", "two\nlines", "ja ✓"};
  const Grammar choice = grammar(GrammarKind::kEbnf, one_of_strings(words).text);
  for (const std::string& word : words) EXPECT_TRUE(matches(choice, word)) << word;
  EXPECT_FALSE(matches(choice, "ye"));
  EXPECT_FALSE(matches(choice, ""));
}

// Where the schema alone would let through what is no JSON.
TEST_F(GrammarTest, AnswersToASchemaAreJson) {
  for (const char* schema :
       {R"({"type": "string", "maxLength": 6})", R"({"type": "string", "minLength": 3})",
        R"({"type": "string", "format": "json-pointer"})", R"({"type": "string", "pattern": "^[^a]{0,9}$"})",
        R"({"enum": ["a\tb", "q\"x", 5, null]})",
        R"({"type": "object", "additionalProperties": {"type": "boolean"}})"}) {
    const Grammar compiled = grammar(kSchema, schema);
    int ended = 0;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      const auto text = drawn(compiled, seed, 150);
      if (!text) continue;
      ++ended;
      EXPECT_TRUE(parse_json(valid_utf8(*text), "answer").ok()) << schema << ": " << *text;
    }
    EXPECT_GT(ended, 25) << schema;
  }
}

TEST_F(GrammarTest, BehindTheEndAndAWrongTokenOnlyTheEndMayCome) {
  const Grammar yes = grammar(GrammarKind::kRegex, "yes");
  EXPECT_TRUE(matches(yes, "yes"));
  GrammarMatcher wrong(yes);
  EXPECT_FALSE(wrong.accept(*tokenizer_.id_of("<|start|>")));
  EXPECT_TRUE(wrong.done());
  EXPECT_EQ(allowed(&wrong), std::vector<int32_t>{end_});
  EXPECT_TRUE(wrong.accept(end_));
  GrammarMatcher ended(grammar(GrammarKind::kRegex, "a*"));
  EXPECT_TRUE(ended.accept(end_));
  EXPECT_EQ(allowed(&ended), std::vector<int32_t>{end_});
}

TEST_F(GrammarTest, RefusesWhatItCouldNotKeep) {
  EXPECT_NE(refusal(kSchema, "{").find("JSON schema"), std::string::npos);
  EXPECT_NE(refusal(kSchema, "[]").find("object or bool"), std::string::npos);
  EXPECT_NE(refusal(kSchema, "false").find("cannot accept any value"), std::string::npos);
  EXPECT_NE(refusal(kSchema, R"({"type": "strin"})").find("Unsupported type"), std::string::npos);
  EXPECT_NE(refusal(kSchema, R"({"not": {"type": "string"}})").find("not"), std::string::npos);
  EXPECT_NE(refusal(kSchema, R"({"type": "array", "uniqueItems": true})").find("uniqueItems"),
            std::string::npos);
  EXPECT_NE(refusal(kSchema, R"({"type": "number", "multipleOf": 0.5})").find("multipleOf"),
            std::string::npos);
  EXPECT_NE(refusal(kSchema, R"({"allOf": [{"type": "string"}, {"type": "number"}]})").find("allOf"),
            std::string::npos);
  EXPECT_NE(refusal(kSchema, R"({"$ref": "https://example.org/x.json"})").find("URI"), std::string::npos);
  EXPECT_NE(
      refusal(kSchema,
              R"({"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}], "maxLength": 2}}})")
          .find("JSON schema.properties.a: wanted anyOf alone, found 'maxLength' beside it"),
      std::string::npos);
  EXPECT_NE(refusal(GrammarKind::kRegex, "a(?!b)").find("regular expression"), std::string::npos);
  EXPECT_NE(refusal(GrammarKind::kRegex, "a(b").find("parenthesis"), std::string::npos);
  EXPECT_NE(refusal(GrammarKind::kEbnf, "root ::= nowhere").find("EBNF grammar"), std::string::npos);
  EXPECT_NE(refusal(kSchema, R"({"$ref": "#"})").find("nothing matches"), std::string::npos);
  // The same again, from no cache.
  EXPECT_NE(refusal(kSchema, R"({"not": {"type": "string"}})").find("not"), std::string::npos);
  EXPECT_TRUE(matches(grammar(kSchema, R"({"type": "integer"})"), "12"));
}

TEST_F(GrammarTest, BombsAreRefusedOrSmall) {
  const auto repeated = [](const char* part, int times) {
    std::string out;
    while (times-- > 0) out += part;
    return out;
  };
  std::string optional = R"({"type": "object", "properties": {"p": true)";
  for (int i = 0; i < 300; ++i) optional += ", \"p" + std::to_string(i) + "\": true";
  EXPECT_NE(refusal(kSchema, optional + "}}").find("wanted at most 256 that are not required, found 301"),
            std::string::npos);
  EXPECT_NE(
      refusal(kSchema, R"({"anyOf": [)" + repeated("true,", 1001) + "true]}").find("at most 1000 schemas"),
      std::string::npos);
  EXPECT_NE(refusal(kSchema, repeated(R"({"items":)", 70) + "true" + repeated("}", 70)).find("64 levels"),
            std::string::npos);
  EXPECT_NE(refusal(kSchema, R"({"title": ")" + repeated("x", 70000) + "\"}").find("bytes"),
            std::string::npos);
  EXPECT_NE(refusal(kSchema, R"({"type": "string", "pattern": ")" + repeated("a?", 300) + "\"}")
                .find("at most 512 bytes, found 600"),
            std::string::npos);
  EXPECT_NE(refusal(GrammarKind::kRegex, repeated("a?", 300)).find("600 bytes"), std::string::npos);
  EXPECT_NE(refusal(GrammarKind::kEbnf, "root ::= " + repeated("(", 5000) + "\"a\"" + repeated(")", 5000)),
            "");
  // Counts are no sizes.
  EXPECT_TRUE(compiler_.compile({GrammarKind::kRegex, "((a{1,99}){1,99}){1,99}b{999999}"}).ok());
  EXPECT_TRUE(
      compiler_
          .compile({kSchema, R"({"type": "array", "items": {"type": "string", "maxLength": 1000000000},
                                             "minItems": 1000000, "maxItems": 1000000000})"})
          .ok());
  std::string doubling = R"({"$defs": {"d0": {"type": "string"})";
  for (int i = 1; i < 60; ++i) {
    const std::string before = R"({"$ref": "#/$defs/d)" + std::to_string(i - 1) + "\"}";
    doubling += ", \"d" + std::to_string(i) + R"(": {"type": "array", "prefixItems": [)" + before + ", " +
                before + "]}";
  }
  EXPECT_TRUE(compiler_.compile({kSchema, doubling + R"(}, "$ref": "#/$defs/d59"})"}).ok());
}

TEST_F(GrammarTest, CompilesTheSameTextOnce) {
  const Grammar one = grammar(kSchema, kPerson), other = grammar(kSchema, kPerson);
  GrammarMatcher a(one), b(other);
  EXPECT_TRUE(a.accept(allowed(&a).front()));
  EXPECT_NE(allowed(&a), allowed(&b)) << "matchers share their place";
}

}  // namespace
}  // namespace sluice
