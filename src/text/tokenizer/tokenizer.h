// Text to token ids and back: byte-level byte pair encoding, read from a Hugging Face tokenizer.json.
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

// What encode() does with the text of a special token, for example "<|end|>".
enum class Specials : uint8_t {
  kParse,   // it becomes the token: for text that the program wrote
  kAsText,  // it is text like any other: for text from a user, which must not forge the frame of a message
};

// What decoding does with the id of a special token.
enum class SpecialOutput : uint8_t { kShow, kSkip };

// Ids are those of Hugging Face tokenizers 0.23 with add_special_tokens=False (and encode_special_tokens=True for kAsText),
// with these differences, each on purpose:
//   - Bytes that are not UTF-8 lose nothing: they are encoded byte by byte, so decode(encode(x)) == x for every x
//     (with a normalizer: the normalized x).
//   - Under kAsText a special token is never among the ids, even if ignore_merges would find it as a whole word.
//   - A token that was added decodes to its own text, even if its letters are among those that stand for bytes.
// Immutable and cheap to copy; any number of threads may use it.
class Tokenizer {
 public:
  // Reads a file of at most 256 MiB. kIo, kCorrupt or kUnsupported names the file, the key, what was wanted and what was
  // found. Supported: model BPE (merges as "a b" or ["a", "b"], ignore_merges); normalizer NFC or none; pre_tokenizer ByteLevel, or a
  // Sequence of Split{Regex, Isolated} and a last ByteLevel, without prefix space; decoder ByteLevel; post_processor none,
  // ByteLevel or TemplateProcessing, neither of which has an effect without add_special_tokens; added tokens without lstrip,
  // rstrip, single_word and normalized. A key that is not known is refused, because it could mean anything.
  static Result<Tokenizer> load(const std::string& path);
  // The same from memory; `what` names the text in errors.
  static Result<Tokenizer> parse(std::string_view json, std::string_view what);

  // Appends to `ids`, or leaves them alone on error. kInvalidArgument above 1 GiB of text; kUnsupported if the file's
  // pattern takes too many steps (text/tokenizer/split_pattern.h). No token is added before or after.
  Status encode(std::string_view text, Specials specials, std::vector<int32_t>* ids) const;

  // The bytes of the tokens, joined; they need not be UTF-8. An id without a token (models have more logits than the
  // vocabulary has words) gives U+FFFD.
  std::string decode(std::span<const int32_t> ids, SpecialOutput specials = SpecialOutput::kShow) const;

  // The id of a special token by its text, for example "<|start|>".
  std::optional<int32_t> id_of(std::string_view special) const;
  // The same of any token that was added to the vocabulary, special or not.
  std::optional<int32_t> id_of_added(std::string_view added) const;
  bool is_special(int32_t id) const;
  // One more than the largest id.
  int64_t vocab_size() const;
  // The bytes of one token; empty for an id without one. Valid as long as this tokenizer or a copy of it.
  std::string_view piece(int32_t id) const;

  struct Data;  // text/tokenizer/data.h

 private:
  explicit Tokenizer(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

// Decodes ids one at a time into valid UTF-8: a character that is spread over tokens is held back until it is whole, and
// bytes that are none become U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, SpecialOutput specials = SpecialOutput::kSkip)
      : tokenizer_(std::move(tokenizer)), specials_(specials) {}
  std::string push(int32_t id);
  std::string finish();  // what is still held back; the decoder can be used again

 private:
  Tokenizer tokenizer_;
  SpecialOutput specials_;
  Utf8Stream stream_;
};

}  // namespace sluice
