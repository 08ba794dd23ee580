// Answers of /v1/responses, for requests that go on from them.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "server/requests/request.h"

namespace sluice {

// Bytes of memory that it holds, all of it.
int64_t bytes_of(const StoredResponse& response);

// Those used least recently go first. Any number of threads may use it.
class ResponseStore {
 public:
  ResponseStore(int64_t most, int64_t most_bytes) : most_(most), most_bytes_(most_bytes) {}
  std::shared_ptr<const StoredResponse> find(const std::string& id);  // null: none has this id
  // False: it is larger than all that may be kept, and is not.
  bool put(const std::string& id, std::shared_ptr<const StoredResponse> response);
  bool erase(const std::string& id);

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> response;
    int64_t bytes = 0;
  };
  void drop(std::list<Entry>::iterator entry);

  const int64_t most_, most_bytes_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the one used last is the first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_id_;
  int64_t bytes_ = 0;
};

}  // namespace sluice
