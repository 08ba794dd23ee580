#include "text/tokenizer/split_pattern.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

std::vector<std::string> cut(std::string_view pattern, std::string_view text) {
  const auto compiled = SplitPattern::compile(pattern, "p");
  EXPECT_TRUE(compiled.ok()) << compiled.status().message;
  if (!compiled.ok()) return {};
  std::vector<int64_t> ends = {static_cast<int64_t>(text.size())};
  const Status status = compiled.value().cut(text, &ends);
  EXPECT_TRUE(status.ok()) << status.message;
  std::vector<std::string> pieces;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    pieces.emplace_back(text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    begin = end;
  }
  return pieces;
}

using Pieces = std::vector<std::string>;

TEST(SplitPattern, PiecesAreMatchesAndGaps) {
  EXPECT_EQ(cut("b+", "abbcb"), (Pieces{"a", "bb", "c", "b"}));
  EXPECT_EQ(cut("x", "abc"), (Pieces{"abc"}));
  EXPECT_EQ(cut("\\s+(?!\\S)|\\s+", "a   b  "), (Pieces{"a", "  ", " ", "b", "  "}));
}

TEST(SplitPattern, EmptyMatchesCutAsInOniguruma) {
  EXPECT_EQ(cut("x*", "axxb"), (Pieces{"a", "xx", "b"}));
  EXPECT_EQ(cut("(?=b)", "abab"), (Pieces{"a", "ba", "b"}));
  EXPECT_EQ(cut("x*", "\u3042\u3044"), (Pieces{"\u3042", "\u3044"}));
}

TEST(SplitPattern, InvalidBytesArePiecesOfTheirOwn) {
  EXPECT_EQ(cut("\\p{L}+",
                "ab\xff\xfe"
                "cd \xe3\x81"),
            (Pieces{"ab", "\xff\xfe", "cd", " ", "\xe3\x81"}));
  EXPECT_EQ(cut("a+b",
                "aa\xff"
                "b"),
            (Pieces{"aa", "\xff", "b"}));
}

TEST(SplitPattern, KnowsUnicode16) {
  // U+1C89 and U+10D50 are upper case since Unicode 16, U+31350 is a letter since Unicode 15, and U+180E is
  // no space since Unicode 6.3.
  EXPECT_EQ(cut("\\p{Lu}", "a\u1c89b"), (Pieces{"a", "\u1c89", "b"}));
  EXPECT_EQ(cut("\\p{Lu}\\p{Lu}", "a\U00010d50\U00010d51"), (Pieces{"a", "\U00010d50\U00010d51"}));
  EXPECT_EQ(cut("\\p{Lo}", " \U00031350 "), (Pieces{" ", "\U00031350", " "}));
  EXPECT_EQ(cut("\\s", "a\u180eb c"), (Pieces{"a\u180eb", " ", "c"}));
  EXPECT_EQ(cut("\\p{Cf}", "a\u180eb"), (Pieces{"a", "\u180e", "b"}));
  EXPECT_EQ(cut("\\p{L}+", "\U00031350\xff\U00031350"), (Pieces{"\U00031350", "\xff", "\U00031350"}));
}

TEST(SplitPattern, ClassesNameCharactersAndLineEnds) {
  EXPECT_EQ(cut("[\u4e00-\u9fa5\u3040-\u30ff]+", "a\u4e00\u304bb\u9fa6"),
            (Pieces{"a", "\u4e00\u304b", "b\u9fa6"}));
  EXPECT_EQ(cut("[\u00e9x]+", "a\u00e9xb"), (Pieces{"a", "\u00e9x", "b"}));
  EXPECT_EQ(cut("[^\r\n]+[\n\r]*", "ab\r\ncd"), (Pieces{"ab\r\n", "cd"}));
}

TEST(SplitPattern, AcceptsThePatternsInUse) {
  for (const std::string_view pattern :
       {kGpt2Pattern,
        std::string_view(
            R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
            R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+)"),
        std::string_view(
            R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*)")})
    EXPECT_TRUE(SplitPattern::compile(pattern, "p").ok())
        << SplitPattern::compile(pattern, "p").status().message;
}

TEST(SplitPattern, RefusesWhatTheEnginesReadDifferently) {
  const std::pair<const char*, const char*> cases[] = {
      {"a^", "'^' at byte 1"},
      {"$", "'$' at byte 0"},
      {"\\w", "'\\w' at byte 0"},
      {"[a[b]]", "'[' at byte 2"},
      {"[a&&b]", "'&&' at byte 2"},
      {"[]a]", "']' at byte 1"},
      {"[a", "an unclosed class"},
      {"\\p{Han}", "'\\p' at byte 0"},
      {"\\p{^L}", "'\\p' at byte 0"},
      {"\\pL", "'\\p' at byte 0"},
      {"(?i:ss)", "'ss' at byte 4"},
      {"(?i:[a])", "'[' at byte 4"},
      {"(?m:a)", "'(?m' at byte 0"},
      {"(?>a)", "'(?>' at byte 0"},
      {"(*UTF)", "'(*' at byte 0"},
      {"a{,3}", "'{' at byte 1"},
      {"a{2}+", "'{2}+' at byte 1"},
      {"a{2}?", "'{2}?' at byte 1"},
      {"a{", "'{' at byte 1"},
      {"a}", "'}' at byte 1"},
      {"\xc3\xa9", "a byte at byte 0"},
      {"\\", "'\\' at byte 0"},
      {"\\x41", "'\\x' at byte 0"},
      {"(a)\\1", "'\\1' at byte 3"},
      {"[a-\u00e9]", "a byte at byte 3"},
      {"[\u00e9-a]", "a byte at byte 1"},
      {"[\u00e9-\u00e8]", "a byte at byte 1"},
      {"[\xc3]", "a byte at byte 1"},
      {"[\u0890-\u0900]", "differ between versions of Unicode"},
      {"[\u1c80-\u1c90]", "differ between versions of Unicode"},
      {"\n", "a byte at byte 0"},
      {"[\\h]", "'\\h' at byte 1"},
      {"\\p{Lu", "'\\p' at byte 0"},
      {"(?i:st)", "'st' at byte 4"},
  };
  for (const auto& [pattern, found] : cases) {
    const auto compiled = SplitPattern::compile(pattern, "p");
    ASSERT_FALSE(compiled.ok()) << pattern;
    EXPECT_EQ(compiled.status().code, Code::kUnsupported);
    EXPECT_NE(compiled.status().message.find(found), std::string::npos) << compiled.status().message;
  }
  for (const char* pattern : {"(a", "a)", "*a", "[z-a]", "a{3,2}"}) {
    const auto compiled = SplitPattern::compile(pattern, "p");
    ASSERT_FALSE(compiled.ok()) << pattern;
    EXPECT_EQ(compiled.status().code, Code::kCorrupt) << compiled.status().message;
  }
  EXPECT_FALSE(SplitPattern::compile(std::string(20000, 'a'), "p").ok());
}

}  // namespace
}  // namespace sluice
