#include "engine/page_pool.h"

#include <utility>

namespace sluice {

PagePool::PagePool(int64_t pages, PageHash hash, const std::vector<int64_t>& windows)
    : pages_max_(pages),
      groups_(windows.size()),
      whole_context_(windows.front() == 0),
      prefixes_(groups_, hash) {}

// Removes the page from prefix lookups. If no sequence uses it, it becomes free.
void PagePool::unpublish(int32_t page) {
  Page& p = at(page);
  prefixes_.set_page(std::exchange(p.prefix, kNoPrefix), p.group, kNoPage);
  --published_, ++evictions_;
  if (p.users > 0) return;
  unused(p.reuse).erase(p.unused);
  free_.push_back(page);
}

void PagePool::evict() {
  const int32_t page = unused_[unused_[0].empty() ? 1 : 0].front();
  const int64_t prefix = at(page).prefix;
  for (size_t group = groups_ - 1; whole_context_ && at(page).group == 0 && group > 0; --group)
    if (const int32_t other = prefixes_.page(prefix, group); other != kNoPage) unpublish(other);
  unpublish(page);
}

int32_t PagePool::take() {
  if (free_.empty() && std::ssize(pages_) < pages_max_) {
    free_.push_back(static_cast<int32_t>(pages_.size()));
    pages_.emplace_back();
  } else if (free_.empty()) {
    evict();
  }
  const int32_t page = free_.back();
  free_.pop_back();
  at(page).users = 1;
  return page;
}

void PagePool::acquire(int32_t page) {
  Page& p = at(page);
  if (p.users++ == 0) unused(p.reuse).erase(p.unused);
}

void PagePool::release(int32_t page, Reuse reuse) {
  Page& p = at(page);
  if (--p.users > 0) return;
  if (p.prefix == kNoPrefix) {
    free_.push_back(page);
  } else {
    p.reuse = reuse;
    p.unused = unused(reuse).insert(unused(reuse).end(), page);
  }
}

void PagePool::publish(int32_t page, int64_t prefix, size_t group) {
  Page& p = at(page);
  p.prefix = prefix;
  p.group = group;
  prefixes_.set_page(prefix, group, page);
  ++published_;
}

void PagePool::forget_all() {
  prefixes_.clear();
  published_ = 0;
  for (Page& p : pages_) p.prefix = kNoPrefix;
  for (std::list<int32_t>& pages : unused_) {
    free_.insert(free_.end(), pages.begin(), pages.end());
    pages.clear();
  }
}

}  // namespace sluice
