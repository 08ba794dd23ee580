#include "chat/stop_matcher.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

struct Ended {
  std::string text;
  std::optional<std::string> by;
  bool operator==(const Ended&) const = default;
};

Ended in_pieces(const std::vector<std::string>& stops, const std::string& text, size_t piece) {
  StopMatcher matcher(stops);
  std::string out;
  for (size_t at = 0; at < text.size(); at += piece) out += matcher.push(text.substr(at, piece));
  if (!matcher.found()) out += matcher.flush();
  return {out, matcher.found()};
}

struct Case {
  std::vector<std::string> stops;
  std::string text;
  Ended want;
};

}  // namespace

TEST(StopMatcher, EndsAtTheSamePlaceHoweverTheTextIsCut) {
  const Case cases[] = {
      {{}, "all of it", {"all of it", {}}},
      {{"x"}, "", {"", {}}},
      {{"of"}, "all of it", {"all ", "of"}},
      {{"it", "of"}, "all of it", {"all ", "of"}},
      {{"all"}, "all of it", {"", "all"}},
      {{"it!"}, "all of it", {"all of it", {}}},  // begins, but is never complete
      {{"aab"}, "aaaab", {"aa", "aab"}},          // a match begins inside itself
      {{"abcd", "bc"}, "abce", {"a", "bc"}},      // the string that begins first stays incomplete
      {{"abcd", "bc"}, "abcd", {"", "abcd"}},     // here it is complete
      {{"abcd", "bc"}, "abc", {"a", "bc"}},       // here the text ends
      {{"ab", "abc"}, "xabc", {"x", "ab"}},       // two strings begin at one place
      {{"\xc3\xa9"}, "caf\xc3\xa9s", {"caf", "\xc3\xa9"}},
  };
  for (const Case& c : cases)
    for (size_t piece = 1; piece <= c.text.size() + 1; ++piece)
      EXPECT_EQ(in_pieces(c.stops, c.text, piece), c.want) << c.text << " by " << piece;
}

// Comparing every suffix of the text with every prefix of a string would take minutes.
TEST(StopMatcher, TakesLinearTime) {
  std::vector<std::string> stops;
  for (int i = 0; i < 64; ++i) stops.push_back(std::string(4000 + i, 'a') + "!");
  const StopStrings shared(stops);
  for (int answer = 0; answer < 50; ++answer) {
    StopMatcher matcher(shared);
    std::string out;
    for (int i = 0; i < 4; ++i) out += matcher.push(std::string(3999, 'a') + "b");
    EXPECT_EQ(out.size(), 16000u);
    EXPECT_EQ(matcher.push(std::string(4005, 'a') + "!"), "");
    EXPECT_EQ(matcher.found(), stops[5]);
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStop) {
  StopMatcher matcher({"</end>"});
  EXPECT_EQ(matcher.push("one <"), "one ");
  EXPECT_EQ(matcher.push("b> two"), "<b> two");
  EXPECT_EQ(matcher.push("</e"), "");
  EXPECT_EQ(matcher.flush(), "</e");
}

}  // namespace sluice
