// Values that a tokenizer.json may have, and values that are rejected, by name.
#include <gtest/gtest.h>

#include "base/json.h"
#include "text/tokenizer/tokenizer.h"

namespace sluice {
namespace {

Json recorded() {
  auto json = read_json(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_o200k.json", 1 << 20);
  EXPECT_TRUE(json.ok());
  return std::move(json).value();
}

Result<Tokenizer> parsed(const Json& document) { return Tokenizer::parse(document.dump(), "t.json"); }

std::vector<int32_t> ids_of(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  const Status status = tokenizer.encode(text, Specials::kParse, &ids);
  EXPECT_TRUE(status.ok()) << status.message;
  return ids;
}

TEST(TokenizerJson, ReadsMergesInBothSpellings) {
  Json document = recorded();
  const auto pairs = parsed(document);
  ASSERT_TRUE(pairs.ok()) << pairs.status().message;
  for (Json& merge : document["model"]["merges"])
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  const auto lines = parsed(document);
  ASSERT_TRUE(lines.ok()) << lines.status().message;
  const char* text = "they'll encode the same — 例えば";
  EXPECT_EQ(ids_of(pairs.value(), text), ids_of(lines.value(), text));
  EXPECT_LT(ids_of(pairs.value(), text).size(), std::string(text).size());
}

TEST(TokenizerJson, AcceptsFieldsWithoutEffect) {
  Json document = recorded();
  document["model"]["continuing_subword_prefix"] = "";
  document["model"]["end_of_word_suffix"] = nullptr;
  document["model"]["dropout"] = nullptr;
  document["post_processor"] = Json::parse(R"({"type": "ByteLevel", "add_prefix_space": true})");
  EXPECT_TRUE(parsed(document).ok()) << parsed(document).status().message;
  // Truncation and padding of training batches, which do not affect encoding.
  document["truncation"] =
      Json::parse(R"({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0})");
  document["padding"] = Json::parse(
      R"({"strategy": {"Fixed": 9}, "direction": "Left", "pad_to_multiple_of": 8, "pad_id": 1, "pad_type_id": 0, "pad_token": "x"})");
  document["added_tokens"][0]["normalized"] = true;  // there is no normalizer
  ASSERT_TRUE(parsed(document).ok()) << parsed(document).status().message;
  EXPECT_EQ(ids_of(parsed(document).value(), "as many as ever"),
            ids_of(parsed(recorded()).value(), "as many as ever"));
  document["normalizer"] = Json::parse(R"({"type": "Sequence", "normalizers": []})");
  EXPECT_TRUE(parsed(document).ok()) << parsed(document).status().message;
  document.erase("post_processor");
  document.erase("normalizer");
  document.erase("version");
  EXPECT_TRUE(parsed(document).ok());
}

struct Refused {
  const char* place;  // JSON pointer of the changed value
  const char* value;
  const char* message;  // a substring of the error
};

TEST(TokenizerJson, RefusesTheRestByName) {
  const Refused cases[] = {
      {"/model/type", "\"WordPiece\"", "t.json: model.type: wanted \"BPE\", found \"WordPiece\""},
      {"/model/dropout", "0.1", "model.dropout: wanted null, found 0.1"},
      {"/model/unk_token", "\"<unk>\"", "model.unk_token: wanted null"},
      {"/model/byte_fallback", "true", "model.byte_fallback: wanted false or null, found true"},
      {"/model/continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix: wanted \"\" or null"},
      {"/model/surprise", "1", "unknown key 'surprise'"},
      {"/model/vocab", "[]", "model.vocab: wanted an object, found an array of 0"},
      {"/model/vocab/a", "-1", "model.vocab.a: wanted an integer from 0 to"},
      {"/model/vocab/a", "4194304", "model.vocab.a: wanted an integer from 0 to"},
      {"/model/vocab/a", "1.5", "model.vocab.a: wanted an integer"},
      {"/model/vocab/a", "1", "which belongs to another word"},
      {"/model/merges/3", "\"a b c\"", "model.merges[3]: wanted \"a b\" or [\"a\", \"b\"]"},
      {"/model/merges/3", "[\"a\"]", "model.merges[3]: wanted"},
      {"/model/merges/3", "[\"a\", \"%%%\"]", "model.merges[3]: wanted two words of model.vocab"},
      {"/model/merges", "{}", "model.merges: wanted an array"},
      {"/normalizer", "{\"type\": \"NFKC\"}", "t.json: normalizer.type: wanted \"NFC\""},
      {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}]})",
       "t.json: normalizer.normalizers: wanted an empty array, found an array of 1"},
      // Objects of other types have other keys; the error names the type, not a key.
      {"/model", R"({"type": "WordPiece", "max_input_chars_per_word": 5, "vocab": {}})",
       "t.json: model.type: wanted \"BPE\", found \"WordPiece\""},
      {"/normalizer", R"({"type": "Replace", "pattern": {"String": " "}, "content": "_"})",
       "t.json: normalizer.type: wanted \"NFC\", found \"Replace\""},
      {"/pre_tokenizer/pretokenizers/0", R"({"type": "Digits", "individual_digits": true})",
       "pretokenizers[0].type: wanted \"Split\", found \"Digits\""},
      {"/pre_tokenizer/pretokenizers/1", R"({"type": "Metaspace", "replacement": "_"})",
       "pretokenizers[1].type: wanted \"ByteLevel\", found \"Metaspace\""},
      {"/truncation", "5", "t.json: truncation: wanted an object, found 5"},
      {"/truncation", "{\"max_words\": 5}", "t.json: truncation: unknown key 'max_words'"},
      {"/padding", "[]", "t.json: padding: wanted an object, found an array of 0"},
      {"/version", "\"2.0\"", "t.json: version: wanted \"1.0\", found \"2.0\""},
      {"/version", "1.0", "t.json: version: wanted a string, found 1.0"},
      {"/version", "null", "t.json: version: wanted a string"},
      {"/surprise", "1", "unknown key 'surprise'"},
      {"/pre_tokenizer", "null", "wanted an object"},
      {"/pre_tokenizer/type", "\"Whitespace\"", "pre_tokenizer.type: wanted \"ByteLevel\" or \"Sequence\""},
      {"/pre_tokenizer/pretokenizers", "[]",
       "pre_tokenizer.pretokenizers: wanted 1 to 16 steps, found an array of 0"},
      {"/pre_tokenizer/pretokenizers/0/type", "\"Digits\"", "pretokenizers[0].type: wanted \"Split\""},
      {"/pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", "behavior: wanted \"Isolated\""},
      {"/pre_tokenizer/pretokenizers/0/invert", "true", "invert: wanted false or null, found true"},
      {"/pre_tokenizer/pretokenizers/0/pattern", "{\"String\": \" \"}", "unknown key 'String'"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(a\"",
       "pattern.Regex: wanted a regular expression"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\"^a\"", "'^' at byte 0"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", "true",
       "add_prefix_space: wanted false, found true"},
      {"/pre_tokenizer/pretokenizers/1", R"({"type": "ByteLevel", "trim_offsets": true})",
       "add_prefix_space: wanted false, found no such key"},
      {"/decoder/type", "\"Metaspace\"", "decoder.type: wanted \"ByteLevel\""},
      {"/post_processor", "{\"type\": \"BertProcessing\"}",
       "post_processor.type: wanted \"ByteLevel\", \"TemplateProcessing\" or \"Sequence\", found "
       "\"BertProcessing\""},
      {"/added_tokens/0/lstrip", "true", "added_tokens[0].lstrip: wanted false or null, found true"},
      {"/added_tokens/0/normalized", "1", "added_tokens[0].normalized: wanted true or false, found 1"},
      {"/added_tokens/0/content", "\"\"", "added_tokens[0].content: wanted 1 to 1024 bytes"},
      {"/added_tokens/0/content", "\"<|end|>\"", "wanted unique contents, found '<|end|>' twice"},
      {"/added_tokens/0/id", "7", "added_tokens[0].id: wanted a unique id, found 7"},
      {"/added_tokens/0/id", "\"7\"", "added_tokens[0].id: wanted an integer"},
  };
  for (const Refused& c : cases) {
    Json document = recorded();
    document[Json::json_pointer(c.place)] = Json::parse(c.value);
    const auto tokenizer = parsed(document);
    ASSERT_FALSE(tokenizer.ok()) << c.place << " = " << c.value;
    EXPECT_NE(tokenizer.status().message.find(c.message), std::string::npos) << tokenizer.status().message;
    EXPECT_TRUE(tokenizer.status().message.starts_with("t.json")) << tokenizer.status().message;
  }
}

