#include "text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "base/random.h"

namespace sluice {
namespace {

Tokenizer recorded(const char* name) {
  auto tokenizer = Tokenizer::load(SLUICE_SOURCE_DIR "/tests/data/tokenizer/" + std::string(name) + ".json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message;
  return std::move(tokenizer).value();
}

// The smallest tokenizer: the 256 bytes, and whatever a test adds.
Json bytes_only() {
  Json document = read_json(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_gpt2.json", 1 << 20).value();
  document["model"]["merges"] = Json::array();
  document["model"]["ignore_merges"] = false;
  document["added_tokens"] = Json::array();
  Json& vocab = document["model"]["vocab"];
  for (auto word = vocab.begin(); word != vocab.end();)
    word = word.value().get<int64_t>() >= 256 ? vocab.erase(word) : std::next(word);
  return document;
}

Tokenizer tokenizer_of(const Json& document) {
  auto tokenizer = Tokenizer::parse(document.dump(), "t.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message;
  return std::move(tokenizer).value();
}

std::vector<int32_t> encoded(const Tokenizer& tokenizer, std::string_view text,
                             Specials specials = Specials::kParse) {
  std::vector<int32_t> ids;
  const Status status = tokenizer.encode(text, specials, &ids);
  EXPECT_TRUE(status.ok()) << status.message;
  return ids;
}

std::string random_bytes(Random& random) {
  std::string text;
  const int64_t size = random.integer(0, 60);
  while (static_cast<int64_t>(text.size()) < size) {
    switch (random.integer(0, 3)) {
      case 0:
        text += static_cast<char>(random.integer(0, 255));
        break;
      case 1:
        append_utf8(static_cast<char32_t>(random.integer(0x20, 0x7e)), &text);
        break;
      case 2:
        append_utf8(static_cast<char32_t>(random.integer(0x1f300, 0x1f6ff)), &text);
        break;
      default:
        append_utf8(static_cast<char32_t>(random.integer(0x80, 0xd7ff)), &text);
    }
  }
  return text;
}

TEST(Tokenizer, LosesNoByteOfAnyText) {
  Random random(1);
  for (const char* name : {"pattern_o200k", "pattern_gpt2"}) {
    const Tokenizer tokenizer = recorded(name);
    for (int i = 0; i < 3000; ++i) {
      const std::string text = random_bytes(random);
      EXPECT_EQ(tokenizer.decode(encoded(tokenizer, text)), text);
      EXPECT_EQ(tokenizer.decode(encoded(tokenizer, text, Specials::kAsText)), text);
    }
  }
}

TEST(Tokenizer, InvalidBytesCutTheTextAndAreEncodedOneByOne) {
  const Tokenizer tokenizer = recorded("pattern_o200k");
  auto want = encoded(tokenizer, "hello");
  for (const int32_t id : encoded(tokenizer, std::string_view("\xff", 1))) want.push_back(id);
  for (const int32_t id : encoded(tokenizer, " world")) want.push_back(id);
  EXPECT_EQ(encoded(tokenizer, "hello\xff world"), want);
}

TEST(Tokenizer, StreamEqualsTheWholeWithReplacements) {
  Random random(2);
  const Tokenizer tokenizer = recorded("pattern_o200k");
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> ids;
    for (int64_t n = random.integer(0, 30); n > 0; --n)
      ids.push_back(static_cast<int32_t>(random.integer(-2, tokenizer.vocab_size() + 3)));
    for (const SpecialOutput specials : {SpecialOutput::kShow, SpecialOutput::kSkip}) {
      StreamDecoder stream(tokenizer, specials);
      std::string joined;
      for (const int32_t id : ids) {
        const std::string part = stream.push(id);
        EXPECT_EQ(part, valid_utf8(part));
        joined += part;
      }
      joined += stream.finish();
      EXPECT_EQ(joined, valid_utf8(tokenizer.decode(ids, specials)));
    }
  }
}

TEST(Tokenizer, StreamHoldsBackAnUnfinishedCharacter) {
  const Tokenizer tokenizer = tokenizer_of(bytes_only());
  const auto ids = encoded(tokenizer, "\xf0\x9f\x91\x8d");
  ASSERT_EQ(ids.size(), 4u);
  StreamDecoder stream(tokenizer);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(stream.push(ids[static_cast<size_t>(i)]), "");
  EXPECT_EQ(stream.push(ids[3]), "\xf0\x9f\x91\x8d");
  EXPECT_EQ(stream.push(ids[0]), "");
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Tokenizer, SpecialsAreFoundShownAndSkipped) {
  const Tokenizer tokenizer = recorded("pattern_o200k");
  const auto start = tokenizer.id_of("<|start|>");
  ASSERT_TRUE(start.has_value());
  EXPECT_TRUE(tokenizer.is_special(*start));
  EXPECT_EQ(tokenizer.piece(*start), "<|start|>");
  EXPECT_FALSE(tokenizer.id_of("<tool>").has_value());  // added, but not special
  EXPECT_FALSE(tokenizer.id_of("hello").has_value());
  const auto ids = encoded(tokenizer, "a<|start|>b");
  EXPECT_EQ(tokenizer.decode(ids, SpecialOutput::kSkip), "ab");
  EXPECT_EQ(tokenizer.decode(ids), "a<|start|>b");
  EXPECT_EQ(tokenizer.piece(-1), "");
  EXPECT_EQ(tokenizer.piece(static_cast<int32_t>(tokenizer.vocab_size())), "");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{-1}), "\xef\xbf\xbd");
}

TEST(Tokenizer, PlainTextNeverBecomesASpecialTokenEvenWhenMergesAreIgnored) {
  Json document = bytes_only();
  document["model"]["ignore_merges"] = true;
  document["model"]["vocab"]["<|"] = 300;
  document["model"]["vocab"]["ab"] = 301;
  document["added_tokens"] = {{{"content", "<|"}, {"id", 300}, {"special", true}}};
  const Tokenizer tokenizer = tokenizer_of(document);
  EXPECT_EQ(encoded(tokenizer, "<|"), std::vector<int32_t>{300});
  EXPECT_EQ(encoded(tokenizer, "<|", Specials::kAsText).size(), 2u);
  EXPECT_EQ(encoded(tokenizer, "ab", Specials::kAsText), std::vector<int32_t>{301});
}

TEST(Tokenizer, AddedTokensStayTextOnRequest) {
  const auto tokenizer =
      Tokenizer::load(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_deepseek.json").value();
  const std::string text = "a<｜User｜>b<｜end▁of▁sentence｜></think>";
  std::vector<int32_t> all, added;
  ASSERT_TRUE(tokenizer.encode(text, Specials::kAllAsText, &all).ok());
  EXPECT_EQ(tokenizer.decode(all), text);
  ASSERT_TRUE(tokenizer.encode(text, Specials::kAsText, &added).ok());
  for (const char* token : {"<｜User｜>", "<｜end▁of▁sentence｜>", "</think>"}) {
    const int32_t id = *tokenizer.id_of_added(token);
    EXPECT_EQ(std::count(all.begin(), all.end(), id), 0);
    EXPECT_EQ(std::count(added.begin(), added.end(), id), tokenizer.is_special(id) ? 0 : 1);
  }
}

TEST(Tokenizer, TheLongestAddedTokenWins) {
  Json document = bytes_only();
  int64_t id = 400;
  for (const char* content : {"<a", "<a>", "<a>b", "<b>"})
    document["added_tokens"].push_back({{"content", content}, {"id", id++}, {"special", true}});
  const Tokenizer tokenizer = tokenizer_of(document);
  EXPECT_EQ(encoded(tokenizer, "<a>b<a><a<b>"), (std::vector<int32_t>{402, 401, 400, 403}));
  EXPECT_EQ(encoded(tokenizer, "<<b>").size(), 2u);
}

TEST(Tokenizer, LeavesTheIdsAloneOnError) {
  Json document = bytes_only();
  // Each further letter doubles the work, and nothing ever matches: without a limit, 2^60 steps.
  document["pre_tokenizer"] = Json::parse(R"x({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "(?:a|a)*[bc]"}, "behavior": "Isolated"},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})x");
  const Tokenizer tokenizer = tokenizer_of(document);
  std::vector<int32_t> ids = {1, 2};
  const Status status = tokenizer.encode(std::string(60, 'a'), Specials::kParse, &ids);
  EXPECT_EQ(status.code, Code::kUnsupported);
  EXPECT_NE(status.message.find("pattern.Regex: wanted a pattern that matches in few steps"),
            std::string::npos)
      << status.message;
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(encoded(tokenizer, "aab").size(), 3u);
}

// With quadratic merging, or a pattern that scans the whole text for each piece, this test would exceed its
// time limit.
TEST(Tokenizer, LongTextsTakeLinearTime) {
  const Tokenizer tokenizer = recorded("pattern_o200k");
  std::string mixed;
  while (mixed.size() < 1 << 20) mixed += "x \xe3\x81\x82\n";
  const std::string texts[] = {std::string(1 << 20, 'a'),    std::string(1 << 20, ' '),
                               std::string(1 << 20, '\n'),   mixed,
                               std::string(1 << 18, '\xff'), std::string(1 << 18, '<')};
  for (const std::string& text : texts) EXPECT_EQ(tokenizer.decode(encoded(tokenizer, text)), text);
}

}  // namespace
}  // namespace sluice
