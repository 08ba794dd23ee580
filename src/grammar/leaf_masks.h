// Which tokens a leaf takes from one of its places: found once, kept, and shared by all answers that come there.
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
  // Tokens all of whose bytes the leaf takes, and behind which it goes on: as bits, or one by one where they are few.
  TokenBits bits = {};
  std::vector<int32_t> few = {};
  // Where the leaf accepts inside a token or at its end.
  struct Exit {
    int32_t node;   // of `trie`
    int32_t chars;  // counted since the place
  };
  std::vector<Exit> ends = {};   // and takes no more bytes
  std::vector<Exit> inner = {};  // and could take more
  const TokenTrie* trie = nullptr;
  size_t bytes() const;
  void add_to(std::span<uint32_t> words) const {
    for (size_t w = 0; w < bits.size(); ++w) words[w] |= bits[w];
    for (const int32_t id : few) words[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
};

// Of one leaf. Any number of threads may use it.
class LeafMasks {
 public:
  // `kept` counts the bytes of all masks that are kept, of all leaves; beyond kKeptBytesMax a mask is found anew each time.
  LeafMasks(LeafPointer leaf, std::shared_ptr<const Vocabulary> vocabulary,
            std::shared_ptr<std::atomic<int64_t>> kept);
  ~LeafMasks();
  LeafMasks(const LeafMasks&) = delete;
  LeafMasks& operator=(const LeafMasks&) = delete;

  const Leaf& leaf() const { return *leaf_; }
  // Null: no budget left.
  std::shared_ptr<const LeafMask> at(Leaf::Place place, Work* work);

 private:
  static constexpr int64_t kKeptBytesMax = int64_t{256} << 20;
  std::shared_ptr<const LeafMask> find(Leaf::Place place, Work* work) const;
  bool plain_stays(int32_t state) const;

  LeafPointer leaf_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::shared_ptr<std::atomic<int64_t>> kept_;
  int64_t room_max_ = 0;  // characters before the bound from which on no token can reach it
  std::mutex mutex_;
  std::map<std::pair<int32_t, int64_t>, std::shared_ptr<const LeafMask>>
      masks_;  // by state and characters before the bound
  int64_t own_bytes_ = 0;
};

}  // namespace sluice
