// The tokens that a leaf accepts from one of its places. A mask is computed once, cached, and shared by all requests.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "grammar/leaf.h"
#include "grammar/token_trie.h"
#include "grammar/work.h"

namespace sluice {

struct LeafMask {
  // Tokens after whose last byte the leaf can read further bytes. They are in `bits`, or in `few` if there are only a few.
  TokenBits bits = {};
  std::vector<int32_t> few = {};
  // A node of the trie after whose byte the leaf accepts: the text of the leaf may end there, inside a token or at a token's end.
  struct Exit {
    int32_t node;   // of `trie`
    int32_t chars;  // counted since the start of the token
  };
  std::vector<Exit> ends = {};   // where the leaf can read no further byte
  std::vector<Exit> inner = {};  // where the leaf can also read further bytes
  const TokenTrie* trie = nullptr;
  size_t bytes() const;
  void add_to(std::span<uint32_t> words) const {
    for (size_t w = 0; w < bits.size(); ++w) words[w] |= bits[w];
    for (const int32_t id : few) words[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
};

// The masks of one leaf. Thread-safe.
class LeafMasks {
 public:
  // `kept` counts the bytes of the cached masks of all leaves. Beyond kKeptBytesMax, masks are computed on every call.
  LeafMasks(LeafPointer leaf, std::shared_ptr<const Vocabulary> vocabulary,
            std::shared_ptr<std::atomic<int64_t>> kept);
  ~LeafMasks();
  LeafMasks(const LeafMasks&) = delete;
  LeafMasks& operator=(const LeafMasks&) = delete;

  const Leaf& leaf() const { return *leaf_; }
  // Null: the budget is spent.
  std::shared_ptr<const LeafMask> at(Leaf::Place place, Work* work);

 private:
  static constexpr int64_t kKeptBytesMax = int64_t{256} << 20;
  std::shared_ptr<const LeafMask> find(Leaf::Place place, Work* work) const;
  bool plain_stays(int32_t state) const;

  LeafPointer leaf_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::shared_ptr<std::atomic<int64_t>> kept_;
  // If at least this many characters are left until the limit, no token can reach the limit.
  int64_t room_max_ = 0;
  std::mutex mutex_;
  // By state, and by the number of characters left, or -1 minus the number of characters so far.
  std::map<std::pair<int32_t, int64_t>, std::shared_ptr<const LeafMask>> masks_;
  int64_t own_bytes_ = 0;
};

}  // namespace sluice
