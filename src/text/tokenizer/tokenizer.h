// Tokenizes text by byte-level byte pair encoding, as defined by a Hugging Face tokenizer.json.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/utf8.h"

namespace sluice {

// How encode() treats the text of a special token, for example "<|end|>".
enum class Specials : uint8_t {
  kParse,   // it becomes the token: for text that the program wrote
  kAsText,  // it stays text: for text from users, who must not forge a message's frame
  // The same for every added token: for formats whose frame has added tokens that are not special.
  kAllAsText,
};

// How decoding treats the id of a special token.
enum class SpecialOutput : uint8_t { kShow, kSkip };

// The special tokens that a tokenizer puts around a plain text, such as a beginning of sequence.
struct SpecialEnds {
  std::vector<int32_t> before = {}, after = {};
};

// Gives the ids of Hugging Face tokenizers 0.23 with add_special_tokens=False (and encode_special_tokens=True for kAsText; kAllAsText
// gives the ids of a file without added tokens), with these intended differences:
//   - Invalid UTF-8 is encoded byte by byte, so decode(encode(x)) == x for every x (with a normalizer: the normalized x).
//   - With kAsText and kAllAsText no special token is returned, even if ignore_merges would find it as a whole word.
//   - An added token decodes to its own text, even if its letters could represent bytes.
// Immutable, thread-safe and cheap to copy.
class Tokenizer {
 public:
  // Reads a file of at most 256 MiB. kIo, kCorrupt or kUnsupported names the file, the key, the expected and the found value. Supported:
  // model BPE (merges as "a b" or ["a", "b"], ignore_merges); normalizer NFC, none or an empty Sequence; pre_tokenizer ByteLevel, or a Sequence of
  // Split{Regex, Isolated} and a final ByteLevel, without prefix space; decoder ByteLevel; post_processor none, ByteLevel,
  // TemplateProcessing or a Sequence of these with one template; added tokens without lstrip, rstrip, single_word and normalized.
  // An unknown key is an error, because it could change the ids.
  static Result<Tokenizer> load(const std::string& path);
  // The same from memory; `what` names the text in errors.
  static Result<Tokenizer> parse(std::string_view json, std::string_view what);

  // Appends to `ids`; leaves it unchanged on error. kInvalidArgument: more than 1 GiB of text. kUnsupported: the file's pattern takes
  // too many steps (text/tokenizer/split_pattern.h). Does not add special_ends().
  Status encode(std::string_view text, Specials specials, std::vector<int32_t>* ids) const;

  // The concatenated bytes of the tokens, which may be invalid UTF-8. An id without a token gives U+FFFD: models may have more logits
  // than the vocabulary has words.
  std::string decode(std::span<const int32_t> ids, SpecialOutput specials = SpecialOutput::kShow) const;

  // The tokens that the library adds with add_special_tokens=True, from post_processor's template for one text. transformers 5 uses only this
  // template: add_bos_token and add_eos_token of tokenizer_config.json have no effect beside a tokenizer.json.
  const SpecialEnds& special_ends() const;

  // The id of a special token by its text, for example "<|start|>".
  std::optional<int32_t> id_of(std::string_view special) const;
  // The id of any added token, special or not.
  std::optional<int32_t> id_of_added(std::string_view added) const;
  bool is_special(int32_t id) const;
  // The largest id plus one.
  int64_t vocab_size() const;
  // The bytes of one token; empty for an id without a token. Valid during the lifetime of this tokenizer and its copies.
  std::string_view piece(int32_t id) const;

  struct Data;  // text/tokenizer/data.h

 private:
  explicit Tokenizer(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

// Decodes ids one at a time into valid UTF-8. A character spread over several tokens is held back until it is complete; invalid bytes
// become U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, SpecialOutput specials = SpecialOutput::kSkip)
      : tokenizer_(std::move(tokenizer)), specials_(specials) {}
  std::string push(int32_t id);
  std::string finish();  // returns held-back bytes; then the decoder can be reused

 private:
  Tokenizer tokenizer_;
  SpecialOutput specials_;
  Utf8Stream stream_;
};

}  // namespace sluice
