#include "apps/serve/response_store.h"

namespace sluice::apps {
namespace {

int64_t bytes_of(const StoredResponse& r) {
  int64_t bytes = std::ssize(r.json) + std::ssize(r.conversation.instructions) +
                  std::ssize(r.conversation.messages) * 256;
  for (const Message& m : r.conversation.messages) bytes += std::ssize(m.content);
  return bytes;
}

}  // namespace

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return {};
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->response;
}

void ResponseStore::put(const std::string& id, std::shared_ptr<const StoredResponse> response) {
  const int64_t bytes = bytes_of(*response);
  const std::lock_guard lock(mutex_);
  if (const auto same = by_id_.find(id); same != by_id_.end()) drop(same->second);
  entries_.push_front({id, std::move(response), bytes});
  by_id_[id] = entries_.begin();
  bytes_ += bytes;
  // The newest stays, however large it is.
  while (entries_.size() > 1 && (std::ssize(entries_) > most_ || bytes_ > most_bytes_))
    drop(std::prev(entries_.end()));
}

bool ResponseStore::erase(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  drop(found->second);
  return true;
}

void ResponseStore::drop(std::list<Entry>::iterator entry) {
  bytes_ -= entry->bytes;
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

}  // namespace sluice::apps
