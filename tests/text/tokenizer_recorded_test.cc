// Compares every tokenizer and string that tools/record_tokenizer.py recorded in tests/data/tokenizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "text/tokenizer/tokenizer.h"

namespace sluice {
namespace {

std::vector<std::filesystem::path> recordings() {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/tests/data/tokenizer"))
    if (entry.path().extension() == ".jsonl") out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

// The recording's tokenizer: a file next to it, or the tokenizer of the model with its name.
std::string tokenizer_of(const std::filesystem::path& recording) {
  std::filesystem::path beside = recording;
  beside.replace_extension(".json");
  if (std::filesystem::exists(beside)) return beside.string();
  return SLUICE_SOURCE_DIR "/models/" + recording.stem().string() + "/tokenizer.json";
}

class RecordedTokenizer : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(RecordedTokenizer, EncodesAsHuggingFaceDoes) {
  auto tokenizer = Tokenizer::load(tokenizer_of(GetParam()));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message;
  std::ifstream lines(GetParam());
  std::string line;
  int64_t count = 0, framed = 0;
  while (std::getline(lines, line)) {
    const auto parsed = parse_json(line, GetParam().string());
    ASSERT_TRUE(parsed.ok()) << parsed.status().message;
    const Json& want = parsed.value();
    const std::string text = want["text"].get<std::string>();
    const auto parse = want["parse"].get<std::vector<int32_t>>();
    const auto as_text = want.contains("as_text") ? want["as_text"].get<std::vector<int32_t>>() : parse;
    const std::string decoded = want.value("decoded", text);
    std::vector<int32_t> ids;
    ASSERT_TRUE(tokenizer.value().encode(text, Specials::kParse, &ids).ok());
    EXPECT_EQ(ids, parse) << line;
    EXPECT_EQ(tokenizer.value().decode(ids), decoded);
    ids.clear();
    ASSERT_TRUE(tokenizer.value().encode(text, Specials::kAsText, &ids).ok());
    EXPECT_EQ(ids, as_text) << line;
    // Decoding gives the same text only if no normalizer joins a special token's text with its neighbours.
    if (parse == as_text || decoded == text) {
      EXPECT_EQ(tokenizer.value().decode(ids), decoded);
    }
    for (const int32_t id : ids) EXPECT_FALSE(tokenizer.value().is_special(id)) << line;
    ++count;
    framed += parse != as_text;
  }
  EXPECT_GE(count, 400);
  EXPECT_GE(framed, 10);
}

INSTANTIATE_TEST_SUITE_P(Pattern, RecordedTokenizer, testing::ValuesIn(recordings()), [](const auto& info) {
  std::string name = info.param.stem().string();
  std::replace(name.begin(), name.end(), '-', '_');  // gtest allows no dash
  return name;
});

TEST(RecordedTokenizers, AreThere) { EXPECT_GE(recordings().size(), 3u); }

}  // namespace
}  // namespace sluice
