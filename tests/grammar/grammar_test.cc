#include "grammar/grammar.h"

#include "grammar_fixture.h"

namespace sluice {
namespace {

constexpr char kPerson[] = R"({"type": "object", "properties": {
    "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "city": {"enum": ["Zürich", "東京"]}, "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
    "required": ["name", "age", "city"], "additionalProperties": false})";

TEST_F(GrammarTest, ASchemaHoldsWhateverIsSampled) {
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
  const Grammar choice = one_of(words);
  for (const std::string& word : words) EXPECT_TRUE(matches(choice, word)) << word;
  EXPECT_FALSE(matches(choice, "ye"));
  EXPECT_FALSE(matches(choice, ""));
}

// Schemas that alone would admit text that is not JSON.
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

TEST_F(GrammarTest, TokensAfterTheEndAndWrongTokensAreErrors) {
  const Grammar yes = grammar(GrammarKind::kRegex, "yes");
  EXPECT_TRUE(matches(yes, "yes"));
  std::vector<uint32_t> bits(static_cast<size_t>((vocab_ + 31) / 32));
  GrammarMatcher wrong(yes);
  EXPECT_FALSE(wrong.accept(*tokenizer_.id_of("<|start|>")).ok());
  EXPECT_FALSE(wrong.done());
  EXPECT_NE(wrong.allowed(bits).message.find("wanted a token that the grammar allows"), std::string::npos);
  EXPECT_FALSE(wrong.accept(end_).ok());
  GrammarMatcher early(yes);
  EXPECT_EQ(early.accept(end_).code, Code::kUnsupported) << "the text is not complete; the request is right";
  GrammarMatcher ended(grammar(GrammarKind::kRegex, "a*"));
  EXPECT_TRUE(ended.accept(end_).ok());
  EXPECT_TRUE(ended.done());
  EXPECT_FALSE(ended.allowed(bits).ok());
}

TEST_F(GrammarTest, GrammarsOfClients) {
  struct {
    const char* grammar;
    std::vector<const char*> right, wrong;
  } const cases[] = {
      {"root ::= \"née\"", {"née"}, {"ne"}},
      {"root ::= \"\\xe9t\\u00e9\"", {"été"}, {"\xe9t\xe9"}},
      {"# sums\nroot ::= term (ws \"+\" ws term)*\nterm ::= [0-9]+ | \"(\" root \")\"\nws ::= \" \"?",
       {"1 + (2+3)", "7"},
       {"1 +", "(1"}},
      {"root ::= root \"a\" | \"b\"", {"b", "baaa"}, {"a", "ab"}},
      {"root ::= \"a\" root | \"b\"", {"b", "aaab"}, {"aa"}},
      {"root ::= [^\\x00-\\x7f]{2,3}", {"äö", "東京都"}, {"ä", "ab", "äöüß"}},
      {"root ::= x{2} | y\nx ::= \"(\" y \")\"\ny ::= \"\" | x", {"()(())", ""}, {"()()()"}},
  };
  for (const auto& c : cases) {
    const Grammar compiled = grammar(GrammarKind::kEbnf, c.grammar);
    for (const char* text : c.right) EXPECT_TRUE(matches(compiled, text)) << c.grammar << ": " << text;
    for (const char* text : c.wrong) EXPECT_FALSE(matches(compiled, text)) << c.grammar << ": " << text;
  }
}

// Nothing follows '$', except that Python's also matches before a final line feed.
TEST_F(GrammarTest, LookAheadsAfterTheEnd) {
  const Grammar whole = grammar(GrammarKind::kRegex, "a+$(?![\\s\\S])");
  EXPECT_TRUE(matches(whole, "aa"));
  EXPECT_FALSE(matches(whole, "aab"));
  const Grammar pattern = grammar(kSchema, R"x({"type": "string", "pattern": "^[0-9a-f]{2}$(?![\\s\\S])"})x");
  EXPECT_TRUE(matches(pattern, R"("0f")"));
  for (const char* text : {R"("0f0")", R"("0f\n")", R"("f")"}) EXPECT_FALSE(matches(pattern, text)) << text;
  const Grammar never =
      grammar(kSchema, R"x({"enum": ["a", "a\n", "b\n"], "not": {"pattern": "^a$(?=\\n|$)"}})x");
  for (const char* text : {R"("a")", R"("a\n")"}) EXPECT_FALSE(matches(never, text)) << text;
  EXPECT_TRUE(matches(never, R"("b\n")"));
  EXPECT_NE(refusal(GrammarKind::kRegex, "a$(?=b)").find("nothing matches"), std::string::npos);
  EXPECT_NE(refusal(GrammarKind::kRegex, "(?:a$|b)(?!c)").find("a look-ahead after a group with '$'"),
            std::string::npos);
}

