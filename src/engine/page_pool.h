// The pages of the cache: how many sequences use each of them, and whose keys and values the full ones hold. Host data only.
#pragma once
#include <array>
#include <cstdint>
#include <iterator>
#include <list>
#include <vector>

#include "engine/prefix_tree.h"

namespace sluice {

// What a page that its last user releases is good for.
enum class Reuse : uint8_t {
  kUnlikely,  // no sequence is expected to begin behind it
  kLikely,
};

// A full page may be published: from then on it is found by the prefix that ends with its tokens. A published page that nobody
// uses stays until another one is wanted: those whose reuse is unlikely are taken first, and of equals those used least recently.
//
// Groups of layers take pages of one pool. A sequence goes on from pages of all of them, from those of a group that sees the
// whole context as far back as to its first. Who uses such a page uses those before it and releases its last page first, so they are
// evicted from the ends of their prefixes. With it the other groups' pages of its prefix stop being published: without
// it nobody can go on from them.
class PagePool {
 public:
  // windows: CacheLayout.
  PagePool(int64_t pages, PageHash hash, const std::vector<int64_t>& windows = {0});

  int64_t available() const {  // used by nobody
    return pages_max_ - std::ssize(pages_) + std::ssize(free_) + std::ssize(unused_[0]) +
           std::ssize(unused_[1]);
  }
  int64_t published() const { return published_; }
  int64_t evictions() const { return evictions_; }  // published pages that were lost to other tokens

  int32_t take();                           // a page for one user; available() > 0
  void acquire(int32_t page);               // of a published page: one user more
  void release(int32_t page, Reuse reuse);  // one user less

  const PrefixTree& prefixes() const { return prefixes_; }
  int64_t hold_prefix(int64_t parent, std::span<const int32_t> tokens) {
    return prefixes_.hold(parent, tokens);
  }
  void hold_prefix(int64_t prefix) { prefixes_.hold(prefix); }
  void release_prefix(int64_t prefix) { prefixes_.release(prefix); }
  // `page` is used and not published, and `prefix` has no page of this group.
  void publish(int32_t page, int64_t prefix, size_t group);
  void forget_all();  // nothing is published any more; no prefix is held

 private:
  struct Page {
    int64_t users = 0, prefix = kNoPrefix;  // kNoPrefix: not published
    size_t group = 0;                       // of a published page
    Reuse reuse = Reuse::kLikely;           // of one without users besides
    std::list<int32_t>::iterator unused;    // and its place there
  };
  Page& at(int32_t page) { return pages_[static_cast<size_t>(page)]; }
  std::list<int32_t>& unused(Reuse reuse) { return unused_[static_cast<size_t>(reuse)]; }
  void evict();
  void unpublish(int32_t page);

  int64_t pages_max_;
  size_t groups_;
  bool whole_context_;  // group 0 sees it
  PrefixTree prefixes_;
  std::vector<Page> pages_;                   // as many as were ever taken
  std::vector<int32_t> free_;                 // neither used nor published; taken from the back
  std::array<std::list<int32_t>, 2> unused_;  // published and used by nobody, the least recently used first
  int64_t published_ = 0, evictions_ = 0;
};

}  // namespace sluice
