#include "engine/prefix_tree.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace sluice {

uint64_t page_hash(int64_t parent, std::span<const int32_t> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), static_cast<uint64_t>(parent));
}

std::optional<int64_t> PrefixTree::find(int64_t parent, std::span<const int32_t> tokens) const {
  const auto [begin, end] = of_hash_.equal_range(hash_(parent, tokens));
  for (auto entry = begin; entry != end; ++entry) {
    const Node& node = nodes_.at(entry->second);
    if (node.parent == parent && std::ranges::equal(node.tokens, tokens)) return entry->second;
  }
  return {};
}

int64_t PrefixTree::hold(int64_t parent, std::span<const int32_t> tokens) {
  if (const auto found = find(parent, tokens)) return hold(*found), *found;
  const int64_t number = ++last_number_;
  const uint64_t hash = hash_(parent, tokens);
  nodes_[number] = {.parent = parent,
                    .references = 1,
                    .hash = hash,
                    .tokens = {tokens.begin(), tokens.end()},
                    .pages = std::vector<int32_t>(groups_, kNoPage)};
  of_hash_.emplace(hash, number);
  return hold(parent), number;
}

void PrefixTree::hold(int64_t prefix) {
  if (prefix != kNoPrefix) ++nodes_.at(prefix).references;
}

void PrefixTree::release(int64_t prefix) {
  while (prefix != kNoPrefix) {
    const auto node = nodes_.find(prefix);
    if (--node->second.references > 0) return;
    const auto [begin, end] = of_hash_.equal_range(node->second.hash);
    of_hash_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == prefix; }));
    prefix = node->second.parent;
    nodes_.erase(node);
  }
}

int32_t PrefixTree::page(int64_t prefix, size_t group) const { return nodes_.at(prefix).pages[group]; }

void PrefixTree::set_page(int64_t prefix, size_t group, int32_t page) {
  nodes_.at(prefix).pages[group] = page;
  page == kNoPage ? release(prefix) : hold(prefix);
}

void PrefixTree::clear() {
  nodes_.clear();
  of_hash_.clear();
}

}  // namespace sluice
