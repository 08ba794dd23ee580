// The tokens of a vocabulary as a prefix tree of their bytes, in depth-first order.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace sluice {

using TokenBits = std::vector<uint32_t>;  // bit id % 32 of word id / 32

class TokenTrie {
 public:
  struct Node {
    uint8_t byte;
    uint16_t depth;  // 1 for children of the root
    // A token whose bytes end here, or -1; next_same_ links further tokens with the same bytes.
    int32_t token;
    int32_t end;      // the first node after this subtree
    int32_t example;  // some token that begins with the bytes of this node
  };

  // Leaves out special tokens and tokens without bytes.
  explicit TokenTrie(const Tokenizer& tokenizer) : TokenTrie(tokenizer, all_tokens(tokenizer)) {}
  TokenTrie(const Tokenizer& tokenizer, std::vector<int32_t> tokens);
  static std::vector<int32_t> all_tokens(const Tokenizer& tokenizer);

  std::span<const Node> nodes() const { return nodes_; }
  int64_t bytes_max() const { return bytes_max_; }
  void set_tokens(const Node& node, std::span<uint32_t> bits) const {
    for (int32_t id = node.token; id >= 0; id = next_same_[static_cast<size_t>(id)])
      bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  void clear_tokens(const Node& node, std::span<uint32_t> bits) const {
    for (int32_t id = node.token; id >= 0; id = next_same_[static_cast<size_t>(id)])
      bits[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
  }

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> next_same_;
  int64_t bytes_max_ = 0;
};

// A vocabulary in the form that masks need.
struct Vocabulary {
  explicit Vocabulary(const Tokenizer& tokenizer, int64_t vocab, int32_t end);
  Tokenizer tokenizer;
  int64_t words;  // per mask
  int32_t end;    // the token that ends a text
  TokenTrie all;
  // The tree of all tokens that are not plain. A plain token, as most tokens are, consists of whole characters that JSON does not escape.
  TokenTrie not_plain;
  // At index i: the plain tokens of at most i characters. The last entry has all plain tokens.
  std::vector<TokenBits> plain;

 private:
  Vocabulary(const Tokenizer& tokenizer, int64_t vocab, int32_t end, std::vector<int32_t> others);
  static std::vector<int32_t> not_plain_tokens(const Tokenizer& tokenizer);
};

}  // namespace sluice
