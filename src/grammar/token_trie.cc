#include "grammar/token_trie.h"

#include <algorithm>

#include "base/utf8.h"

namespace sluice {
namespace {

// Longer tokens are not treated as plain. They are rare.
constexpr size_t kCharsMax = 64;

// The number of characters of a plain token; -1 if the token is not plain.
int64_t plain_chars(std::string_view piece) {
  int64_t chars = 0;
  for (size_t at = 0; at < piece.size(); ++chars) {
    const Utf8Step step = utf8_step(piece.substr(at));
    if (!step.valid || step.code_point < 0x20 || step.code_point == '"' || step.code_point == '\\') return -1;
    at += static_cast<size_t>(step.bytes);
  }
  return chars > static_cast<int64_t>(kCharsMax) ? -1 : chars;
}

}  // namespace

std::vector<int32_t> TokenTrie::all_tokens(const Tokenizer& tokenizer) {
  std::vector<int32_t> out;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (!tokenizer.is_special(id) && !tokenizer.piece(id).empty()) out.push_back(id);
  return out;
}

TokenTrie::TokenTrie(const Tokenizer& tokenizer, std::vector<int32_t> tokens)
    : next_same_(static_cast<size_t>(tokenizer.vocab_size()), -1) {
  std::sort(tokens.begin(), tokens.end(), [&](int32_t a, int32_t b) {
    const auto x = tokenizer.piece(a), y = tokenizer.piece(b);
    return x != y ? x < y : a < b;
  });
  std::vector<int32_t> open;  // the path from the root's child to the last node
  std::string_view before;
  const auto close_to = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back())
      nodes_[static_cast<size_t>(open.back())].end = static_cast<int32_t>(nodes_.size());
  };
  for (const int32_t id : tokens) {
    const std::string_view piece = tokenizer.piece(id).substr(0, 0xffff);
    bytes_max_ = std::max(bytes_max_, static_cast<int64_t>(piece.size()));
    size_t same = 0;
    while (same < piece.size() && same < before.size() && piece[same] == before[same]) ++same;
    close_to(same);
    for (size_t i = same; i < piece.size(); ++i) {
      open.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back({static_cast<uint8_t>(piece[i]), static_cast<uint16_t>(i + 1), -1, 0, id});
    }
    int32_t& token = nodes_[static_cast<size_t>(open.back())].token;
    next_same_[static_cast<size_t>(id)] = token;
    token = id;
    before = piece;
  }
  close_to(0);
}

std::vector<int32_t> Vocabulary::not_plain_tokens(const Tokenizer& tokenizer) {
  auto out = TokenTrie::all_tokens(tokenizer);
  std::erase_if(out, [&](int32_t id) { return plain_chars(tokenizer.piece(id)) >= 0; });
  return out;
}

Vocabulary::Vocabulary(const Tokenizer& t, int64_t vocab, int32_t e)
    : Vocabulary(t, vocab, e, not_plain_tokens(t)) {}
Vocabulary::Vocabulary(const Tokenizer& t, int64_t vocab, int32_t e, std::vector<int32_t> others)
    : tokenizer(t), words((vocab + 31) / 32), end(e), all(t), not_plain(t, std::move(others)) {
  plain.assign(kCharsMax + 1, TokenBits(static_cast<size_t>(words)));
  for (const int32_t id : TokenTrie::all_tokens(t))
    if (const int64_t chars = plain_chars(t.piece(id)); chars >= 0)
      plain[static_cast<size_t>(chars)][static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  for (size_t i = 1; i < plain.size(); ++i)
    for (size_t w = 0; w < plain[i].size(); ++w) plain[i][w] |= plain[i - 1][w];
}

}  // namespace sluice
