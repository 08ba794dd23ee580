// Formats of strings, and keywords of some drafts that act as formats.
#include "grammar_fixture.h"

namespace sluice {
namespace {

class FormatsTest : public GrammarTest {
 protected:
  // Texts that must match the schema, and texts that must not.
  void check(const std::string& schema, const std::vector<std::string>& right,
             const std::vector<std::string>& wrong) {
    const Grammar compiled = grammar(kSchema, schema);
    for (const std::string& text : right) EXPECT_TRUE(matches(compiled, text)) << schema << ": " << text;
    for (const std::string& text : wrong) EXPECT_FALSE(matches(compiled, text)) << schema << ": " << text;
  }
  void refuses(const std::string& schema, const std::string& why) {
    EXPECT_NE(refusal(kSchema, schema).find(why), std::string::npos)
        << schema << ": " << refusal(kSchema, schema);
  }
};

TEST_F(FormatsTest, ANumberThatEveryCheckerReads) {
  check(R"({"format": "relative-json-pointer"})", {R"("0")", R"("10#")", R"("123/a")"},
        {R"("01")", R"("101")", R"("1003/a")"});
}

TEST_F(FormatsTest, ContentInDraftsWhoseValidatorsCheckIt) {
  const auto with = [](const std::string& draft, const std::string& keywords) {
    return R"({"$schema": "http://json-schema.org/)" + draft + R"(/schema#", "type": "string", )" + keywords +
           "}";
  };
  const std::string base64 = R"("contentEncoding": "base64")",
                    json = R"("contentMediaType": "application/json")";
  for (const char* draft : {"draft-06", "draft-07"}) {
    check(with(draft, base64), {R"("")", R"("YQ==")", R"("MTIz")"}, {R"("a")", R"("YR==")", R"("hello!")"});
    check(with(draft, json), {R"("1")", R"("[1,true]")", R"("{\"a\":null}")"},
          {R"("")", R"("a")", R"("[1")"});
    check(with(draft, R"("contentMediaType": "text/html", "contentEncoding": "8bit")"), {R"("a")"}, {});
    check(with(draft, base64 + R"(, "format": "byte")"), {R"("YQ==")"}, {R"("a")"});
    refuses(with(draft, base64 + ", " + json), "contentMediaType: wanted no contentEncoding next to it");
    refuses(with(draft, base64 + R"(, "format": "date")"), "contentEncoding: wanted no format next to it");
    refuses(with(draft, R"("not": {)" + base64 + "}"), "nothing matches");
  }
  check(with("draft-04", base64), {R"("a")"}, {});
  check(R"({"type": "string", )" + base64 + "}", {R"("a")"}, {});
}

}  // namespace
}  // namespace sluice
