// Weights from a caller's tensors in device memory, and the packed bytes of a layer.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "harness/far_device.h"
#include "harness/moe_files.h"
#include "nn/moe/load.h"

namespace sluice::test {

// Tensors in device memory, as a Checkpoint.
struct FarTensors {
  FarTensors(Device& device, const std::vector<StoredTensor>& stored) : device(device) {
    std::vector<CheckpointTensor> list;
    for (const StoredTensor& t : stored) {
      void* memory = device.allocate(t.bytes.size()).value();
      blocks.push_back(memory);
      EXPECT_TRUE(device.copy(memory, t.bytes.data(), t.bytes.size(), device.stream()).ok());
      list.push_back({.name = t.what.name,
                      .type = t.what.type,
                      .shape = t.what.shape,
                      .data = static_cast<const std::byte*>(memory),
                      .bytes = static_cast<int64_t>(t.bytes.size()),
                      .where = device.info().backend});
    }
    EXPECT_TRUE(device.wait(device.stream()).ok());
    auto made = Checkpoint::of_memory("weights", std::move(list));
    EXPECT_TRUE(made.ok()) << made.status().message;
    tensors = std::move(made).value();
  }
  ~FarTensors() {
    for (void* memory : blocks) device.release(memory);
  }
  Device& device;
  std::vector<void*> blocks;
  std::unique_ptr<Checkpoint> tensors;
};

inline std::vector<std::byte> packed(const LoadedMoe& loaded) {
  std::vector<std::byte> out;
  const Status status = loaded.write_packed([&](std::span<const std::byte> piece) {
    out.insert(out.end(), piece.begin(), piece.end());
    return Status{};
  });
  EXPECT_TRUE(status.ok()) << status.message;
  return out;
}

}  // namespace sluice::test
