#include "weights/row_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace sluice {
namespace {

// Pieces around the sizes at which the hash changes its algorithm, and pieces of real rows.
TEST(RowHash, IsTheSameForAnyVectorsAndPieces) {
  Random random(7);
  std::vector<uint8_t> bytes(1 << 18);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random.bits());
  uint64_t last = 0;
  for (size_t size : {1, 16, 17, 128, 129, 240, 241, 1024, 1025, 1440 + 90, 64 * (1440 + 90), 1 << 18}) {
    const HashPiece whole{bytes.data(), size};
    const uint64_t wanted = hash_pieces_portable(&whole, 1);
    EXPECT_NE(wanted, last);
    last = wanted;
    EXPECT_EQ(hash_pieces(&whole, 1), wanted) << size;
    for (size_t cut : {1, 90, 255, 256, 257, 1440}) {
      std::vector<HashPiece> pieces;
      for (size_t at = 0; at < size; at += cut) pieces.push_back({&bytes[at], std::min(cut, size - at)});
      EXPECT_EQ(hash_pieces(pieces.data(), pieces.size()), wanted) << size << " in pieces of " << cut;
    }
    bytes[size - 1] ^= 1;
    EXPECT_NE(hash_pieces(&whole, 1), wanted) << size;
    bytes[size - 1] ^= 1;
  }
}

}  // namespace
}  // namespace sluice
