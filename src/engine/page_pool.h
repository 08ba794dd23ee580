// The pages of the KV cache: how many sequences use each page, and which tokens the full pages hold.
// Host data only.
#pragma once
#include <array>
#include <cstdint>
#include <iterator>
#include <list>
#include <vector>

#include "engine/prefix_tree.h"

namespace sluice {

// Whether a page is worth keeping after its last user releases it.
enum class Reuse : uint8_t {
  kUnlikely,  // no sequence is expected to continue from it
  kLikely,
};

// A full page may be published: then lookups find it by the prefix that ends with its tokens. A published
// page without users stays cached until a page is needed. Pages whose reuse is unlikely are evicted first;
// among equally likely pages, the least recently used first.
//
// All groups of layers share one pool. To continue from a prefix, a sequence needs pages of all groups; from
// the group that sees the whole context, it needs all pages of the prefix. A sequence that uses such a page
// also uses all earlier pages and releases the last page first, so prefixes are evicted from their ends.
// Evicting such a page also unpublishes the other groups' pages of the same prefix, because without it no
// sequence can continue from the prefix.
class PagePool {
 public:
  // windows: see CacheLayout.
  PagePool(int64_t pages, PageHash hash, const std::vector<int64_t>& windows = {0});

  int64_t available() const {  // pages without users
    return pages_max_ - std::ssize(pages_) + std::ssize(free_) + std::ssize(unused_[0]) +
           std::ssize(unused_[1]);
  }
  int64_t published() const { return published_; }
  int64_t evictions() const { return evictions_; }  // published pages that were evicted

  int32_t take();                           // returns a page with one user; requires available() > 0
  void acquire(int32_t page);               // adds a user to a published page
  void release(int32_t page, Reuse reuse);  // removes a user

  const PrefixTree& prefixes() const { return prefixes_; }
  int64_t hold_prefix(int64_t parent, std::span<const int32_t> tokens) {
    return prefixes_.hold(parent, tokens);
  }
  void hold_prefix(int64_t prefix) { prefixes_.hold(prefix); }
  void release_prefix(int64_t prefix) { prefixes_.release(prefix); }
  // `page` must be in use and unpublished, and `prefix` must have no page of this group.
  void publish(int32_t page, int64_t prefix, size_t group);
  void forget_all();  // unpublishes all pages; no prefix may be held

 private:
  struct Page {
    int64_t users = 0, prefix = kNoPrefix;  // kNoPrefix: not published
    size_t group = 0;                       // valid while published
    Reuse reuse = Reuse::kLikely;           // valid while the page has no users
    std::list<int32_t>::iterator unused;    // its position in unused_[reuse]
  };
  Page& at(int32_t page) { return pages_[static_cast<size_t>(page)]; }
  std::list<int32_t>& unused(Reuse reuse) { return unused_[static_cast<size_t>(reuse)]; }
  void evict();
  void unpublish(int32_t page);

  int64_t pages_max_;
  size_t groups_;
  bool whole_context_;  // whether group 0 sees the whole context
  PrefixTree prefixes_;
  std::vector<Page> pages_;                   // grows with the number of pages in use so far
  std::vector<int32_t> free_;                 // neither used nor published; allocated from the end
  std::array<std::list<int32_t>, 2> unused_;  // published and unused, least recently used first
  int64_t published_ = 0, evictions_ = 0;
};

}  // namespace sluice
