#include "weights/row_hash.h"

#include "weights/row_hash_here.h"

namespace sluice {

uint64_t hash_pieces_portable(const HashPiece* pieces, size_t count) {
  return hash_pieces_here(pieces, count);
}

#if defined(__x86_64__)
uint64_t hash_pieces_avx2(const HashPiece* pieces, size_t count);  // row_hash_avx2.cc

uint64_t hash_pieces(const HashPiece* pieces, size_t count) {
  static const bool wide = __builtin_cpu_supports("avx2");
  return wide ? hash_pieces_avx2(pieces, count) : hash_pieces_portable(pieces, count);
}
#else
uint64_t hash_pieces(const HashPiece* pieces, size_t count) { return hash_pieces_portable(pieces, count); }
#endif

}  // namespace sluice
