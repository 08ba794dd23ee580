#include "serve/page_pool.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace sluice {

uint64_t page_hash(int64_t parent, std::span<const int32_t> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), static_cast<uint64_t>(parent));
}

PagePool::PagePool(int64_t pages, PageHash hash) : pages_max_(pages), hash_(hash) {}

void PagePool::evict_oldest() {
  const int32_t page = unused_.front();
  const auto [begin, end] = by_hash_.equal_range(at(page).hash);
  by_hash_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == page; }));
  unused_.pop_front();
  at(page).number = kNoParent;
  free_.push_back(page);
  ++evictions_;
}

int32_t PagePool::take() {
  if (free_.empty() && std::ssize(pages_) < pages_max_) {
    free_.push_back(static_cast<int32_t>(pages_.size()));
    pages_.emplace_back();
  } else if (free_.empty()) {
    evict_oldest();
  }
  const int32_t page = free_.back();
  free_.pop_back();
  at(page).users = 1;
  return page;
}

void PagePool::acquire(int32_t page) {
  Page& p = at(page);
  if (p.users++ == 0) unused_.erase(p.unused);
}

void PagePool::release(int32_t page) {
  Page& p = at(page);
  if (--p.users > 0) return;
  if (p.number == kNoParent) {
    free_.push_back(page);
  } else {
    p.unused = unused_.insert(unused_.end(), page);
  }
}

std::optional<int32_t> PagePool::find(int64_t parent, std::span<const int32_t> tokens) const {
  const auto [begin, end] = by_hash_.equal_range(hash_(parent, tokens));
  for (auto entry = begin; entry != end; ++entry) {
    const Page& p = at(entry->second);
    if (p.parent == parent && std::ranges::equal(p.tokens, tokens)) return entry->second;
  }
  return {};
}

void PagePool::publish(int32_t page, int64_t parent, std::span<const int32_t> tokens) {
  Page& p = at(page);
  p.number = ++last_number_;
  p.parent = parent;
  p.hash = hash_(parent, tokens);
  p.tokens.assign(tokens.begin(), tokens.end());
  by_hash_.emplace(p.hash, page);
}

void PagePool::forget_all() {
  by_hash_.clear();
  for (Page& p : pages_) p.number = kNoParent;
  free_.insert(free_.end(), unused_.begin(), unused_.end());
  unused_.clear();
}

}  // namespace sluice
