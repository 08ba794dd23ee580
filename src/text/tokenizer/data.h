// The data of a tokenizer. Filled by read_json.cc, used by tokenizer.cc.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/split_pattern.h"
#include "text/tokenizer/tokenizer.h"

namespace sluice {

struct Tokenizer::Data {
  enum class Kind : uint8_t { kNone, kWord, kAdded, kSpecial };
  struct Piece {
    int64_t begin = 0;  // offset in `bytes`
    int32_t size = 0;
    Kind kind = Kind::kNone;
  };
  struct Added {
    std::string content;
    int32_t id = 0;
    Kind kind = Kind::kAdded;
  };

  std::string bytes;          // the bytes of all tokens, concatenated
  std::vector<Piece> pieces;  // [vocab_size], by id
  std::array<int32_t, 256> byte_ids{};
  Merges merges;
  bool nfc = false;                    // normalize text to NFC before splitting
  std::vector<SplitPattern> patterns;  // applied in order; empty: a text is one piece
  std::vector<Added> added;            // sorted by content for longest_added()
  std::array<bool, 256> starts_added{};
  // With ignore_merges: all words except special tokens. A piece that equals one of them becomes one token. Keys are views into `bytes`.
  std::unordered_map<std::string_view, int32_t> whole_words;
  SpecialEnds ends;

  std::string_view piece(int32_t id) const {
    if (id < 0 || static_cast<size_t>(id) >= pieces.size()) return {};
    const Piece& p = pieces[static_cast<size_t>(id)];
    return std::string_view(bytes).substr(static_cast<size_t>(p.begin), static_cast<size_t>(p.size));
  }
  Kind kind(int32_t id) const {
    return id < 0 || static_cast<size_t>(id) >= pieces.size() ? Kind::kNone
                                                              : pieces[static_cast<size_t>(id)].kind;
  }
};

}  // namespace sluice
