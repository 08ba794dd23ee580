// Byte pair encoding of one piece.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sluice {

// The order in which neighbours merge. Filled once, then immutable.
class Merges {
 public:
  struct Merge {
    int32_t left, right;  // ids of the neighbours
    int32_t merged;       // id of what they become
    int32_t rank;         // the least merges first
  };
  // `ids` is one more than the largest id. False if a pair stands twice; its place in `merges` goes to `twice`.
  bool fill(std::vector<Merge> merges, int64_t ids, int64_t* twice);
  // Null if the two do not merge.
  const Merge* find(int32_t left, int32_t right) const;

 private:
  std::vector<Merge>
      merges_;  // by left, then right: a lookup takes a logarithm of time whatever the file says
  std::vector<int32_t> first_;  // [ids + 1]: where those with this left begin
};

// Scratch memory of merge_piece(), kept between pieces. One a thread.
struct BpeScratch {
  struct Symbol {
    int32_t id, previous, next;  // places in `symbols`; -1 at the ends
  };
  struct Waiting {
    int32_t rank, place;  // the least rank first, then the leftmost
    int32_t left, right;  // what stood there: if it no longer does, the entry is stale
    int32_t merged;
  };
  std::vector<Symbol> symbols;
  std::vector<Waiting> heap;
};

// Appends the ids of `piece` (not empty, less than 2^31 bytes): each byte becomes byte_ids[byte], then the neighbours whose
// merge has the least rank merge, the leftmost first, until none can. O(n log n) for n bytes.
void merge_piece(std::string_view piece, const std::array<int32_t, 256>& byte_ids, const Merges& merges,
                 BpeScratch* scratch, std::vector<int32_t>* ids);

}  // namespace sluice
