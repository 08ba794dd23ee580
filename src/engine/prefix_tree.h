// Prefixes of sequences in whole pages of tokens, and the pages of the cache that hold their keys and values. Host data only.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace sluice {

// Of the tokens of one page behind prefix `parent`.
using PageHash = uint64_t (*)(int64_t parent, std::span<const int32_t> tokens);
uint64_t page_hash(int64_t parent, std::span<const int32_t> tokens);  // XXH3

constexpr int64_t kNoPrefix = 0;  // that of no tokens
constexpr int32_t kNoPage = -1;

// A prefix is another one and a page of tokens more. It has a number that never comes again, and tokens are compared: a collision
// of hashes finds nothing wrong. Each group of layers may have a page for its last tokens, or none. A prefix is there as
// long as it has a page, is held, or is part of a longer one.
class PrefixTree {
 public:
  PrefixTree(size_t groups, PageHash hash) : groups_(groups), hash_(hash) {}

  std::optional<int64_t> find(int64_t parent, std::span<const int32_t> tokens) const;
  // Finds or makes it, and holds it. `parent` is there.
  int64_t hold(int64_t parent, std::span<const int32_t> tokens);
  void hold(int64_t prefix);     // once more; kNoPrefix: nothing
  void release(int64_t prefix);  // once less; likewise
  int32_t page(int64_t prefix, size_t group) const;
  // In place of none, or none (kNoPage) in place of one.
  void set_page(int64_t prefix, size_t group, int32_t page);
  void clear();  // nothing is held
  int64_t size() const { return std::ssize(nodes_); }

 private:
  struct Node {
    int64_t parent = kNoPrefix, references = 0;  // pages, holders and longer prefixes
    uint64_t hash = 0;
    std::vector<int32_t> tokens, pages;
  };

  size_t groups_;
  PageHash hash_;
  std::unordered_map<int64_t, Node> nodes_;             // by number
  std::unordered_multimap<uint64_t, int64_t> of_hash_;  // numbers
  int64_t last_number_ = kNoPrefix;
};

}  // namespace sluice
