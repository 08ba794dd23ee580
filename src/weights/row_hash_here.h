// The hash, for the vectors that the including file is compiled for. Contains only C headers and static
// functions, because code that the linker shares between files must not need those vectors.
#pragma once
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "weights/row_hash.h"

namespace sluice {

static inline uint64_t hash_pieces_here(const HashPiece* pieces, size_t count) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset(&state);
  for (size_t i = 0; i < count; ++i) XXH3_64bits_update(&state, pieces[i].data, pieces[i].bytes);
  return XXH3_64bits_digest(&state);
}

}  // namespace sluice
