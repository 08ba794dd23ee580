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
  kParse,   // it becomes the token; for text that does not come from users
  kAsText,  // it stays text; for text from users, which must not produce control tokens
  // The text of every added token stays text; for formats whose control tokens include added tokens that are not special.
  kAllAsText,
};

// Whether the text of special tokens is part of decoded text.
enum class SpecialOutput : uint8_t { kShow, kSkip };

// The special tokens that a tokenizer puts before and after a text, such as a beginning-of-sequence token.
struct SpecialEnds {
  std::vector<int32_t> before = {}, after = {};
};

// Returns the ids that Hugging Face tokenizers 0.23 returns with add_special_tokens=False, for kAsText with encode_special_tokens=True, and for
// kAllAsText with a file without added tokens. The intended differences are:
//   - Invalid UTF-8 is encoded byte by byte, so decode(encode(x)) == x for every x (with a normalizer: the normalized x).
//   - With kAsText and kAllAsText no special token is returned, even if ignore_merges would find it as a whole word.
//   - An added token decodes to its own text, even if its letters could represent bytes.
// Immutable, thread-safe and cheap to copy.
class Tokenizer {
 public:
  // Reads a file of at most 256 MiB. The messages of errors name the file, the key, and the expected and found values. Supported:
  // model BPE (merges as "a b" or ["a", "b"], ignore_merges); normalizer NFC, none or an empty Sequence; pre_tokenizer ByteLevel, or a Sequence of
  // Split{Regex, Isolated} and a final ByteLevel, without prefix space; decoder ByteLevel; post_processor none, ByteLevel,
  // TemplateProcessing or a Sequence of these with one template; added tokens without lstrip, rstrip, single_word and normalized.
  // An unknown key is an error, because it could change the ids.
  static Result<Tokenizer> load(const std::string& path);
  // Like load(), but reads the text `json`; `what` names it in error messages.
  static Result<Tokenizer> parse(std::string_view json, std::string_view what);

  // Appends the ids of `text` to `ids`, without special_ends(). On error `ids` is unchanged. kInvalidArgument: the text has more than 1 GiB.
  // kUnsupported: the pattern of the tokenizer takes too many steps (text/tokenizer/split_pattern.h).
  Status encode(std::string_view text, Specials specials, std::vector<int32_t>* ids) const;

  // The concatenated bytes of the tokens, which may be invalid UTF-8. An id without a token becomes U+FFFD, because a model may sample such
  // an id if its logits row is longer than the vocabulary.
  std::string decode(std::span<const int32_t> ids, SpecialOutput specials = SpecialOutput::kShow) const;

  // The tokens that Hugging Face tokenizers add with add_special_tokens=True, from the post_processor's template for one text. Like
  // transformers 5, this ignores add_bos_token and add_eos_token of tokenizer_config.json.
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
  std::string finish();  // returns held-back bytes; after that the decoder can be reused
  // Whether the token's text cannot complete the held-back bytes, so that they become U+FFFD before it.
  bool is_cut_by(int32_t id) const;

 private:
  Tokenizer tokenizer_;
  SpecialOutput specials_;
  Utf8Stream stream_;
};

}  // namespace sluice
