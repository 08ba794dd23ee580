// A tree of token prefixes that consist of whole pages, with the cache pages that hold their keys and values.
// Host data only.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace sluice {

// Hash of one page of tokens after prefix `parent`.
using PageHash = uint64_t (*)(int64_t parent, std::span<const int32_t> tokens);
uint64_t page_hash(int64_t parent, std::span<const int32_t> tokens);  // XXH3

constexpr int64_t kNoPrefix = 0;  // the empty prefix
constexpr int32_t kNoPage = -1;

// A prefix is its parent prefix plus one page of tokens. It has a number, which is never reused. Lookups
// compare the tokens, so a hash collision never returns a wrong prefix. Each group of layers may have a cache
// page for the prefix's last page of tokens. A prefix exists while it has a cache page, is held, or is the
// parent of another prefix.
class PrefixTree {
 public:
  PrefixTree(size_t groups, PageHash hash) : groups_(groups), hash_(hash) {}

  std::optional<int64_t> find(int64_t parent, std::span<const int32_t> tokens) const;
  // Finds or creates the prefix and holds it. `parent` must exist.
  int64_t hold(int64_t parent, std::span<const int32_t> tokens);
  void hold(int64_t prefix);     // adds a hold; kNoPrefix: does nothing
  void release(int64_t prefix);  // drops a hold; kNoPrefix: does nothing
  int32_t page(int64_t prefix, size_t group) const;
  // Sets the cache page of a prefix that has no page in this group; kNoPage removes the prefix's page.
  void set_page(int64_t prefix, size_t group, int32_t page);
  void clear();  // no prefix may be held
  int64_t size() const { return std::ssize(nodes_); }

 private:
  struct Node {
    int64_t parent = kNoPrefix, references = 0;  // references: number of pages, holds and child prefixes
    uint64_t hash = 0;
    std::vector<int32_t> tokens, pages;
  };

  size_t groups_;
  PageHash hash_;
  std::unordered_map<int64_t, Node> nodes_;             // by prefix number
  std::unordered_multimap<uint64_t, int64_t> of_hash_;  // prefix numbers by hash
  int64_t last_number_ = kNoPrefix;
};

}  // namespace sluice
