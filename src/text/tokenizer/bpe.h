// Byte pair encoding of one piece of text.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sluice {

// The merges with their ranks. Filled once, then immutable.
class Merges {
 public:
  struct Merge {
    int32_t left, right;  // ids of the two neighbors
    int32_t merged;       // id of the result
    int32_t rank;         // pairs with lower ranks merge first
  };
  // `ids` is one more than the largest id. If two merges have the same pair, returns false and sets *twice to the index of one of them.
  bool fill(std::vector<Merge> merges, int64_t ids, int64_t* twice);
  // Null: the two ids do not merge.
  const Merge* find(int32_t left, int32_t right) const;

 private:
  // Sorted by left, then right. Binary search takes logarithmic time for every file, which a hash table would not guarantee.
  std::vector<Merge> merges_;
  std::vector<int32_t> first_;  // [ids + 1]: the first merge with each left id
};

// Scratch memory of merge_piece(), reused between pieces. Not thread-safe.
struct BpeScratch {
  struct Symbol {
    int32_t id, previous, next;  // indices into `symbols`; -1 at the ends
  };
  struct Waiting {
    int32_t rank, place;  // order of the heap: lowest rank first, then leftmost place
    int32_t left, right;  // ids of the pair when the entry was made; if they have changed, the entry is stale
    int32_t merged;
  };
  std::vector<Symbol> symbols;
  std::vector<Waiting> heap;
};

// Appends the ids of `piece`, which has 1 to 2^31 - 1 bytes. Each byte becomes byte_ids[byte]. Then the neighbors with the lowest rank merge,
// the leftmost first, until no two neighbors merge. Takes O(n log n) for n bytes.
void merge_piece(std::string_view piece, const std::array<int32_t, 256>& byte_ids, const Merges& merges,
                 BpeScratch* scratch, std::vector<int32_t>* ids);

}  // namespace sluice
