// The pages of the cache: how many sequences use each of them, and whose keys and values the full ones hold. Host data only.
#pragma once
#include <cstdint>
#include <iterator>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace sluice {

// Of the tokens of one page behind the page that was published as number `parent`.
using PageHash = uint64_t (*)(int64_t parent, std::span<const int32_t> tokens);
uint64_t page_hash(int64_t parent, std::span<const int32_t> tokens);  // XXH3

constexpr int64_t kNoParent = 0;  // of the first page of a sequence

// A full page may be published: from then on it is found by its tokens and by the page before it, so that what is found is a
// prefix. Every publication has a number that never comes again, and tokens are compared: a collision of hashes finds nothing
// wrong. A published page that nobody uses stays until another one is wanted; those used least recently are taken first.
//
// Who uses a published page uses those before it, and releases its last page first. So pages that nobody uses are evicted
// from the ends of their chains, and every page that is published can be found.
class PagePool {
 public:
  PagePool(int64_t pages, PageHash hash);

  int64_t available() const {  // used by nobody
    return pages_max_ - std::ssize(pages_) + std::ssize(free_) + std::ssize(unused_);
  }
  int64_t published() const { return std::ssize(by_hash_); }
  int64_t evictions() const { return evictions_; }  // published pages that were taken for other tokens

  int32_t take();              // a page for one user; available() > 0
  void acquire(int32_t page);  // of a published page: one user more
  void release(int32_t page);  // one user less

  // The page that holds these tokens behind publication `parent`.
  std::optional<int32_t> find(int64_t parent, std::span<const int32_t> tokens) const;
  // `page` is used, is not published, and find() has nothing for these tokens.
  void publish(int32_t page, int64_t parent, std::span<const int32_t> tokens);
  int64_t number(int32_t page) const { return at(page).number; }  // kNoParent: not published
  void forget_all();                                              // nothing is published any more

 private:
  struct Page {
    int64_t users = 0, number = kNoParent, parent = kNoParent;
    uint64_t hash = 0;
    std::vector<int32_t> tokens;
    std::list<int32_t>::iterator unused;  // of a published page without users: its place there
  };
  Page& at(int32_t page) { return pages_[static_cast<size_t>(page)]; }
  const Page& at(int32_t page) const { return pages_[static_cast<size_t>(page)]; }
  void evict_oldest();

  int64_t pages_max_;
  PageHash hash_;
  std::vector<Page> pages_;    // as many as were ever taken
  std::vector<int32_t> free_;  // neither used nor published; taken from the back
  std::list<int32_t> unused_;  // published and used by nobody, the least recently used first
  std::unordered_multimap<uint64_t, int32_t> by_hash_;
  int64_t last_number_ = kNoParent, evictions_ = 0;
};

}  // namespace sluice
