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

// Every state can end within the bounds, whatever was drawn before: hosts end in labels of 1 to 32 characters, times come in few lengths.
TEST_F(FormatsTest, LengthsThatAFormatCanHave) {
  const auto lengths = [](const std::string& format, int64_t least, int64_t most) {
    return R"({"type": "string", "format": ")" + format + R"(", "minLength": )" + std::to_string(least) +
           (most < 0 ? "" : R"(, "maxLength": )" + std::to_string(most)) + "}";
  };
  struct Wanted {
    const char* format;
    int64_t least, most;
  };
  for (const Wanted& w : {Wanted{"duration", 15, 200},
                          {"duration", 20, 300},
                          {"ipv6", 39, 255},
                          {"hostname", 33, 33},
                          {"hostname", 63, -1},
                          {"hostname", 64, 64},
                          {"hostname", 70, -1},
                          {"idn-hostname", 56, 70},
                          {"email", 90, -1},
                          {"email", 90, 120},
                          {"date-time", 25, 255},
                          {"date-time", 32, 255},
                          {"uuid", 36, 255}}) {
    const Grammar compiled = grammar(kSchema, lengths(w.format, w.least, w.most));
    int drawn_texts = 0;
    for (uint64_t seed = 0; seed < 12; ++seed) {
      const auto text = drawn(compiled, seed);
      if (!text) continue;
      ++drawn_texts;
      const auto length = static_cast<int64_t>(Json::parse(*text).get<std::string>().size());
      EXPECT_GE(length, w.least) << w.format << ' ' << *text;
      EXPECT_LE(length, w.most < 0 ? 400 : w.most) << w.format << ' ' << *text;
    }
    EXPECT_EQ(drawn_texts, 12) << w.format;
  }
  for (const Wanted& w : {Wanted{"uuid", 37, 255},
                          {"duration", 100, 255},
                          {"date-time", 33, 300},
                          {"ipv6", 254, 254},
                          {"email", 300, 300},
                          {"hostname", 300, -1}})
    refuses(lengths(w.format, w.least, w.most), "nothing matches");
  // Lengths of a pattern that has gaps: multiples of 60 up to 960.
  const std::string gaps = R"({"type": "string", "pattern": "^([a-z]{30}[0-9]{30}){1,16}$", "minLength": )";
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto text = drawn(grammar(kSchema, gaps + R"(535, "maxLength": 599})"), seed, 1000);
    ASSERT_TRUE(text);
    EXPECT_EQ(Json::parse(*text).get<std::string>().size(), 540u);
  }
  refuses(gaps + R"(541, "maxLength": 599})", "nothing matches");
}

}  // namespace
}  // namespace sluice
