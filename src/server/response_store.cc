#include "server/response_store.h"

namespace sluice {
namespace {

constexpr int64_t kNodeBytes = 64;  // overhead of a container's node and of its allocation

// Heap bytes of a string.
int64_t bytes_of(const std::string& text) { return text.capacity() > 15 ? std::ssize(text) + kNodeBytes : 0; }

int64_t bytes_of(const Message& m) {
  int64_t bytes = sizeof(Message);
  for (const std::string* text : {&m.name, &m.channel, &m.recipient, &m.content_type, &m.content})
    bytes += bytes_of(*text);
  return bytes;
}

}  // namespace

int64_t bytes_of(const StoredResponse& r) {
  int64_t bytes = sizeof(StoredResponse) + bytes_of(r.json) + bytes_of(r.conversation.instructions);
  for (const Message& m : r.conversation.messages) bytes += bytes_of(m);
  for (const auto& [id, function] : r.conversation.function_of)
    bytes += 2 * int64_t{sizeof(std::string)} + kNodeBytes + bytes_of(id) + bytes_of(function);
  return bytes;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return {};
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->response;
}

bool ResponseStore::put(const std::string& id, std::shared_ptr<const StoredResponse> response) {
  // The id is stored in the list and in the map.
  const int64_t bytes = bytes_of(*response) + int64_t{sizeof(Entry)} + 3 * kNodeBytes + 2 * bytes_of(id);
  const std::lock_guard lock(mutex_);
  if (const auto same = by_id_.find(id); same != by_id_.end()) drop(same->second);
  if (bytes > max_bytes_) return false;
  entries_.push_front({id, std::move(response), bytes});
  by_id_[id] = entries_.begin();
  bytes_ += bytes;
  while (std::ssize(entries_) > max_responses_ || bytes_ > max_bytes_) drop(std::prev(entries_.end()));
  return true;
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

}  // namespace sluice
