// The hash function, compiled for the instruction set of the including file. Uses only C headers and static
// functions: the linker merges inline functions of different files, and merged code must run on every
// processor.
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
