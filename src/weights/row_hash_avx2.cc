// The hash function compiled for AVX2; empty on other architectures.
#if defined(__AVX2__)
#include "weights/row_hash_here.h"

namespace sluice {

uint64_t hash_pieces_avx2(const HashPiece* pieces, size_t count);
uint64_t hash_pieces_avx2(const HashPiece* pieces, size_t count) { return hash_pieces_here(pieces, count); }

}  // namespace sluice
#endif
