#include "engine/upload_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "harness/devices.h"
#include "harness/far_device.h"
#include "harness/wrapped_device.h"

namespace sluice::test {
namespace {

// Allocates blocks of at most `most` bytes.
class SmallBlocks final : public WrappedDevice {
 public:
  SmallBlocks(Device& inner, size_t most) : WrappedDevice(inner), max_(most) {}
  Result<void*> allocate(size_t bytes) override {
    if (bytes > max_) return Status{Code::kOutOfMemory, "found too little"};
    return inner_.allocate(bytes);
  }

 private:
  size_t max_;
};

TEST(UploadBlock, SendsWhatTheHostWrote) {
  FarDevice far;
  CountingDevice device(far);
  {
    UploadBlock memory(device, "lists");
    for (const size_t bytes : {64, 4096}) {
      ASSERT_TRUE(memory.replace(bytes, 2 * bytes).ok());
      EXPECT_EQ(device.held(), 2) << "the old blocks are released";
      EXPECT_TRUE(
          std::all_of(memory.host(), memory.host() + bytes, [](std::byte b) { return b == std::byte{0}; }));
      std::memset(memory.host(), 7, bytes);
      ASSERT_TRUE(memory.send(bytes).ok());
      std::vector<std::byte> got(bytes);
      ASSERT_TRUE(device.copy(got.data(), memory.block(), bytes, device.stream()).ok());
      ASSERT_TRUE(device.wait(device.stream()).ok());
      EXPECT_EQ(std::count(got.begin(), got.end(), std::byte{7}), std::ssize(got));
    }
  }
  EXPECT_EQ(device.held(), 0);
}

TEST(UploadBlock, NamesTheAllocationThatFailedAndCanBeRetried) {
  const auto cpu = cpu::open_device({.threads = 1}).value();
  SmallBlocks small(*cpu, 4096);
  CountingDevice device(small);
  {
    UploadBlock memory(device, "lists");
    ASSERT_TRUE(memory.replace(64, 64).ok());
    const Status status = memory.replace(64, 8192);
    EXPECT_EQ(status.code, Code::kOutOfMemory);
    EXPECT_EQ(status.message, "lists: found too little");
    EXPECT_EQ(memory.block(), nullptr);
    EXPECT_TRUE(memory.replace(64, 4096).ok());
    EXPECT_EQ(device.held(), 2);
  }
  EXPECT_EQ(device.held(), 0);
}

}  // namespace
}  // namespace sluice::test