// A template for one text, as the library spells it.
Json template_of(const std::string& single, const std::string& special_tokens) {
  return Json::parse(R"({"type": "TemplateProcessing", "pair": [], "single": )" + single +
                     R"(, "special_tokens": )" + special_tokens + "}");
}

TEST(TokenizerJson, ReadsTheTokensAroundAText) {
  Json document = recorded();
  const int32_t end = ids_of(parsed(document).value(), "<|end|>").at(0);
  const std::string text = R"({"Sequence": {"id": "A", "type_id": 0}})",
                    token = R"({"SpecialToken": {"id": "x", "type_id": 0}})";
  const auto named = [](const std::string& ids) {
    return R"({"x": {"id": "x", "ids": [)" + ids + R"(], "tokens": ["x"]}})";
  };
  const std::string id = std::to_string(end);
  const Json bytes = Json::parse(R"({"type": "ByteLevel", "trim_offsets": false})");
  const auto ends = [&](const Json& post) {
    document["post_processor"] = post;
    const auto tokenizer = parsed(document);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message;
    EXPECT_EQ(ids_of(tokenizer.value(), "hi"), ids_of(parsed(recorded()).value(), "hi"))
        << "encode() adds none";
    const SpecialEnds e = tokenizer.value().special_ends();
    return std::pair(e.before, e.after);
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(ends(Json()), std::pair(Ids{}, Ids{}));
  EXPECT_EQ(ends(bytes), std::pair(Ids{}, Ids{}));
  const Json begin = template_of("[" + token + ", " + text + "]", named(id));
  EXPECT_EQ(ends(begin), std::pair(Ids{end}, Ids{}));
  EXPECT_EQ(ends(template_of("[" + text + "]", "{}")), std::pair(Ids{}, Ids{}));
  EXPECT_EQ(ends(template_of("[" + token + ", " + text + ", " + token + "]", named(id + ", " + id))),
            std::pair(Ids{end, end}, Ids{end, end}));
  const auto sequence = [](const Json& steps) { return Json{{"type", "Sequence"}, {"processors", steps}}; };
  EXPECT_EQ(ends(sequence(Json::array({bytes, begin}))), std::pair(Ids{end}, Ids{}));  // Llama 3 has this one
  EXPECT_EQ(ends(sequence(Json::array())), std::pair(Ids{}, Ids{}));

  const std::pair<Json, const char*> refused[] = {
      {template_of("[" + token + "]", named(id)), "post_processor.single: wanted a template with the text"},
      {template_of("[" + text + ", " + text + "]", "{}"), "single[1]: wanted the text A once"},
      {template_of(R"([{"Sequence": {"id": "B", "type_id": 1}}])", "{}"),
       "single[0]: wanted the text A once"},
      {template_of("[\"$A\"]", "{}"), "single[0]: wanted an object"},
      {template_of("[{}, " + text + "]", "{}"), "single[0]: wanted a Sequence or a SpecialToken"},
      {template_of("[" + token + ", " + text + "]", "{}"),
       "single[0].SpecialToken.id: wanted a name of special_tokens, found \"x\""},
      {template_of("[" + token + ", " + text + "]", named("4000000")),
       "special_tokens.x.ids[0]: wanted the id of a token, found 4000000"},
      {template_of("[" + token + ", " + text + "]", named("-1")),
       "special_tokens.x.ids[0]: wanted an integer"},
      {sequence(Json::array({begin, begin})),
       "processors[1].type: wanted only \"ByteLevel\" next to the template"},
      {sequence(Json::array({Json{{"type", "BertProcessing"}}})),
       "processors[0].type: wanted \"ByteLevel\" or"},
      {Json{{"type", "Sequence"}, {"steps", 1}}, "post_processor: unknown key 'steps'"},
  };
  for (const auto& [post, message] : refused) {
    document["post_processor"] = post;
    const auto tokenizer = parsed(document);
    ASSERT_FALSE(tokenizer.ok()) << post.dump();
    EXPECT_NE(tokenizer.status().message.find(message), std::string::npos) << tokenizer.status().message;
  }
}

// The library looks for normalized tokens only between the other added tokens, so the two kinds must not
// overlap.
TEST(TokenizerJson, RefusesNormalizedTokensThatOthersMayCut) {
  for (const char* content : {"<|end|> of it", "<|en", "it is the <|"}) {
    Json document = recorded();
    Json& last = document["added_tokens"].emplace_back(document["added_tokens"][0]);
    last["content"] = content, last["normalized"] = true, last["id"] = 4000;
    const auto tokenizer = parsed(document);
    ASSERT_FALSE(tokenizer.ok()) << content;
    EXPECT_NE(tokenizer.status().message.find("wanted normalized tokens that cannot overlap others, found '" +
                                              std::string(content)),
              std::string::npos)
        << tokenizer.status().message;
  }
}

TEST(TokenizerJson, RefusesVocabulariesThatLackAByte) {
  Json document = recorded();
  document["model"]["merges"] = Json::array();
  document["model"]["vocab"].erase("\u0120");  // the letter of the space
  EXPECT_NE(parsed(document).status().message.find("found none ('\u0120') for byte 32"), std::string::npos);
}

TEST(TokenizerJson, RefusesSpecialTokensThatPlainTextCanForge) {
  Json document = recorded();
  const Json special = {{"content", "!"}, {"id", document["model"]["vocab"]["!"]}, {"special", true}};
  document["added_tokens"].push_back(special);
  EXPECT_NE(parsed(document).status().message.find("found the special token '!'"), std::string::npos);

  document = recorded();
  document["model"]["vocab"]["%~"] = 5000;
  document["model"]["merges"].push_back({"%", "~"});
  ASSERT_TRUE(parsed(document).ok()) << parsed(document).status().message;
  document["added_tokens"].push_back({{"content", "%~"}, {"id", 5000}, {"special", true}});
  EXPECT_NE(parsed(document).status().message.find("found the special token '%~'"), std::string::npos);
}

TEST(TokenizerJson, RefusesDuplicatePairs) {
  Json document = recorded();
  document["model"]["merges"].push_back(document["model"]["merges"][5]);
  const std::string last = std::to_string(document["model"]["merges"].size() - 1);
  EXPECT_NE(parsed(document).status().message.find("merges[" + last + "]: wanted each pair once"),
            std::string::npos);
}

TEST(TokenizerJson, RefusesAnAddedTokenWhoseWordSpellsSomethingElse) {
  Json document = recorded();
  document["added_tokens"].push_back({{"content", "\u0120"}, {"id", document["model"]["vocab"]["\u0120"]}});
  EXPECT_NE(parsed(document).status().message.find("that decodes to itself"), std::string::npos);
}

TEST(TokenizerJson, SaysWhichFileCannotBeRead) {
  const auto missing = Tokenizer::load("/nowhere/tokenizer.json");
  EXPECT_EQ(missing.status().code, Code::kIo);
  EXPECT_NE(missing.status().message.find("/nowhere/tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace sluice
