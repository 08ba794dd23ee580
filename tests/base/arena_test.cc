#include "base/arena.h"

#include <gtest/gtest.h>

namespace sluice::test {

TEST(Arena, LendsAlignedPiecesUntilItIsFull) {
  alignas(256) std::byte block[1024];
  Arena arena(block, sizeof block);
  const Workspace first = arena.lend(1).value(), second = arena.lend(700).value();
  EXPECT_EQ(first.data, block);
  EXPECT_EQ(second.data, block + 256);
  const Result<Workspace> third = arena.lend(1);
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.status().code, Code::kOutOfMemory);
  EXPECT_NE(third.status().message.find("wanted 256 bytes, 0 of 1024 are left"), std::string::npos);
  EXPECT_TRUE(arena.reset().ok());
  EXPECT_EQ(arena.lend(1024).value().data, block);
}

TEST(Arena, GuardNamesTheLoanThatWasOverrun) {
  alignas(256) std::byte block[4096];
  Arena arena(block, sizeof block, ArenaCheck::kGuard);
  ASSERT_TRUE(arena.lend(100).ok());
  const Workspace second = arena.lend(300).value();
  EXPECT_EQ(second.data[299], std::byte{0xFF});  // poisoned: reads as NaN
  EXPECT_TRUE(arena.reset().ok());
  ASSERT_TRUE(arena.lend(100).ok());
  const Workspace victim = arena.lend(300).value();
  victim.data[300] = std::byte{0};
  const Status status = arena.reset();
  EXPECT_EQ(status.code, Code::kDevice);
  EXPECT_NE(status.message.find("loan 1 of 300 bytes was overrun at byte 300"), std::string::npos)
      << status.message;
}

}  // namespace sluice::test