TEST_F(GrammarTest, RefusesWhatItCannotGuarantee) {
  struct {
    GrammarKind kind;
    const char *text, *said;
  } const cases[] = {
      {kSchema, "{", "JSON schema"},
      {kSchema, "[]", "wanted an object, true or false, found an array"},
      {kSchema, "false", "nothing matches"},
      {kSchema, R"({"type": "strin"})",
       "type: wanted null, boolean, integer, number, string, array or object, found the string '\"strin\"'"},
      {kSchema, R"({"not": {}})", "nothing matches"},
      {kSchema, R"({"type": "number", "multipleOf": 0})", "multipleOf: wanted a number above 0"},
      {kSchema, R"({"type": "number", "multipleOf": 0.00000123456789})", "multipleOf"},
      {kSchema, R"({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-300})",
       "bounds that allow only numbers of more than 15 digits, the maximum for a number with bounds"},
      {kSchema, R"({"type": "number", "minimum": 2, "maximum": 1})", "nothing matches"},
      {kSchema, R"({"allOf": [{"type": "string"}, {"type": "number"}]})", "nothing matches"},
      {kSchema, R"({"$ref": "https://example.org/x.json"})", "URI"},
      {kSchema, R"({"$ref": "#/nowhere"})", "found nothing"},
      {kSchema, R"({"$ref": "#"})", "refers to itself"},
      {kSchema, R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "nothing matches"},
      {kSchema, R"({"type": "string", "pattern": "\\bx"})", "word boundary"},
      {kSchema, R"({"type": "string", "pattern": "("})", "without its ')'"},
      {kSchema, R"({"required": true})", "required: wanted an array of names"},
      {kSchema, R"({"type": "array", "items": {"type": "boolean"}, "uniqueItems": true, "minItems": 3})",
       "nothing matches"},
      {GrammarKind::kRegex, "a(?<!b)", "look-behind"},
      {GrammarKind::kRegex, "(?i)yes|no", "flags, such as (?i), which are not supported"},
      {GrammarKind::kRegex, "(?-i:yes)", "flags, such as (?i), which are not supported"},
      {GrammarKind::kRegex, "(?#note)a", "a kind of group that is not supported"},
      {GrammarKind::kRegex, "a(b", "without its ')'"},
      {GrammarKind::kRegex, "\\p{L", "without its '}'"},
      {GrammarKind::kRegex, "a\\P{Lu", "without its '}'"},
      {GrammarKind::kRegex, "[\\p{L]", "without its '}'"},
      {GrammarKind::kRegex, "\\p{", "without its '}'"},
      {GrammarKind::kRegex, "\\p{L }", "not known"},
      {GrammarKind::kRegex, "\\p{LU}", "not known"},
      {GrammarKind::kRegex, "\\p{emoji}", "not known"},
      {GrammarKind::kRegex, "\\p{Greek}", "not known"},
      {GrammarKind::kRegex, "\\p{Script=greek}", "not known"},
      {GrammarKind::kRegex, "\\p{Script=Gree k}", "not known"},
      {GrammarKind::kRegex, "\\p{sc=Nowhere}", "not known"},
      {GrammarKind::kRegex, "\\p", "not known"},
      {GrammarKind::kRegex, "(?<a", "without its '>'"},
      {GrammarKind::kRegex, "a\\c", "without a letter"},
      {GrammarKind::kRegex, "\\u{1f600", "no code point"},
      {kSchema, R"({"type": "string", "pattern": "^\\p{L"})", "without its '}'"},
      {GrammarKind::kRegex, "\\ud83d\\ude00", "pair of surrogates, which is read differently"},
      {GrammarKind::kRegex, "[^\\uD83D\\uDE00]", "pair of surrogates, which is read differently"},
      {kSchema, R"({"type": "string", "pattern": "^\\ud83d\\ude00+$"})", "pair of surrogates"},
      {kSchema, R"({"type": "string", "pattern": "^\\ud83d$"})", "nothing matches"},
      {GrammarKind::kRegex, "[[:alpha:]]{3}", "read differently"},
      {GrammarKind::kRegex, "[a-z&&[^aeiou]]", "read differently"},
      {GrammarKind::kRegex, "(a)\\1", "back reference"},
      {GrammarKind::kEbnf, "root ::= nowhere", "the rule 'nowhere', which is used at line 1 and not defined"},
      {GrammarKind::kEbnf, "root ::= root", "nothing matches"},
      {GrammarKind::kEbnf, "wurzel ::= \"a\"", "no rule 'root'"},
  };
  for (const auto& c : cases)
    EXPECT_NE(refusal(c.kind, c.text).find(c.said), std::string::npos)
        << c.text << ": " << refusal(c.kind, c.text);
  EXPECT_TRUE(matches(grammar(kSchema, R"({"type": "integer"})"), "12"));
}

TEST_F(GrammarTest, BombsAreRefusedOrSmall) {
  const auto repeated = [](const std::string& part, int times) {
    std::string out;
    while (times-- > 0) out += part;
    return out;
  };
  EXPECT_NE(refusal(kSchema, repeated(R"({"items":)", 70) + "true" + repeated("}", 70)).find("64 levels"),
            std::string::npos);
  EXPECT_NE(refusal(kSchema, R"({"title": ")" + repeated("x", 700000) + "\"}").find("bytes"),
            std::string::npos);
  for (const char* nothing : {"{2}", "a|{2}", "({3,})", "*a"})
    EXPECT_NE(refusal(GrammarKind::kRegex, nothing).find("a repetition of nothing"), std::string::npos)
        << nothing;
  EXPECT_NE(refusal(GrammarKind::kRegex, repeated("a?", 10000)).find("20000"), std::string::npos);
  EXPECT_NE(refusal(GrammarKind::kEbnf, "root ::= " + repeated("(", 5000) + "\"a\"" + repeated(")", 5000))
                .find("100 levels"),
            std::string::npos);
  // Two hundred different lengths, and nested repetitions.
  std::string lengths = R"({"type": "object", "properties": {"p": true)";
  for (int i = 0; i < 200; ++i)
    lengths += ", \"p" + std::to_string(i) + R"(": {"type": "string", "maxLength": )" +
               std::to_string(1000 + i) + "}";
  EXPECT_TRUE(compiler_.compile({kSchema, lengths + "}}"}).ok());
  EXPECT_TRUE(compiler_.compile({GrammarKind::kRegex, "((a{1,99}){1,99}){1,99}b{999999}"}).ok());
  EXPECT_TRUE(
      compiler_
          .compile({kSchema, R"({"type": "array", "items": {"type": "string", "maxLength": 1000000000},
                                             "minItems": 1000000, "maxItems": 1000000000})"})
          .ok());
  EXPECT_FALSE(
      compiler_
          .compile({kSchema, R"({"type": "string", "pattern": "^(([ab]{0,99}a){0,99}c){0,99}[ab]{99}$"})"})
          .ok());
  std::string doubling = R"({"$defs": {"d0": {"type": "string"})";
  for (int i = 1; i < 60; ++i) {
    const std::string before = R"({"$ref": "#/$defs/d)" + std::to_string(i - 1) + "\"}";
    doubling += ", \"d" + std::to_string(i) + R"(": {"type": "array", "prefixItems": [)" + before + ", " +
                before + "]}";
  }
  EXPECT_TRUE(compiler_.compile({kSchema, doubling + R"(}, "$ref": "#/$defs/d59"})"}).ok());
  std::string choices = R"({"allOf": [{"type": "object"})";
  for (int i = 0; i < 30; ++i)
    choices += R"(, {"anyOf": [{"required": ["a)" + std::to_string(i) + R"("]}, {"required": ["b)" +
               std::to_string(i) + R"("]}]})";
  EXPECT_NE(refusal(kSchema, choices + "]}").find("combinations"), std::string::npos);
}

TEST_F(GrammarTest, MasksOfHostileGrammarsAreBounded) {
  for (const char* text :
       {"root ::= root root | \"a\" | \"b\" | \" \"", "root ::= (x | y)*\nx ::= [a-z ]* y?\ny ::= [a-z ]* x?",
        "root ::= a+\na ::= b+\nb ::= c+\nc ::= [^\\n]+"}) {
    const auto compiled = compiler_.compile({GrammarKind::kEbnf, text});
    if (!compiled.ok()) continue;  // an immediate refusal is bounded, too
    (void)text;
    GrammarMatcher matcher(compiled.value());
    std::vector<uint32_t> bits(static_cast<size_t>((vocab_ + 31) / 32));
    for (int i = 0; i < 200 && matcher.allowed(bits).ok(); ++i) {
      int32_t id = 0;
      while (id < end_ && (id == end_ || (bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0)) ++id;
      if (!matcher.accept(id).ok()) break;
    }
  }
}

TEST_F(GrammarTest, PropertiesOfCharacters) {
  const auto check = [&](const std::string& regex, const std::string& right, const std::string& wrong) {
    const Grammar compiled = grammar(GrammarKind::kRegex, regex);
    EXPECT_TRUE(matches(compiled, right)) << regex;
    EXPECT_FALSE(matches(compiled, wrong)) << regex;
  };
  check("(\\p{Extended_Pictographic}|\\p{Emoji_Component})+", "\u2764\ufe0f", "a");
  check("\\p{Script=Greek}+", "\u03b1\u03b2", "b");
  check("\\p{sc=Cyrillic}\\P{Script_Extensions=Cyrillic}", "\u0434d", "\u0434\u0434");
  check("\\p{ASCII}\\P{ASCII}", "a\u00e9", "ae");
  check("\\p{Alphabetic}", "\u2160", "1");  // a letter that is a number in its general category
}

// A repetition of at least two parts of which none can end matches nothing, although it has no limit.
TEST_F(GrammarTest, RepetitionsThatNeverEndAreLeftOut) {
  const std::string never = "\nb ::= b{2,}\nc ::= (c \"x\"){3,4}\nd ::= (b | c){2,} | d{5}";
  for (const char* rule : {"b", "c", "d", "(\"y\" b){2,}", "(d | b)+"}) {
    const std::string dead = " " + std::string(rule) + " ";
    for (uint64_t seed = 0; seed < 6; ++seed) {
      EXPECT_EQ(
          drawn(grammar(GrammarKind::kEbnf, "root ::= [a-z] \"{\"" + dead + "\"1\"? | \"za\\u0061\"" + never),
                seed),
          "zaa");
      EXPECT_EQ(drawn(grammar(GrammarKind::kEbnf, "root ::= [a-z]+ \"-\"" + dead + "| \"ab\"" + never), seed),
                "ab");
    }
    EXPECT_NE(refusal(GrammarKind::kEbnf, "root ::= \"x\"" + dead + never).find("nothing matches"),
              std::string::npos)
        << rule;
  }
  // At least two, where the second part ends only because of an alternative.
  EXPECT_TRUE(matches(grammar(GrammarKind::kEbnf, "root ::= b\nb ::= (b \"x\" | \"y\"){2,3}"), "yyxy"));
}

TEST_F(GrammarTest, StopsWhenAsked) {
  std::stop_source stop;
  stop.request_stop();
  const auto out = compiler_.compile(
      {kSchema, R"({"type": "string", "pattern": "^[a-z0-9]{1,3000}x[a-z]{1,2000}$"})"}, stop.get_token());
  EXPECT_FALSE(out.ok());
  EXPECT_EQ(out.status().message, "stopped");
}

TEST_F(GrammarTest, CompilesTheSameTextOnce) {
  const Grammar one = grammar(kSchema, kPerson), other = grammar(kSchema, kPerson);
  GrammarMatcher a(one), b(other);
  EXPECT_TRUE(a.accept(allowed(&a).front()).ok());
  EXPECT_NE(allowed(&a), allowed(&b)) << "matchers must not share state";
}

}  // namespace
}  // namespace sluice
