// Arbitrary bytes as a tokenizer.json, both alone and as a patch of a valid file: a tokenizer that loads must
// lose no byte of any text.
// Input: JSON, a zero byte, then the text to encode. The JSON is parsed as a whole file, and as a merge patch
// (RFC 7396).
#include <cstdint>

#include "base/json.h"
#include "text/tokenizer/tokenizer.h"

namespace {

using namespace sluice;

void require(bool ok) {
  if (!ok) __builtin_trap();
}

// A valid tokenizer: all bytes, two merges, and added tokens that are special or plain.
Json base_document() {
  Json document = Json::parse(R"x({
    "added_tokens": [{"id": 258, "content": "<|a|>", "special": true}, {"id": 259, "content": "<b>"}],
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"ab": 256, "abc": 257}, "merges": ["a b", "ab c"]}})x");
  int32_t next = 256;
  for (int32_t b = 0; b < 256; ++b) {
    const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    std::string letter;
    append_utf8(static_cast<char32_t>(itself ? b : next++), &letter);
    document["model"]["vocab"][letter] = b;
  }
  return document;
}

void use(const Result<Tokenizer>& loaded, std::string_view text) {
  if (!loaded.ok()) return require(!loaded.status().message.empty());
  const Tokenizer& tokenizer = loaded.value();
  for (const Specials specials : {Specials::kParse, Specials::kAsText}) {
    std::vector<int32_t> ids;
    const Status status = tokenizer.encode(text, specials, &ids);
    require(status.ok() || ids.empty());
    if (!status.ok()) continue;
    require(tokenizer.decode(ids) == text);
    StreamDecoder stream(tokenizer, SpecialOutput::kShow);
    std::string told;
    for (const int32_t id : ids) {
      require(id >= 0 && id < tokenizer.vocab_size());
      require(specials == Specials::kParse || !tokenizer.is_special(id));
      told += stream.push(id);
    }
    require(told + stream.finish() == valid_utf8(text));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Json base = base_document();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(input.find('\0'), input.size());
  const std::string_view json = input.substr(0, zero), text = input.substr(std::min(zero + 1, input.size()));
  use(Tokenizer::parse(json, "input"), text);
  const auto patch = parse_json(json, "patch");
  if (!patch.ok()) return 0;
  Json document = base;
  document.merge_patch(patch.value());
  use(Tokenizer::parse(document.dump(), "patched"), text);
  return 0;
}
