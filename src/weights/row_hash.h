// The hash function of fingerprints: 64-bit XXH3.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sluice {

struct HashPiece {
  const void* data;
  size_t bytes;
};

// Hashes the pieces in order, with AVX2 if the processor has it. The result is the same as
// hash_pieces_portable().
uint64_t hash_pieces(const HashPiece* pieces, size_t count);
uint64_t hash_pieces_portable(const HashPiece* pieces, size_t count);

}  // namespace sluice
