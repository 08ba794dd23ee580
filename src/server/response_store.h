// Stores answers of /v1/responses, so that later requests can continue their conversations.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "server/requests/request.h"

namespace sluice {

// All memory that the response uses, in bytes.
int64_t bytes_of(const StoredResponse& response);

// Stores responses and evicts the least recently used ones. Thread-safe.
class ResponseStore {
 public:
  ResponseStore(int64_t max_responses, int64_t max_bytes)
      : max_responses_(max_responses), max_bytes_(max_bytes) {}
  std::shared_ptr<const StoredResponse> find(const std::string& id);  // null: not stored
  // False: the response alone exceeds the limit and is not stored.
  bool put(const std::string& id, std::shared_ptr<const StoredResponse> response);
  bool erase(const std::string& id);

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> response;
    int64_t bytes = 0;
  };
  void drop(std::list<Entry>::iterator entry);

  const int64_t max_responses_, max_bytes_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_id_;
  int64_t bytes_ = 0;
};

}  // namespace sluice
