// The hash behind fingerprints: XXH3, 64 bits.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sluice {

struct HashPiece {
  const void* data;
  size_t bytes;
};

// Of the pieces one after the other, by the widest vectors that the processor has: the same value from all.
uint64_t hash_pieces(const HashPiece* pieces, size_t count);
uint64_t hash_pieces_portable(const HashPiece* pieces, size_t count);

}  // namespace sluice
