// Byte pair encoding of one piece.
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
    int32_t left, right;  // ids of the neighbours
    int32_t merged;       // id of the result
    int32_t rank;         // the lowest rank merges first
  };
  // `ids` is one more than the largest id. If a pair occurs twice, returns false and stores its index in `merges` in `twice`.
  bool fill(std::vector<Merge> merges, int64_t ids, int64_t* twice);
  // Null if the two do not merge.
  const Merge* find(int32_t left, int32_t right) const;

 private:
  // Sorted by left, then right, so that lookups take logarithmic time for every file.
  std::vector<Merge> merges_;
  std::vector<int32_t> first_;  // [ids + 1]: the first merge with each left id
};

// Scratch memory of merge_piece(), reused between pieces. Not thread-safe.
struct BpeScratch {
  struct Symbol {
    int32_t id, previous, next;  // indices into `symbols`; -1 at the ends
  };
  struct Waiting {
    int32_t rank, place;  // lowest rank first, then leftmost
    int32_t left, right;  // the ids when the entry was made; if they have changed, the entry is stale
    int32_t merged;
  };
  std::vector<Symbol> symbols;
  std::vector<Waiting> heap;
};

// Appends the ids of `piece`, which has 1 to 2^31 - 1 bytes. Each byte becomes byte_ids[byte]; then the neighbours with the lowest rank
// merge, leftmost first, until none can. O(n log n) for n bytes.
void merge_piece(std::string_view piece, const std::array<int32_t, 256>& byte_ids, const Merges& merges,
                 BpeScratch* scratch, std::vector<int32_t>* ids);

}  // namespace sluice
